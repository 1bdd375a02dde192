"""Hugging Face's attention over a KV cache with rows as chips write them. keys.py prints the results."""

from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Callable, Iterator, NamedTuple, Optional

import torch
from golden_mesh.arithmetic.engine import round_away
from golden_mesh.rounding import to_block_float
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen2ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from models.demos.qwen25_7b.config import QWEN25_7B, QwenConfig
from models.demos.qwen25_7b.evaluation.divergence import compare
from models.demos.qwen25_7b.reference.hf import hf_model, random_weights, residual_stream
from models.demos.qwen25_7b.weights import (
    centered_pairs,
    key_divisors,
    to_half_split,
    to_interleaved,
)
from models.demos.qwen25_7b.weights.rotary_pairs import OUTLIER_NORM, scale_key, scale_query

CacheWrite = Callable[[torch.Tensor], torch.Tensor]
"""rows [..., head_dim], keys in rotary pairs -> the rows that the cache holds."""

NAME = "with a chip's cache"  # of the attention function, for transformers
AWAY = 1 + 2.0**-12  # moves a bfloat16's ties away from zero, as a chip's packer does
DRAWS = 6  # of random weights
SLIM = replace(QWEN25_7B, hidden_size=768, num_hidden_layers=1, vocab_size=512, intermediate_size=32,
               bos_token_id=None, eos_token_ids=())  # fmt: skip


def bf16(rows: torch.Tensor) -> torch.Tensor:
    return rows.bfloat16().float()


def by_prefill(rows: torch.Tensor) -> torch.Tensor:
    """Prefill's typecast to bfloat8_b: rows become 0.28 % larger in the mean."""
    return to_block_float(bf16(rows) * AWAY, bits=7).float()


def by_decode(rows: torch.Tensor) -> torch.Tensor:
    """paged_update_cache packs twice: rows become 0.53 % larger in the mean."""
    return to_block_float(round_away(bf16(rows), 7) * AWAY, bits=7).float()


def by_both(rows: torch.Tensor, decode: CacheWrite = by_decode) -> torch.Tensor:
    """[..., tokens, head_dim]: prefill writes the first half of the tokens, decode the rest."""
    prompt, answer = rows.tensor_split(2, dim=-2)
    return torch.cat((by_prefill(prompt), decode(answer)), dim=-2)


@contextmanager
def cache_writes(
    model: torch.nn.Module,
    keys: CacheWrite,
    values: Optional[CacheWrite] = None,
    centers: Optional[list[torch.Tensor]] = None,
) -> Iterator[None]:
    """Let the model's attention read keys and values from such a cache in the block.

    values: default as keys. centers: constants that each layer's cache leaves out of its keys.
    """

    def attention(module, query, key, value, mask, **options):
        if centers is not None:
            key = key - centers[module.layer_idx]
        key = to_half_split(keys(to_interleaved(key)))
        value = (values or keys)(value)
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        return scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
    before, model.config._attn_implementation = model.config._attn_implementation, NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


class ChipModel(NamedTuple):
    """model: a copy with equalized keys, in bfloat16. centers: of each layer, [kv_heads, 1, head_dim] (cache_writes)."""

    model: Qwen2ForCausalLM
    centers: list[torch.Tensor]


def equalized(model: Qwen2ForCausalLM, *, center: bool) -> ChipModel:
    """The model with every outlier pair equalized; with `center` slow pairs are centered, as the loader does for chips."""
    model, centers = deepcopy(model), []
    config = QwenConfig.from_dict(model.config.to_dict())
    for i, layer in enumerate(model.model.layers):
        size, attention = layer.self_attn.head_dim, layer.self_attn
        rope = config.centering_rope(i) if center else None
        heads = attention.k_proj.bias.split(size)
        divisors = [key_divisors(head, rope) for head in heads]
        centered = [head * centered_pairs(head, rope) / d for head, d in zip(heads, divisors)]
        centers.append(torch.stack(centered)[:, None])
        groups = attention.q_proj.bias.numel() // attention.k_proj.bias.numel()
        for_queries = [d for d in divisors for _ in range(groups)]
        for projection, scale, factors in (
            (attention.k_proj, scale_key, divisors),
            (attention.q_proj, scale_query, for_queries),
        ):
            for parameter in (projection.weight, projection.bias):
                heads = zip(parameter.split(size), factors, strict=True)
                parameter.data = torch.cat([bf16(scale(head, factor)) for head, factor in heads])
    return ChipModel(model, centers)


