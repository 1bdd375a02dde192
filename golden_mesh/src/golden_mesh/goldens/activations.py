"""Elementwise functions by the names of ttnn's UnaryOpType. They are separate ops, and they are fused into other ops.

In silu, sigmoid, gelu, exp2 and mish, torch computes the last few elements of a tensor with other code. An element's
last bit would depend on its position. These functions are therefore built from functions without that effect.
"""

from __future__ import annotations

import math
from typing import Callable

import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic import approximations, engine, special
from golden_mesh.arithmetic.plain import in_float32
from golden_mesh.arithmetic.vector import fast_exp, gelu_by_table, in_bfloat16_dest, log_sigmoid, of_nan
from golden_mesh.errors import GoldenError
from golden_mesh.hazards import meet

_HALF_ROOT, _GELU_SLOPE = 0.7071067811865476, 0.7978845608028654  # sqrt(1/2), sqrt(2/pi)


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + torch.exp(-x))


def _gelu(x: torch.Tensor) -> torch.Tensor:
    # In float32 the tail would be a difference of two numbers near 1. Their last bit depends on the processor.
    exact = x.double()
    return (0.5 * exact * torch.erfc(-exact * _HALF_ROOT)).float()


def _gelu_by_tanh(x: torch.Tensor) -> torch.Tensor:
    exact = x.double()
    bend = torch.tanh(_GELU_SLOPE * (exact + 0.044715 * exact * exact * exact))
    return (0.5 * exact * (1 + bend)).float()


def _between(x: torch.Tensor, least: float, most: float) -> torch.Tensor:
    """NaN is above all numbers."""
    clamped = torch.clamp(x, least, most)
    return clamped.nan_to_num(most) if x.is_floating_point() else clamped


def _nan_beyond(x: torch.Tensor) -> torch.Tensor:
    """A float32 dest holds the bits of a NaN where the lines of `fast_exp` end."""
    return x.masked_fill(x == torch.inf, torch.nan)


def _magnitude(x: torch.Tensor) -> torch.Tensor:
    """A Wormhole's kernel reads a sign and 31 bits, in which -2**31 is a zero."""
    whole = x.is_floating_point() or special.on_blackhole()
    return x if whole else x.masked_fill(x == -1 << 31, 0)


def _above_zero(x: torch.Tensor) -> torch.Tensor:
    """A Blackhole's kernel takes -2**31 for a positive number."""
    return (_magnitude(x) > 0) | (not x.is_floating_point() and (_magnitude(x) == -1 << 31))


def functions(module, names: str) -> dict[str, Callable]:
    """A module's functions by their names."""
    return {name: getattr(module, name) for name in names.split()}


_OF_TORCH = "abs ceil cos erf exp expm1 floor log log10 log1p log2 neg relu rsqrt sign sin sqrt square tan tanh"
PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name.upper(): function for name, function in functions(torch, _OF_TORCH).items()},
    "FAST_EXP": lambda x: _nan_beyond(fast_exp(x)),
    "EQZ": lambda x: _magnitude(x) == 0,
    "EXP2": lambda x: torch.exp(x.double() * math.log(2)).float(),
    "GELU": in_float32(_gelu)(approximations.gelu),
    "GELU_TABLE": gelu_by_table,
    "GELU_TANH": _gelu_by_tanh,
    "GEZ": lambda x: _magnitude(x) >= 0,
    "GTZ": _above_zero,
    "HARDSIGMOID": F.hardsigmoid,
    "HARDSWISH": lambda x: x * F.hardsigmoid(x),
    "IDENTITY": lambda x: x,
    "LEZ": lambda x: x <= 0 if x.is_floating_point() else ~_above_zero(x),
    # the kernel compares bits: -0 is none
    "LOGICAL_NOT_UNARY": lambda x: (x == 0) & ~x.signbit() if x.is_floating_point() else x == 0,
    "LOGSIGMOID": log_sigmoid,
    "LTZ": lambda x: _magnitude(x) < 0,
    "MISH": lambda x: x * special.normal(torch.tanh(torch.log1p(torch.exp(-x.abs())) + x.clamp(min=0))),
    "NEZ": lambda x: _magnitude(x) != 0,
    "RECIP": torch.reciprocal,
    "RELU6": F.relu6,
    "SIGMOID": _sigmoid,
    "SILU": lambda x: x * special.normal(_sigmoid(x)),
}

# Functions of a tensor and the numbers of the activation.
_OF_F = "celu elu hardshrink leaky_relu softshrink threshold"
WITH_NUMBERS: dict[str, Callable[..., torch.Tensor]] = {
    **{f"{name.upper()}_UNARY_SFPU": function for name, function in functions(torch, "add sub mul div").items()},
    **{name.upper(): function for name, function in functions(F, _OF_F).items()},
    "CLAMP_TSS": _between,
    "HARDTANH": _between,
    "POWER": torch.pow,
    "POWER_ITERATIVE": torch.pow,
    "RELU_MAX": lambda x, top: _between(x, 0, top),
    "RELU_MIN": lambda x, least: x.clamp(min=least),
    "RSUB": lambda x, number: number - x,
    "SELU": lambda x, scale, alpha: scale * F.elu(x, alpha),
    "SOFTPLUS": approximations.softplus,
}

