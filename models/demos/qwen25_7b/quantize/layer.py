"""One decoder layer, rounded: gate and up to 4 bits by error-compensated rounding, o and down fitted anew in 8 bits.

Two residual streams go through the layers side by side: the model's own, and that of the model with rounded weights. Each
weight is rounded for the inputs that it will really get, and o and down are fitted so that the second stream comes back to
the first: they take up their own layer's errors and what is left of those before.
"""

from typing import Iterator, NamedTuple

import torch
from torch.nn.functional import silu
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from models.demos.qwen25_7b.quantize.compensated import compensated, hessian
from models.demos.qwen25_7b.quantize.formats import nearest_codes, rounded
from models.demos.qwen25_7b.quantize.refit import refitted

TRUST_O, TRUST_DOWN = 3.0, 3.0  # how far the calibration text may move a weight, see refit.py
AT_ONCE = 4  # sequences in attention: bounds the memory of its scores and heads


class Streams(NamedTuple):
    """The residual stream between two layers, [sequences, tokens, hidden] in float32."""

    exact: torch.Tensor  # the model's own
    rounded: torch.Tensor  # with rounded weights in the layers before


class Projections(NamedTuple):
    """[in, out] each, in float32."""

    o: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def of(cls, layer: Qwen2DecoderLayer) -> "Projections":
        modules = layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj
        return cls(*(module.weight.t() for module in modules))


Rotation = tuple[torch.Tensor, torch.Tensor]  # cos and sin, as Hugging Face's rotary embedding gives them


@torch.no_grad()
def rounded_layer(
    layer: Qwen2DecoderLayer, streams: Streams, rotation: Rotation, groups: frozenset[str]
) -> tuple[Projections, Streams]:
    """The layer's projections in block floats, and the streams behind it.

    groups: which of gate and up are to be in bfloat4_b; the rest is in bfloat8_b.
    """
    exact, x = (stream.flatten(0, 1) for stream in streams)  # [tokens, hidden]
    o, *mlp = Projections.of(layer)

    heads_exact, heads = (_heads(layer, stream, rotation) for stream in streams)
    exact = exact + heads_exact @ o
    del heads_exact
    # Errors count relative to the stream: the first token of a text is a thousand times louder than the others.
    counts = exact.pow(2).mean(1, keepdim=True).rsqrt()
    o = rounded(refitted(o, heads * counts, (exact - x - heads @ o) * counts, TRUST_O), "bfloat8_b")
    x = x + heads @ o
    del heads

    gate, up, down = arranged(*mlp)
    norm = layer.post_attention_layernorm
    inputs_exact, inputs = norm(exact), norm(x)
    exact = exact + product(inputs_exact, gate, up) @ down
    del inputs_exact
    gate, up = rounded_inputs(gate, up, inputs, groups)
    hidden = product(inputs, gate, up)
    missing = (exact - x - hidden @ down) * counts
    down = rounded(refitted(down, hidden * counts, missing, TRUST_DOWN), "bfloat8_b")
    x = x + hidden @ down
    return Projections(o, gate, up, down), Streams(*(stream.view(streams.exact.shape) for stream in (exact, x)))


def arranged(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same MLP, its columns in the order of their size in gate, each as large in up; gate, up [hidden, mlp], down [mlp, hidden].

    Neighbours share an exponent, so they should be of a size. A column of up may be scaled if down's row undoes it, and
    columns may change places if down's rows do so, too: both change nothing.
    """
    sizes = gate.norm(dim=0)
    scale = sizes / up.norm(dim=0)
    scale = torch.where(scale.isfinite() & (scale > 0), scale, 1)  # a column of zeros has no size
    order = sizes.argsort(stable=True)
    return gate[:, order], (up * scale)[:, order], (down / scale[:, None])[order]


def product(inputs: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """[tokens, mlp]: what down is given."""
    return silu(inputs @ gate).mul_(inputs @ up)


def rounded_inputs(
    gate: torch.Tensor, up: torch.Tensor, inputs: torch.Tensor, groups: frozenset[str]
) -> tuple[torch.Tensor, ...]:
    """gate and up, [hidden, mlp] each, those of `groups` in bfloat4_b, at once: they have the same inputs."""
    weights = {"gate": gate, "up": up}
    chosen = [weights[name] for name in weights if name in groups]
    codes = compensated(torch.cat(chosen, dim=1), hessian(inputs), nearest_codes)
    found: Iterator[torch.Tensor] = iter(codes.split(gate.shape[1], dim=1))
    return tuple(next(found) if name in groups else rounded(weights[name], "bfloat8_b") for name in weights)


def _heads(layer: Qwen2DecoderLayer, stream: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """[tokens, heads * head_dim]: what o is given for a stream [sequences, tokens, hidden]."""
    found = []
    hook = layer.self_attn.o_proj.register_forward_pre_hook(lambda module, inputs: found.append(inputs[0]))
    try:
        for part in stream.split(AT_ONCE):
            layer.self_attn(
                hidden_states=layer.input_layernorm(part), position_embeddings=rotation, attention_mask=None
            )
    finally:
        hook.remove()
    return torch.cat(found).flatten(0, 1)