@torch.no_grad()
def layer_rows(model: Qwen2ForCausalLM, ids: torch.Tensor) -> list[tuple[str, ...]]:
    """For each layer: its name, its longest pair of K bias, its outlier pairs, and the errors of attention's output."""
    inputs: list[dict] = []
    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda module, _, given: inputs.append(given), with_kwargs=True
        )
        for layer in model.model.layers
    ]
    model.model(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    on_chips = [equalized(model, center=center) for center in (False, True)]
    return [_row(f"{i}", i, model, on_chips, given) for i, given in enumerate(inputs)]


@torch.no_grad()
def random_row() -> tuple[str, ...]:
    """A row for random weights with the 7B's heads and K bias, the mean of DRAWS."""
    rows, biases = [], []
    for seed in range(DRAWS):
        model = hf_model(SLIM, random_weights(SLIM, seed))
        x = residual_stream(SLIM, 2, 256, seed=seed)
        given = dict(
            hidden_states=bf16(model.model.layers[0].input_layernorm(x)),
            position_embeddings=model.model.rotary_emb(x, torch.arange(256)[None]),
            attention_mask=None,
        )
        on_chips = [equalized(model, center=center) for center in (False, True)]
        rows.append(_errors(0, model, on_chips, given))
        biases.append(model.model.layers[0].self_attn.k_proj.bias)
    means = torch.tensor(rows).mean(0).tolist()
    return (
        f"random weights, {DRAWS} draws",
        *_outliers(torch.cat(biases), SLIM.head_dim),
        *(f"{error:.4f}" for error in means),
    )


def _row(
    name: str, i: int, model: Qwen2ForCausalLM, on_chips: list[ChipModel], given: dict
) -> tuple[str, ...]:
    attention = model.model.layers[i].self_attn
    errors = _errors(i, model, on_chips, given)
    return (
        name,
        *_outliers(attention.k_proj.bias, attention.head_dim),
        *(f"{error:.4f}" for error in errors),
    )


def _outliers(bias: torch.Tensor, head_dim: int) -> tuple[str, str]:
    lengths = bias.view(-1, 2, head_dim // 2).norm(dim=1)
    return f"{lengths.max():.0f}", f"{int((lengths > OUTLIER_NORM).sum())} of {lengths.numel()}"


def _errors(i: int, model: Qwen2ForCausalLM, on_chips: list[ChipModel], given: dict) -> list[float]:
    """Errors of layer i's attention with a bfloat16 and an 8-bit cache.

    Keys are as they were, and as on_chips has them: equalized, and centered.
    """
    given = given | dict(past_key_values=None)
    exact = model.model.layers[i].self_attn(**given)[0]
    errors, ((even, _), (centered, centers)) = [], on_chips
    for which, write, left_out in (
        (model, bf16, None),
        (centered, bf16, centers),
        (model, by_prefill, None),
        (even, by_prefill, None),
        (centered, by_prefill, centers),
    ):
        with cache_writes(which, write, centers=left_out):
            found = which.model.layers[i].self_attn(**given)[0]
        errors.append(float((found - exact).norm() / exact.norm()))
    return errors


def drift_rows(model: Qwen2ForCausalLM, ids: torch.Tensor) -> list[tuple[str, str]]:
    """KL over the second half of each text, which decode writes after prefill has written the first half."""
    even, _ = equalized(model, center=False)
    centered, centers = equalized(model, center=True)

    def smaller(factor: float) -> CacheWrite:
        return lambda rows: by_both(rows * factor)

    def agreeing(rows: torch.Tensor) -> torch.Tensor:
        return by_both(rows, lambda answer: by_decode(answer) * 1.0028 / 1.0053)

    caches = (
        ("bfloat16, centered: as on a chip", centered, bf16, None, centers),
        ("bfloat16, equalized", even, bf16, None),
        ("8-bit, keys as they were", model, by_both, None),
        ("8-bit, centered: as on a chip", centered, by_both, None, centers),
        ("8-bit, equalized", even, by_both, None),
        ("8-bit, equalized, all rows written by prefill", even, by_prefill, None),
        ("8-bit, equalized, decode's rows scaled to prefill's", even, agreeing, None),
        (
            "8-bit, equalized, keys 0.4 % smaller by a factor in Wk",
            even,
            smaller(1 / 1.004),
            by_both,
        ),
        ("no rounding, decode's rows 0.25 % larger than prefill's", model, _larger, None),
    )
    rows = []
    for name, which, *written in caches:
        kl = _second_half_kl(model, which, ids, *written)
        rows.append((name, f"{kl:.1e}"))
    return rows


def _larger(rows: torch.Tensor) -> torch.Tensor:
    prompt, answer = rows.tensor_split(2, dim=-2)
    return torch.cat((prompt, answer * 1.0025), dim=-2)


@torch.no_grad()
def _second_half_kl(
    model: Qwen2ForCausalLM,
    which: Qwen2ForCausalLM,
    ids: torch.Tensor,
    keys: CacheWrite,
    values: Optional[CacheWrite],
    centers: Optional[list[torch.Tensor]] = None,
) -> float:
    """The KL of `which` with such a cache from `model`, over the tokens of second halves."""
    kl = []
    for sequence in ids.split(1):
        half = sequence.shape[1] // 2
        expected = model(sequence).logits[0, half:-1]
        with cache_writes(which, keys, values, centers):
            found = which(sequence).logits[0, half:-1]
        kl.append(compare(found, expected, sequence[0, half + 1 :]).kl)
    return float(torch.cat(kl).mean())