# Of these the results are elements of the tensor and numbers.
STORING = {"CLAMP_TSS", "FILL", "HARDTANH", "RELU_MAX", "RELU_MIN", "THRESHOLD"}


def stored(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A result in x's place that is not rounded, as elements of x and numbers: a bfloat16 dest cuts it."""
    return engine.keep(result.float(), engine.BFLOAT16) if x.dtype == torch.bfloat16 else result


# What the kernels have for INT32, and not for UINT32, which is torch's int64 here.
_OF_INTEGERS = set(
    "ADD_UNARY_SFPU CLAMP_TSS EQZ GEZ GTZ HARDTANH IDENTITY LEZ LOGICAL_NOT_UNARY LTZ NEG NEZ RELU RELU_MAX RELU_MIN "
    "RSUB SQUARE SUB_UNARY_SFPU".split()
)
_OF_SIGNED = {"GEZ", "GTZ", "LEZ", "LTZ", "NEG"}

# Strings of ttnn that differ from the enum's names.
STRINGS = {"swish": "SILU", "gelu_approx": "GELU_TABLE", "reciprocal": "RECIP", "logical_not": "LOGICAL_NOT_UNARY"}

# The parameter of these is an accuracy or a vector mode. It changes no exact value.
_PARAMETER_IS_ACCURACY = set("EXP FAST_EXP GELU GELU_TABLE LOG LOG10 LOG2 RSQRT SIGMOID SQRT TANH ERF".split())


def wide(value):
    """Convert a float tensor to float32. Integer tensors and numbers stay as they are."""
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def beside_integers(value):
    """A number as a kernel of integers has it: the library hands it over as a float32, and it is cut. Tensors stay."""
    return value if isinstance(value, torch.Tensor) else int(torch.tensor(float(value)))


Activation = "str | ttnn.UnaryOpType | ttnn.UnaryWithParam | tuple[ttnn.UnaryOpType, float]"


def function(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return the function of a UnaryOpType's name of `x`, as dest holds it. A bfloat16 `x` has a bfloat16 dest."""
    kernel = in_bfloat16_dest(name) if x.dtype == torch.bfloat16 else None
    if kernel is not None:
        return kernel(x)
    result = PLAIN[name](wide(x))
    if result.is_floating_point() and math.isnan(x.sum()):
        result = result.masked_fill(x.isnan(), of_nan(name, wide=True))
    return result.bfloat16() if x.dtype == torch.bfloat16 and result.is_floating_point() else result


def activate(x: torch.Tensor, activation: Activation | None, dtype: ttnn.DataType | None = None) -> torch.Tensor:
    """Apply an activation to `x`, as dest holds it. A bfloat16 `x` has a bfloat16 dest. dtype: of integers.

    Its form is one of ttnn's: "silu", UnaryOpType.SILU, UnaryWithParam(UnaryOpType.SILU), or type and parameter.
    """
    if activation is None or activation == "":
        return x
    params = []
    if isinstance(activation, str):
        name = STRINGS.get(activation.lower(), activation.upper())
    elif isinstance(activation, ttnn.UnaryOpType):
        name = activation.name
    elif isinstance(activation, tuple):
        name, params = activation[0].name, list(activation[1:])
    else:
        name, params = activation.op_type.name, _parameters(activation)
    if name == "EXP" and params[:1] == [1]:
        name = "FAST_EXP"
    if name == "GELU" and not isinstance(activation, str) and params[:1] != [0]:
        name = "GELU_TABLE"  # the kernels' default
    if not x.is_floating_point():
        unsigned = name in _OF_SIGNED or name == "RELU" and dtype == ttnn.uint16
        if name not in _OF_INTEGERS or unsigned and (x.dtype == torch.int64 or dtype == ttnn.uint16):
            meet("integers in a kernel of floats", f"the activation {name}", f"a tensor of {x.dtype}")
        if name == "RELU":
            return x.masked_fill((x.long() & 1 << 31) != 0, 0)  # UINT32's last bit counts as a sign, too
        params = [beside_integers(number) for number in params]
    if name in WITH_NUMBERS and params:
        result = WITH_NUMBERS[name](x if name == "SOFTPLUS" else wide(x), *params)
        result = stored(result, x) if name in STORING else result
        return result.to(x.dtype) if x.is_floating_point() else result
    if name not in PLAIN or (params and name not in _PARAMETER_IS_ACCURACY):
        what = f"no golden for the activation {name}{params or ''}"
        raise GoldenError(f"{what}: call the function as an op after this one")
    return function(name, x)


def _parameters(activation: ttnn.UnaryWithParam) -> list[float]:
    """Return the numbers of an activation. ttnn 0.77.0 has them in its text only."""
    if hasattr(activation, "params"):
        return list(activation.params)
    _, _, numbers = repr(activation).partition("params=[")
    return [float(number) for number in numbers.rstrip("])").split(",") if number]


def activate_all(x: torch.Tensor, activations, dtype: ttnn.DataType | None = None) -> torch.Tensor:
    """Apply the activations in the list's order."""
    for activation in activations or ():
        x = activate(x, activation, dtype)
    return x
