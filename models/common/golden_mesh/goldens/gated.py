"""Gated linear units: the first half of the last dimension times an activation of the second. Several ops a call."""

from functools import partial
from typing import Callable

import torch
import torch.nn.functional as F

from models.common.golden_mesh.goldens.activations import activate, wide
from models.common.golden_mesh.goldens.eltwise_unary import as_dest, gelu
from models.common.golden_mesh.registry import golden


def _gated(x: torch.Tensor, dim: int, activation: Callable, out) -> torch.Tensor:
    """x [..., S, 2 * W] -> [..., S padded to a tile, W]. The activation is an op of its own: its result is rounded.

    What fills the last tile's rows is x's own padding, gated: here it is zeros.
    """
    values, gate = x.chunk(2, dim)
    result = as_dest(wide(values) * wide(as_dest(activation(wide(gate)), x)), x)
    return F.pad(result, (0, 0, 0, out.shape[-2] - result.shape[-2]))


def _glu(name: str) -> Callable:
    def op(input_tensor, dim=-1, *, out):
        return _gated(input_tensor, dim, partial(activate, activation=name), out)

    return op


golden("ttnn.glu")(_glu("sigmoid"))
golden("ttnn.reglu")(_glu("relu"))
golden("ttnn.swiglu")(_glu("silu"))


@golden("ttnn.geglu")
def geglu(input_tensor, dim=-1, *, variant=None, out):
    return _gated(input_tensor, dim, partial(gelu, variant=variant), out)
