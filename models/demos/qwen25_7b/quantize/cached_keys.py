"""Attention over a cache whose rows are as chips write them, in Hugging Face's model; see keys.py for what it is for."""

from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Callable, Iterator, Optional

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen2ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from models.common.golden_mesh.arithmetic.engine import round_away
from models.common.golden_mesh.rounding import to_block_float
from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.evaluation.score import compare
from models.demos.qwen25_7b.reference.hf import hf_model, random_weights, residual_stream
from models.demos.qwen25_7b.weights import key_divisors, to_half_split, to_interleaved
from models.demos.qwen25_7b.weights.equalise import LOUDEST, matching_query, quiet_key

Written = Callable[[torch.Tensor], torch.Tensor]  # rows [..., head_dim], keys in rotary pairs -> what the cache holds
NAME = "with a chip's cache"  # of the attention function, for transformers
AWAY = 1 + 2.0**-12  # moves a bfloat16's ties away from zero, as a chip's packer does, and nothing else
DRAWS = 6  # of random weights
SLIM = replace(QWEN25_7B, hidden_size=768, num_hidden_layers=1, vocab_size=512, intermediate_size=32,
               bos_token_id=None, eos_token_ids=())  # fmt: skip


def bf16(rows: torch.Tensor) -> torch.Tensor:
    return rows.bfloat16().float()


def by_prefill(rows: torch.Tensor) -> torch.Tensor:
    """Typecast to bfloat8_b: 0.28 % larger in the mean."""
    return to_block_float(bf16(rows) * AWAY, bits=7).float()


def by_decode(rows: torch.Tensor) -> torch.Tensor:
    """paged_update_cache packs twice: 0.53 % larger."""
    return to_block_float(round_away(bf16(rows), 7) * AWAY, bits=7).float()


def by_both(rows: torch.Tensor, decode: Written = by_decode) -> torch.Tensor:
    """The first half of a text [..., tokens, head_dim] as a prompt, the rest token by token."""
    prompt, answer = rows.tensor_split(2, dim=-2)
    return torch.cat((by_prefill(prompt), decode(answer)), dim=-2)


@contextmanager
def cache_written(model: torch.nn.Module, keys: Written, values: Optional[Written] = None) -> Iterator[None]:
    """Inside, the model's attention reads what the cache holds. values: default as keys."""

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


def equalised(model: Qwen2ForCausalLM) -> Qwen2ForCausalLM:
    """A copy with weights and biases as the chips get them, in bfloat16."""
    model = deepcopy(model)
    for layer in model.model.layers:
        size, attention = layer.self_attn.head_dim, layer.self_attn
        divisors = [key_divisors(head) for head in attention.k_proj.bias.split(size)]
        groups = attention.q_proj.bias.numel() // attention.k_proj.bias.numel()
        for_queries = [d for d in divisors for _ in range(groups)]
        for projection, scale, factors in (
            (attention.k_proj, quiet_key, divisors),
            (attention.q_proj, matching_query, for_queries),
        ):
            for parameter in (projection.weight, projection.bias):
                heads = zip(parameter.split(size), factors, strict=True)
                parameter.data = torch.cat([bf16(scale(head, factor)) for head, factor in heads])
    return model


