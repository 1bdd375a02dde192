"""Hugging Face's attention over a KV cache with rows as chips write them. keys.py prints the results."""

from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Callable, Iterator, Optional

import torch
from golden_mesh.arithmetic.engine import round_away
from golden_mesh.rounding import to_block_float
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen2ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.evaluation.divergence import compare
from models.demos.qwen25_7b.reference.hf import hf_model, random_weights, residual_stream
from models.demos.qwen25_7b.weights import key_divisors, to_half_split, to_interleaved
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
    model: torch.nn.Module, keys: CacheWrite, values: Optional[CacheWrite] = None
) -> Iterator[None]:
    """Let the model's attention read keys and values from such a cache in the block. values: default as
    keys."""

    def attention(module, query, key, value, mask, **options):
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


def equalized(model: Qwen2ForCausalLM) -> Qwen2ForCausalLM:
    """A copy with equalized keys, in bfloat16, as the loader makes them for chips."""
    model = deepcopy(model)
    for layer in model.model.layers:
        size, attention = layer.self_attn.head_dim, layer.self_attn
        divisors = [key_divisors(head) for head in attention.k_proj.bias.split(size)]
        groups = attention.q_proj.bias.numel() // attention.k_proj.bias.numel()
        for_queries = [d for d in divisors for _ in range(groups)]
        for projection, scale, factors in (
            (attention.k_proj, scale_key, divisors),
            (attention.q_proj, scale_query, for_queries),
        ):
            for parameter in (projection.weight, projection.bias):
                heads = zip(parameter.split(size), factors, strict=True)
                parameter.data = torch.cat([bf16(scale(head, factor)) for head, factor in heads])
    return model


@torch.no_grad()
def layer_rows(model: Qwen2ForCausalLM, ids: torch.Tensor) -> list[tuple[str, ...]]:
    """For each layer: its name, its longest pair of K bias, its outlier pairs, and three errors of attention's output."""
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
    even = equalized(model)
    return [_row(f"{i}", i, model, even, given) for i, given in enumerate(inputs)]


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
        rows.append(_errors(0, model, equalized(model), given))
        biases.append(model.model.layers[0].self_attn.k_proj.bias)
    means = torch.tensor(rows).mean(0).tolist()
    return (
        f"random weights, {DRAWS} draws",
        *_outliers(torch.cat(biases), SLIM.head_dim),
        *(f"{error:.4f}" for error in means),
    )


def _row(
    name: str, i: int, model: Qwen2ForCausalLM, even: Qwen2ForCausalLM, given: dict
) -> tuple[str, ...]:
    attention = model.model.layers[i].self_attn
    errors = _errors(i, model, even, given)
    return (
        name,
        *_outliers(attention.k_proj.bias, attention.head_dim),
        *(f"{error:.4f}" for error in errors),
    )


def _outliers(bias: torch.Tensor, head_dim: int) -> tuple[str, str]:
    lengths = bias.view(-1, 2, head_dim // 2).norm(dim=1)
    return f"{lengths.max():.0f}", f"{int((lengths > OUTLIER_NORM).sum())} of {lengths.numel()}"


def _errors(i: int, model: Qwen2ForCausalLM, even: Qwen2ForCausalLM, given: dict) -> list[float]:
    """Errors of layer i's attention with a bfloat16 cache, an 8-bit cache, and an 8-bit cache of equalized keys."""
    given = given | dict(past_key_values=None)
    exact = model.model.layers[i].self_attn(**given)[0]
    errors = []
    for which, write in ((model, bf16), (model, by_prefill), (even, by_prefill)):
        with cache_writes(which, write):
            found = which.model.layers[i].self_attn(**given)[0]
        errors.append(float((found - exact).norm() / exact.norm()))
    return errors


def drift_rows(model: Qwen2ForCausalLM, ids: torch.Tensor) -> list[tuple[str, str]]:
    """KL over the second half of each text, which decode writes after prefill has written the first half."""
    even = equalized(model)

    def smaller(factor: float) -> CacheWrite:
        return lambda rows: by_both(rows * factor)

    def agreeing(rows: torch.Tensor) -> torch.Tensor:
        return by_both(rows, lambda answer: by_decode(answer) * 1.0028 / 1.0053)

    caches = (
        ("bfloat16", even, bf16, None),
        ("8-bit, keys as they were", model, by_both, None),
        ("8-bit, equalized: as on a chip", even, by_both, None),
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
    for name, which, keys, values in caches:
        kl = _second_half_kl(model, which, keys, values, ids)
        rows.append((name, f"{kl:.1e}"))
    return rows


def _larger(rows: torch.Tensor) -> torch.Tensor:
    prompt, answer = rows.tensor_split(2, dim=-2)
    return torch.cat((prompt, answer * 1.0025), dim=-2)


@torch.no_grad()
def _second_half_kl(
    model: Qwen2ForCausalLM,
    which: Qwen2ForCausalLM,
    keys: CacheWrite,
    values: Optional[CacheWrite],
    ids: torch.Tensor,
) -> float:
    """The KL of `which` with such a cache from `model`, over the tokens of second halves."""
    kl = []
    for sequence in ids.split(1):
        half = sequence.shape[1] // 2
        expected = model(sequence).logits[0, half:-1]
        with cache_writes(which, keys, values):
            found = which(sequence).logits[0, half:-1]
        kl.append(compare(found, expected, sequence[0, half + 1 :]).kl)
    return float(torch.cat(kl).mean())
