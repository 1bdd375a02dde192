"""Elementwise functions of one tensor, and selections.

The vector unit works in float32; where no float32 tensor is involved it rounds what it puts into dest to bfloat16.
"""

from typing import Callable

import torch

from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.goldens.activations import PLAIN, activate, wide
from models.common.golden_mesh.registry import golden

_UNARY = {  # ttnn op -> UnaryOpType
    "abs": "ABS",
    "ceil": "CEIL",
    "cos": "COS",
    "eqz": "EQZ",
    "erf": "ERF",
    "exp": "EXP",
    "exp2": "EXP2",
    "expm1": "EXPM1",
    "floor": "FLOOR",
    "gez": "GEZ",
    "gtz": "GTZ",
    "hardsigmoid": "HARDSIGMOID",
    "hardswish": "HARDSWISH",
    "identity": "IDENTITY",
    "lez": "LEZ",
    "log": "LOG",
    "log10": "LOG10",
    "log1p": "LOG1P",
    "log2": "LOG2",
    "log_sigmoid": "LOGSIGMOID",
    "logical_not": "LOGICAL_NOT_UNARY",
    "ltz": "LTZ",
    "mish": "MISH",
    "neg": "NEG",
    "nez": "NEZ",
    "reciprocal": "RECIP",
    "relu": "RELU",
    "relu6": "RELU6",
    "rsqrt": "RSQRT",
    "sigmoid": "SIGMOID",
    "sigmoid_accurate": "SIGMOID",
    "sign": "SIGN",
    "silu": "SILU",
    "sin": "SIN",
    "sqrt": "SQRT",
    "square": "SQUARE",
    "swish": "SILU",
    "tan": "TAN",
    "tanh": "TANH",
}


def _unary(function: Callable) -> Callable:
    def op(input_tensor, fast_and_approximate_mode=False, *, mode=None, vector_mode=4):
        return as_dest(function(wide(input_tensor)), input_tensor)

    return op


def as_dest(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What dest holds of a result of `x`."""
    return result.bfloat16() if x.dtype == torch.bfloat16 and result.is_floating_point() else result


for _name, _type in _UNARY.items():
    golden(f"ttnn.{_name}")(_unary(PLAIN[_type]))


@golden("ttnn.gelu")
def gelu(input_tensor, *, variant=None, fast_and_approximate_mode=False):
    """Exact, or by tanh where the variant says so. The table of FastLut is off by up to one per cent: not golden."""
    name = getattr(variant, "name", "Accurate")
    if fast_and_approximate_mode or name not in ("Accurate", "Tanh"):
        raise GoldenError(f"ttnn.gelu by a table ({name}) has no golden: use GeluVariant.Accurate or GeluVariant.Tanh")
    return as_dest(PLAIN["GELU_TANH" if name == "Tanh" else "GELU"](wide(input_tensor)), input_tensor)


@golden("ttnn.where")
def where(predicate, true_value, false_value):
    return torch.where(predicate != 0, wide(true_value), wide(false_value))


@golden("ttnn.clamp", "ttnn.clip")
def clamp(input_tensor, min=None, max=None):
    return torch.clamp(wide(input_tensor), wide(min), wide(max))


@golden("ttnn.unary_chain")
def unary_chain(input_tensor, ops_chain):
    x = wide(input_tensor)
    for function in ops_chain:
        x = wide(as_dest(activate(x, function), input_tensor))
    return x
