"""Elementwise functions of several tensors beside the binary ops that take activations: a line of torch each."""

from typing import Callable

import torch

from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.goldens.activations import wide
from models.common.golden_mesh.goldens.eltwise_binary import Operand, compute
from models.common.golden_mesh.goldens.eltwise_unary import as_dest
from models.common.golden_mesh.registry import golden

_NEXT = 1.19209e-7  # what ttnn takes for a Wormhole's smallest step at 1


def _in_float32(function: Callable, *operands: Operand) -> torch.Tensor:
    """function of the operands in float32 (integers as they are), rounded as dest holds it. Numbers are not rounded."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    widest = next((x for x in tensors if x.dtype == torch.float32), tensors[0])
    return as_dest(function(*(wide(x) for x in operands)), widest)


@golden("ttnn.addalpha")
def addalpha(input_tensor_a, input_tensor_b, alpha):
    return _in_float32(lambda a, b: a + alpha * b, input_tensor_a, input_tensor_b)


@golden("ttnn.subalpha")
def subalpha(input_tensor_a, input_tensor_b, alpha):
    return _in_float32(lambda a, b: a - alpha * b, input_tensor_a, input_tensor_b)


@golden("ttnn.atan2")
def atan2(input_tensor_a, input_tensor_b):
    return _in_float32(lambda a, b: torch.atan2(a.double(), b.double()).float(), input_tensor_a, input_tensor_b)


@golden("ttnn.hypot")
def hypot(input_tensor_a, input_tensor_b):
    return _in_float32(lambda a, b: torch.hypot(a.double(), b.double()).float(), input_tensor_a, input_tensor_b)


@golden("ttnn.isclose")
def isclose(input_tensor_a, input_tensor_b, *, rtol=1e-5, atol=1e-8, equal_nan=False):
    return torch.isclose(wide(input_tensor_a), wide(input_tensor_b), rtol, atol, equal_nan)


@golden("ttnn.nextafter")
def nextafter(input_tensor_a, input_tensor_b):
    """a moved by 2**-23 away from b, as the library makes it of other ops: not the float beside a, which torch gives."""
    above, below = (compute(f, input_tensor_a, _NEXT, (), (), ()) for f in (torch.add, torch.sub))
    a, b = wide(input_tensor_a), wide(input_tensor_b)
    return torch.where(a < b, wide(below), torch.where(a > b, wide(above), a))


@golden("ttnn.div_no_nan")
def div_no_nan(input_tensor_a, input_tensor_b=None, *, value=None):
    """a / b, and 0 where b is 0."""
    other = value if input_tensor_b is None else input_tensor_b
    return _in_float32(_div_no_nan, input_tensor_a, other)


def _div_no_nan(a: torch.Tensor, b: Operand) -> torch.Tensor:
    return torch.where(torch.as_tensor(b == 0), 0.0, a / b)


@golden("ttnn.floor_div")
def floor_div(input_tensor_a, input_tensor_b=None, *, value=None):
    other = value if input_tensor_b is None else input_tensor_b
    return _in_float32(lambda a, b: torch.floor(a / b), input_tensor_a, other)


@golden("ttnn.fmod")
def fmod(input_tensor_a, input_tensor_b=None, *, scalar=None):
    """What is left of a, of a's sign."""
    return _in_float32(torch.fmod, input_tensor_a, scalar if input_tensor_b is None else input_tensor_b)


@golden("ttnn.addcmul")
def addcmul(input_a, input_b, input_c, *, value=1.0):
    """a + value * b * c"""
    return _in_float32(lambda a, b, c: a + value * b * c, input_a, input_b, input_c)


@golden("ttnn.addcdiv")
def addcdiv(input_a, input_b, input_c, *, value=1.0):
    """a + value * b / c"""
    return _in_float32(lambda a, b, c: a + value * b / c, input_a, input_b, input_c)


@golden("ttnn.lerp")
def lerp(input, end, weight):
    """input + weight * (end - input)"""
    return _in_float32(lambda a, b, w: a + w * (b - a), input, end, weight)


@golden("ttnn.mac")
def mac(input_tensor_a, input_tensor_b, input_tensor_c):
    """a * b + c, three tensors. (The overloads with numbers name them otherwise: give those by position.)"""
    return _in_float32(lambda a, b, c: a * b + c, input_tensor_a, input_tensor_b, input_tensor_c)


@golden("ttnn.snake_beta")
def snake_beta(input_tensor, alpha, beta):
    """x + sin(alpha * x)^2 / beta"""
    return _in_float32(lambda x, a, b: x + torch.sin(a * x) ** 2 / b, input_tensor, alpha, beta)


@golden("ttnn.clamped_silu_glu")
def clamped_silu_glu(gate, up, limit):
    """silu(gate, at most limit) * up, within -limit and limit"""

    def function(g, u):
        g = g.clamp(max=limit)
        return g / (1 + torch.exp(-g)) * u.clamp(-limit, limit)

    return _in_float32(function, gate, up)


@golden("ttnn.prelu")
def prelu(input_tensor_a, weight):
    """x, or weight * x where x is negative. weight: a number, a list of one, or a tensor with one a channel (dim 1)."""
    if isinstance(weight, (list, tuple)):
        if len(weight) != 1:
            raise GoldenError(f"ttnn.prelu with a list of {len(weight)} weights has no golden: give a tensor")
        weight = weight[0]
    elif isinstance(weight, torch.Tensor):
        weight = weight.reshape(-1, *[1] * (input_tensor_a.dim() - 2))
    return _in_float32(lambda x, w: torch.where(x < 0, w * x, x), input_tensor_a, weight)


@golden("ttnn.polyval")
def polyval(input_tensor_a, coeffs):
    """The polynomial of which coeffs has the highest power's coefficient first."""

    def function(x):
        result = torch.zeros_like(x)
        for coefficient in coeffs:
            result = result * x + coefficient
        return result

    return _in_float32(function, input_tensor_a)


@golden("ttnn.outer")
def outer(input_tensor_a, input_tensor_b):
    """Every element of a's last dimension times every one of b's: [..., N], [..., M] -> [..., N, M]."""
    return _in_float32(lambda a, b: a.unsqueeze(-1) * b.unsqueeze(-2), input_tensor_a, input_tensor_b)


_REDUCTIONS = {"NONE": lambda x: x, "SUM": torch.sum, "MEAN": torch.mean}


@golden("ttnn.l1_loss")
def l1_loss(input_reference, input_prediction, *, reduction=None):
    reduce = _REDUCTIONS[getattr(reduction, "name", "NONE")]
    return _in_float32(lambda a, b: reduce((a - b).abs()), input_reference, input_prediction)


@golden("ttnn.mse_loss")
def mse_loss(input_reference, input_prediction, *, reduction=None):
    reduce = _REDUCTIONS[getattr(reduction, "name", "NONE")]
    return _in_float32(lambda a, b: reduce((a - b) ** 2), input_reference, input_prediction)


_BROADCAST = {"ADD": torch.add, "SUB": torch.sub, "MUL": torch.mul}


@golden("ttnn.bcast")
def bcast(input_a, input_b, math_op, dim, *, out):
    """a + b, a - b or a * b, where b has one row, one column or one element (dim) for all of a's."""
    return compute(_BROADCAST[math_op.name], input_a, input_b, (), (), (), out.dtype)
