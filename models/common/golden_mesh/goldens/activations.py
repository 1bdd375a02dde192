"""Elementwise functions by the names of ttnn's UnaryOpType: ops of their own, and fused into other ops."""

from __future__ import annotations

from typing import Callable

import torch
import torch.nn.functional as F
import ttnn

from models.common.golden_mesh.errors import GoldenError

PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ABS": torch.abs,
    "CEIL": torch.ceil,
    "COS": torch.cos,
    "EQZ": lambda x: x == 0,
    "ERF": torch.erf,
    "EXP": torch.exp,
    "EXP2": torch.exp2,
    "EXPM1": torch.expm1,
    "FLOOR": torch.floor,
    "GELU": F.gelu,
    "GELU_TANH": lambda x: F.gelu(x, approximate="tanh"),
    "GEZ": lambda x: x >= 0,
    "GTZ": lambda x: x > 0,
    "HARDSIGMOID": F.hardsigmoid,
    "HARDSWISH": F.hardswish,
    "IDENTITY": lambda x: x,
    "LEZ": lambda x: x <= 0,
    "LOG": torch.log,
    "LOG10": torch.log10,
    "LOG1P": torch.log1p,
    "LOG2": torch.log2,
    "LOGICAL_NOT_UNARY": lambda x: x == 0,
    "LOGSIGMOID": F.logsigmoid,
    "LTZ": lambda x: x < 0,
    "MISH": F.mish,
    "NEG": torch.neg,
    "NEZ": lambda x: x != 0,
    "RECIP": torch.reciprocal,
    "RELU": torch.relu,
    "RELU6": F.relu6,
    "RSQRT": torch.rsqrt,
    "SIGMOID": torch.sigmoid,
    "SIGN": torch.sign,
    "SILU": F.silu,
    "SIN": torch.sin,
    "SQRT": torch.sqrt,
    "SQUARE": torch.square,
    "TAN": torch.tan,
    "TANH": torch.tanh,
}

# Names that ttnn takes as a string where they differ from the enum's.
_STRINGS = {"swish": "SILU", "gelu_approx": "GELU_TANH", "reciprocal": "RECIP", "logical_not": "LOGICAL_NOT_UNARY"}

# These take an accuracy or a vector mode as their parameter: how the value is computed, not what it is.
_PARAMETER_IS_ACCURACY = {"EXP", "GELU", "LOG", "LOG10", "LOG2", "RSQRT", "SIGMOID", "SQRT", "TANH", "ERF"}


def wide(value):
    """Floats as float32; integer tensors and numbers as they are."""
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


Activation = "str | ttnn.UnaryOpType | ttnn.UnaryWithParam"


def activate(x: torch.Tensor, activation: Activation | None) -> torch.Tensor:
    """The activation of float `x`, as ttnn spells it: "silu", UnaryOpType.SILU or UnaryWithParam(UnaryOpType.SILU)."""
    if activation is None or activation == "":
        return x
    params = []
    if isinstance(activation, str):
        name = _STRINGS.get(activation.lower(), activation.upper())
    elif isinstance(activation, ttnn.UnaryOpType):
        name = activation.name
    else:
        name, params = activation.op_type.name, list(activation.params)
    if name not in PLAIN or (params and name not in _PARAMETER_IS_ACCURACY):
        raise GoldenError(f"no golden for the activation {name}{params or ''}: add it to goldens/activations.py")
    return PLAIN[name](x)


def activate_all(x: torch.Tensor, activations) -> torch.Tensor:
    """A list of activations, the first one first."""
    for activation in activations or ():
        x = activate(x, activation)
    return x