@torch.no_grad()
def layer_rows(model: Qwen2ForCausalLM, ids: torch.Tensor) -> list[tuple[str, ...]]:
    """A row a layer: its name, its longest pair of K bias, loud pairs, and the three errors of attention's result."""
    inputs: list[dict] = []
    hooks = [
        layer.self_attn.register_forward_pre_hook(lambda module, _, given: inputs.append(given), with_kwargs=True)
        for layer in model.model.layers
    ]
    model.model(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    quiet = equalised(model)
    return [_row(f"{i}", i, model, quiet, given) for i, given in enumerate(inputs)]


@torch.no_grad()
def random_rows() -> tuple[str, ...]:
    """The same of random weights with the 7B's heads and K bias, mean of DRAWS."""
    rows, biases = [], []
    for seed in range(DRAWS):
        model = hf_model(SLIM, random_weights(SLIM, seed))
        x = residual_stream(SLIM, 2, 256, seed=seed)
        given = dict(
            hidden_states=bf16(model.model.layers[0].input_layernorm(x)),
            position_embeddings=model.model.rotary_emb(x, torch.arange(256)[None]),
            attention_mask=None,
        )
        rows.append(_errors(0, model, equalised(model), given))
        biases.append(model.model.layers[0].self_attn.k_proj.bias)
    means = torch.tensor(rows).mean(0).tolist()
    return (
        f"random weights, {DRAWS} draws",
        *_loudness(torch.cat(biases), SLIM.head_dim),
        *(f"{error:.4f}" for error in means),
    )


def _row(name: str, i: int, model: Qwen2ForCausalLM, quiet: Qwen2ForCausalLM, given: dict) -> tuple[str, ...]:
    attention = model.model.layers[i].self_attn
    errors = _errors(i, model, quiet, given)
    return name, *_loudness(attention.k_proj.bias, attention.head_dim), *(f"{error:.4f}" for error in errors)


def _loudness(bias: torch.Tensor, head_dim: int) -> tuple[str, str]:
    lengths = bias.view(-1, 2, head_dim // 2).norm(dim=1)
    return f"{lengths.max():.0f}", f"{int((lengths > LOUDEST).sum())} of {lengths.numel()}"


def _errors(i: int, model: Qwen2ForCausalLM, quiet: Qwen2ForCausalLM, given: dict) -> list[float]:
    """Of layer i's attention: with a bfloat16 cache, with an 8-bit one, and with that and equalised keys."""
    given = given | dict(past_key_values=None)
    exact = model.model.layers[i].self_attn(**given)[0]
    errors = []
    for which, written in ((model, bf16), (model, by_prefill), (quiet, by_prefill)):
        with cache_written(which, written):
            found = which.model.layers[i].self_attn(**given)[0]
        errors.append(float((found - exact).norm() / exact.norm()))
    return errors


def drift_rows(model: Qwen2ForCausalLM, ids: torch.Tensor) -> list[tuple[str, str]]:
    """KL over the second half of each text, which decode writes, after a first half that prefill wrote."""
    quiet = equalised(model)

    def smaller(factor: float) -> Written:
        return lambda rows: by_both(rows * factor)

    def agreeing(rows: torch.Tensor) -> torch.Tensor:
        return by_both(rows, lambda answer: by_decode(answer) * 1.0028 / 1.0053)

    kinds = (
        ("bfloat16", quiet, bf16, None),
        ("8-bit, keys as they were, prefill's rows and decode's", model, by_both, None),
        ("8-bit, equalised, prefill's rows and decode's: as it is on a chip", quiet, by_both, None),
        ("the same, all rows as prefill writes them", quiet, by_prefill, None),
        ("the same, decode's rows made as large as prefill's", quiet, agreeing, None),
        ("the same, keys 0.4 % smaller by a factor in Wk", quiet, smaller(1 / 1.004), by_both),
        ("no rounding, decode's rows 0.25 % larger than prefill's", model, _larger, None),
    )
    rows = []
    for name, which, keys, values in kinds:
        kl = _second_half_kl(model, which, keys, values, ids)
        rows.append((name, f"{kl:.1e}"))
    return rows


def _larger(rows: torch.Tensor) -> torch.Tensor:
    prompt, answer = rows.tensor_split(2, dim=-2)
    return torch.cat((prompt, answer * 1.0025), dim=-2)


@torch.no_grad()
def _second_half_kl(
    model: Qwen2ForCausalLM, which: Qwen2ForCausalLM, keys: Written, values: Optional[Written], ids: torch.Tensor
) -> float:
    """Of what follows each token of the second halves, by `which` with such a cache, from what the model says itself."""
    kl = []
    for sequence in ids.split(1):
        half = sequence.shape[1] // 2
        expected = model(sequence).logits[0, half:-1]
        with cache_written(which, keys, values):
            found = which(sequence).logits[0, half:-1]
        kl.append(compare(found, expected, sequence[0, half + 1 :]).kl)
    return float(torch.cat(kl).mean())
