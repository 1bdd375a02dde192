"""Hugging Face's model with weights in a recipe's formats, as the chips hold them. Arithmetic stays float32."""

from copy import deepcopy
from typing import Optional

import torch
from golden_mesh.rounding import round_to
from torch.nn import Module
from transformers import PreTrainedModel

from models.demos.qwen25_7b.config import DecoderConfig, Recipe
from models.demos.qwen25_7b.config.recipe import Format
from models.demos.qwen25_7b.config.rope import Rope
from models.demos.qwen25_7b.plans.rotary_pairs import key_divisors, to_half_split, to_interleaved


def round_model(model: PreTrainedModel, recipe: Recipe) -> None:
    """Round the weights of layers and LM head in place. The embedding is bfloat16 in every recipe."""
    layers, config = model.model.layers, DecoderConfig.from_dict(model.config.to_dict())
    for i, layer in enumerate(layers):
        layers[i] = rounded_layer(layer, config.centering_rope(i), *formats_of(recipe, i))
    # A new parameter: the LM head may share the embedding's.
    model.lm_head.weight = _frozen(in_format(model.lm_head.weight, recipe.lm_head.format))


def formats_of(recipe: Recipe, layer: int) -> tuple[Format, Format, Format]:
    """Of attention, gate and up, down."""
    of_layer = recipe.of_layer(layer)
    return of_layer.attention.format, of_layer.mlp_in.format, of_layer.mlp_out.format


def rounded_layer(
    layer: Module, rope: Optional[Rope], attention_format: Format, mlp_in: Format, mlp_out: Format
) -> Module:
    """Return the layer with weights as the chips hold them.

    A block of 16 values lies along the outputs. q and k are in rotary pairs, with outliers scaled.
    rope: DecoderConfig.centering_rope of the layer.
    The copy shares the weights that the formats do not change.
    """
    layer = deepcopy(layer, {id(parameter): parameter for parameter in layer.parameters()})
    attention, mlp = layer.self_attn, layer.mlp
    heads = attention.config.num_key_value_heads
    divisors = [torch.ones(attention.head_dim)] * heads
    if attention.k_proj.bias is not None:
        biases = attention.k_proj.bias.split(attention.head_dim)
        divisors = [key_divisors(bias, rope) for bias in biases]
    group = attention.num_key_value_groups
    _round_heads(attention.k_proj, [1 / of_head for of_head in divisors], attention_format)
    _round_heads(attention.q_proj, [of_head for of_head in divisors for _ in range(group)], attention_format)
    for projection, format in (
        (attention.v_proj, attention_format),
        (attention.o_proj, attention_format),
        (mlp.gate_proj, mlp_in),
        (mlp.up_proj, mlp_in),
        (mlp.down_proj, mlp_out),
    ):
        if format != "bfloat16":  # the given weights are bfloat16
            projection.weight = _frozen(in_format(projection.weight, format))
    return layer


def _frozen(values: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(values, requires_grad=False)


def _round_heads(projection: torch.nn.Linear, factors: list[torch.Tensor], format: Format) -> None:
    """Round q_proj or k_proj in place. Each head's rows are multiplied by its factors meanwhile."""
    size = len(factors[0])
    rows = [
        to_half_split(in_format(to_interleaved(_bf16(head * f[:, None]), dim=0), format), dim=0) / f[:, None]
        for head, f in zip(projection.weight.split(size), factors)
    ]
    projection.weight = _frozen(torch.cat(rows))
    if projection.bias is not None:
        bias = [_bf16(head * f) / f for head, f in zip(projection.bias.split(size), factors)]
        projection.bias = _frozen(torch.cat(bias))


def in_format(weight: torch.Tensor, format: Format) -> torch.Tensor:
    """Round weight [out, in] as ttnn packs its transpose. Returns float32."""
    if format == "bfloat16":
        return _bf16(weight)
    return round_to(weight.detach().t().contiguous(), format).float().t()


def _bf16(x: torch.Tensor) -> torch.Tensor:
    return x.detach().bfloat16().float()
