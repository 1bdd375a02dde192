"""One decoder layer, rounded: 4-bit weights with compensated errors, and down refitted.

Two residual streams go through the layers: the model's own, and that of the model with rounded weights. Gate and up are
rounded for the inputs of the second stream. Down is fitted so that the second stream returns to the first.
This corrects errors of its layer and of earlier layers. Attention is not changed.
"""

from typing import NamedTuple

import torch
from torch.nn import Module
from torch.nn.functional import silu

from models.demos.qwen25_7b.config import Recipe

from .learned import learned_inputs
from .rounding import compensated, hessian, nearest_codes, refitted, rounded

FOUR_BITS = "bfloat4_b"
FULL_TRUST = 6144  # tokens of text. More of them may move down further, in proportion (`refitted`)
AT_ONCE = 4  # sequences in attention: bounds the memory of its scores and heads


class Streams(NamedTuple):
    """The residual stream between two layers, [sequences, tokens, hidden] in float32."""

    exact: torch.Tensor  # the model's own
    rounded: torch.Tensor  # with rounded weights in the layers before


class Mlp(NamedTuple):
    """A layer's projections in float32."""

    gate: torch.Tensor  # [hidden, mlp]
    up: torch.Tensor  # [hidden, mlp]
    down: torch.Tensor  # [mlp, hidden]

    @classmethod
    def of(cls, layer: Module) -> "Mlp":
        return cls(*(module.weight.t() for module in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)))


Rotation = tuple[torch.Tensor, torch.Tensor]  # Hugging Face's cos and sin


@torch.no_grad()
def rounded_layer(
    layer: Module, streams: Streams, rotation: Rotation, recipe: Recipe, steps: int = 0
) -> tuple[Mlp, Streams]:
    """The layer's projections in values of their formats, and the streams after it.

    recipe: the layer's. steps: of learned rounding, for gate and up in 4 bits.
    """
    exact, x = (_after_attention(layer, stream, rotation) for stream in streams)  # [tokens, hidden]
    # Errors count relative to the stream: a text's first token is a thousand times larger than the others.
    token_weights = exact.pow(2).mean(1, keepdim=True).rsqrt()
    mlp = arranged(Mlp.of(layer))
    inputs_exact, inputs = (layer.post_attention_layernorm(stream) for stream in (exact, x))
    exact = exact + hidden(inputs_exact, mlp) @ mlp.down
    mlp, before = rounded_inputs(mlp, inputs, recipe.mlp_in.format)
    if steps and recipe.mlp_in.format == FOUR_BITS:
        fitted, _ = fitted_down(mlp, inputs, exact - x, token_weights)
        mlp = with_inputs(mlp, learned_inputs(before, fitted, inputs, exact - x, token_weights, steps))
    fitted, down_inputs = fitted_down(mlp, inputs, exact - x, token_weights)
    mlp = mlp._replace(down=rounded_down(fitted, down_inputs * token_weights, recipe.mlp_out.format))
    x = x + down_inputs @ mlp.down
    return mlp, Streams(*(stream.view(streams.exact.shape) for stream in (exact, x)))


def arranged(mlp: Mlp) -> Mlp:
    """The MLP with its columns sorted by their size in gate, and with up's columns scaled to that size.

    Neighbors share an exponent, so they should be of one size. Down's rows are sorted and scaled to undo both exactly,
    for any number of chips.
    """
    sizes = mlp.gate.norm(dim=0)
    scale = sizes / mlp.up.norm(dim=0)
    scale = torch.where(scale.isfinite() & (scale > 0), scale, 1)  # a column of zeros has no size
    order = sizes.argsort(stable=True)
    return Mlp(mlp.gate[:, order], (mlp.up * scale)[:, order], (mlp.down / scale[:, None])[order])


def hidden(inputs: torch.Tensor, mlp: Mlp) -> torch.Tensor:
    """inputs [tokens, hidden] -> [tokens, mlp], the inputs of down."""
    return silu(inputs @ mlp.gate).mul_(inputs @ mlp.up)


def rounded_inputs(mlp: Mlp, inputs: torch.Tensor, format: str) -> tuple[Mlp, torch.Tensor]:
    """The MLP with gate and up in values of `format`, for inputs [tokens, hidden].

    Also gate and up side by side, [hidden, 2 * mlp], just before they were rounded.
    """
    joined = torch.cat((mlp.gate, mlp.up), dim=1)
    if format == FOUR_BITS:
        values, before = compensated(joined, hessian(inputs), nearest_codes)
    else:
        values, before = rounded(joined, format), joined
    return with_inputs(mlp, values), before


def with_inputs(mlp: Mlp, joined: torch.Tensor) -> Mlp:
    """joined: new gate and up side by side."""
    gate, up = joined.chunk(2, dim=1)
    return mlp._replace(gate=gate, up=up)


def fitted_down(
    mlp: Mlp, inputs: torch.Tensor, target: torch.Tensor, token_weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Down [mlp, hidden], fitted so that the MLP gives `target` [tokens, hidden], and its inputs [tokens, mlp].

    inputs: [tokens, hidden], of gate and up. token_weights: [tokens, 1], a factor on a token's error.
    """
    down_inputs = hidden(inputs, mlp)
    missing = (target - down_inputs @ mlp.down).mul_(token_weights)
    trust = max(1, len(inputs) / FULL_TRUST)
    return refitted(mlp.down, down_inputs * token_weights, missing, trust), down_inputs


def rounded_down(fitted: torch.Tensor, down_inputs: torch.Tensor, format: str) -> torch.Tensor:
    """fitted: down [mlp, hidden]. down_inputs: [tokens, mlp], its inputs."""
    if format == FOUR_BITS:
        return compensated(fitted, hessian(down_inputs), nearest_codes)[0]
    return rounded(fitted, format)


def _after_attention(layer: Module, stream: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """[sequences, tokens, hidden] -> [sequences * tokens, hidden], the stream plus attention's output."""
    parts = []
    for part in stream.split(AT_ONCE):
        result, _ = layer.self_attn(
            hidden_states=layer.input_layernorm(part), position_embeddings=rotation, attention_mask=None
        )
        parts.append(part + result)
    return torch.cat(parts).flatten(0, 1)
