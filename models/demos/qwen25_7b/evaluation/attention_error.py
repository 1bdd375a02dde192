"""The error of attention alone at the 7B's dims against float64, with and without each of a chip's roundings."""

from dataclasses import dataclass
from typing import Callable, NamedTuple

import torch
from golden_mesh.arithmetic import engine
from golden_mesh.goldens.rotary import rotary_embedding_llama

from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.config.rope import inverse_frequencies
from models.demos.qwen25_7b.evaluation.attention_arithmetic import (
    PARTS,
    Exact,
    attend_chunk,
    attend_step,
)
from models.demos.qwen25_7b.plans.blocks import (
    BLOCK,
    MAX_K_CHUNK,
    decode_k_chunk,
    table_width,
)
from models.demos.qwen25_7b.quantize.cached_keys import by_decode
from models.demos.qwen25_7b.tt.attention import CORES_PER_KV_HEAD
from models.demos.qwen25_7b.tt.centered_keys import centered_rows
from models.demos.qwen25_7b.tt.linear import compute_config
from models.demos.qwen25_7b.tt.rotary import rotary_tables, transformation_matrix
from models.demos.qwen25_7b.weights import (
    centered_pairs,
    key_divisors,
    to_half_split,
    to_interleaved,
)

ROWS = 32  # of the prompt's last chunk
OUTLIER_PAIRS, OUTLIER = 4, 171.0  # of a head, as in the K bias of the 7B's layer 0
SLOWEST = slice(-2 * OUTLIER_PAIRS, None)  # channels of the slowest pairs
# The factor of q in outlier pairs. The small checkpoint has an eighth there. The 7B's is not known here.
KEYS = {"outliers": 1.0, "outliers with small q": 1 / 8, "plain": 1.0}
HEADS, KV_HEADS, DIM = (
    QWEN25_7B.num_attention_heads,
    QWEN25_7B.num_key_value_heads,
    QWEN25_7B.head_dim,
)
GRID = 64  # cores of a chip


class Error(NamedTuple):
    relative: float  # norm of the difference over the norm of the right result
    gain: float  # scale of the result; 1 is right


@dataclass(frozen=True)
class Case:
    """How a chip computes attention. tp 4 and 8 compute as tp 1 does: with the exact exp."""

    name: str
    cores: int = 0  # that share a KV head in a step; 0: the last rows of a prompt, from the cache
    approximate: bool = False  # exp

    def attend(self, x: "Inputs", exact: Exact, longest_chunks: bool) -> torch.Tensor:
        if not self.cores:
            return attend_chunk(x.q, x.k, x.v, chunk=MAX_K_CHUNK, exact=exact)
        table = table_width(x.k.shape[1], BLOCK) * BLOCK
        step = attend_step(
            x.q[:, :, -1],
            x.k,
            x.v,
            chunk=MAX_K_CHUNK if longest_chunks else decode_k_chunk(table),
            cores=self.cores,
            approximate=self.approximate,
            exact=exact,
        )
        return step[:, :, None]


CASES = (
    Case("step, 1 user, tp 1", cores=CORES_PER_KV_HEAD),
    Case("step, 1 user, tp 2", cores=CORES_PER_KV_HEAD, approximate=True),
    Case("step, 32 users, tp 1", cores=max(1, GRID // 32 // KV_HEADS)),
    Case("prompt's last rows"),
)


class Inputs(NamedTuple):
    """q [kv_heads, group, rows, dim], k and v [kv_heads, tokens, dim], in rotary pairs."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True)
class Variant:
    """What differs from a chip with a bfloat16 cache.

    centered: as the loader centers keys (weights/rotary_pairs.py). Otherwise outlier pairs are equalized.
    """

    name: str
    exact: Exact = ()
    exact_rotation: bool = False
    centered: bool = True
    longest_chunks: bool = False  # in a step
    cache: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows.bfloat16().float()


VARIANTS = (
    Variant("as on a chip"),
    Variant("rotation exact", exact_rotation=True),
    *(Variant(f"{part} exact", (part,)) for part in PARTS),
    Variant("all of these", PARTS, True),
    Variant(f"chunks of {MAX_K_CHUNK}", longest_chunks=True),
    Variant("keys equalized", centered=False),
    Variant("8-bit cache", cache=by_decode),
    Variant("8-bit cache, keys equalized", centered=False, cache=by_decode),
)


def measure(keys: str, tokens: int, draws: int) -> dict[tuple[str, str], Error]:
    """By name of the case and the variant. An exact exp is measured where exp is approximate."""
    results: dict[tuple[str, str], list] = {}
    for seed in range(draws):
        given, bias = _draw(keys, tokens, torch.Generator().manual_seed(seed))
        right = _attention(_rotated(given._replace(k=given.k + bias), _turn_exactly))
        for variant in VARIANTS:
            q, k, v = _on_chips(given, bias, variant)
            inputs = Inputs(q.bfloat16().float(), variant.cache(k), variant.cache(v))
            for case in CASES:
                if _counts(variant, case, keys):
                    got = case.attend(inputs, variant.exact, variant.longest_chunks).double()
                    want = right if not case.cores else right[:, :, -1:]
                    results.setdefault((case.name, variant.name), []).append((got, want))
    order = [(case.name, variant.name) for case in CASES for variant in VARIANTS]
    return {key: _error(results[key]) for key in order if key in results}


def _error(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Error:
    got, want = (torch.stack(side).flatten() for side in zip(*pairs))
    return Error(float((got - want).norm() / want.norm()), float(got @ want / (want @ want)))


def _counts(variant: Variant, case: Case, keys: str) -> bool:
    """Whether the variant may change anything in this case."""
    if not variant.centered and keys == "plain":
        return False
    if variant.exact == ("exp",):
        return case.approximate
    # A prompt's scores and weights are float32 on chips, and its chunks are the longest.
    only_in_steps = variant.longest_chunks or variant.exact in (("scores",), ("weights",))
    return bool(case.cores) or not only_in_steps


def _draw(keys: str, tokens: int, generator: torch.Generator) -> tuple[Inputs, torch.Tensor]:
    """Unrotated inputs with keys that lack their bias, and the bias [kv_heads, 1, dim]. float32."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    q = normal(KV_HEADS, HEADS // KV_HEADS, ROWS, DIM)
    k, v = (normal(KV_HEADS, tokens, DIM) for _ in "kv")
    bias = normal(KV_HEADS, 1, DIM)
    if keys != "plain":
        bias[..., SLOWEST] = OUTLIER * bias[..., SLOWEST].sign()
        q[..., SLOWEST] *= KEYS[keys]
    return Inputs(q, k, v), bias


def _on_chips(given: Inputs, bias: torch.Tensor, variant: Variant) -> Inputs:
    """Rotated inputs in bfloat16, with keys as the loader makes them. QKV gives bfloat16, too."""
    turn = _turn_exactly if variant.exact_rotation else _turn_as_chips
    rope = QWEN25_7B.centering_rope(0) if variant.centered else None
    heads = [to_half_split(head) for head in bias[:, 0]]
    divisors, centered = (
        torch.stack([to_interleaved(of_head(head, rope)) for head in heads])[:, None]
        for of_head in (key_divisors, centered_pairs)
    )
    after = bias * centered / divisors
    k, q = (given.k + bias) / divisors - after, given.q * divisors[:, None]
    x = _bfloat16(_rotated(_bfloat16(Inputs(q, k, given.v)), turn))
    if not after.any():
        return x
    table = centered_rows(QWEN25_7B, after[:, 0], k.shape[1]).view(k.shape)
    return _bfloat16(x._replace(k=engine.add(x.k.bfloat16(), table)))


def _bfloat16(x: Inputs) -> Inputs:
    return Inputs(*(values.bfloat16().float() for values in x))


Turn = Callable[[torch.Tensor, int], torch.Tensor]  # x [heads, rows, dim], the first row's position


def _rotated(x: Inputs, turn: Turn) -> Inputs:
    tokens, rows = x.k.shape[1], x.q.shape[2]
    q = turn(x.q.flatten(0, 1), tokens - rows).unflatten(0, x.q.shape[:2])
    return Inputs(q, turn(x.k, 0), x.v)


def _turn_exactly(x: torch.Tensor, first: int) -> torch.Tensor:
    """In float64, with the frequencies that the model was trained with."""
    frequencies = inverse_frequencies(DIM, QWEN25_7B.rope_theta, None).double()
    angles = torch.outer(torch.arange(first, first + x.shape[1]).double(), frequencies)
    turned = torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) * torch.exp(1j * angles)
    return torch.view_as_real(turned).flatten(-2)


def _turn_as_chips(x: torch.Tensor, first: int) -> torch.Tensor:
    end = first + x.shape[1]
    cos, sin = (table[:, :, first:end].bfloat16() for table in rotary_tables(QWEN25_7B, end))
    return rotary_embedding_llama(
        x[None],
        cos,
        sin,
        transformation_matrix().bfloat16(),
        compute_kernel_config=compute_config(),
    )[0]


def _attention(x: Inputs) -> torch.Tensor:
    """In float64: [kv_heads, group, rows, dim]"""
    tokens, rows = x.k.shape[1], x.q.shape[2]
    hidden = torch.arange(tokens) > torch.arange(tokens - rows, tokens)[:, None]
    scores = x.q.double() @ x.k.double()[:, None].transpose(-1, -2) * DIM**-0.5
    return scores.masked_fill_(hidden, -torch.inf).softmax(-1) @ x.v.double()[:, None]
