"""Elementwise functions of several tensors without activations, gated units, and two ops of Mamba."""

import math
from functools import partial
from typing import Callable

import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic import engine, remainders, special
from golden_mesh.arithmetic.kernel import PHASES, Kernel
from golden_mesh.arithmetic.packer import BLOCK_FLOATS, pack
from golden_mesh.arithmetic.product import multiply
from golden_mesh.arithmetic.steps import multiply_add, polynomial, reciprocal
from golden_mesh.goldens.activations import activate, beside_integers, wide
from golden_mesh.goldens.eltwise_binary import Operand, compute, squared_difference
from golden_mesh.goldens.eltwise_unary import as_dest, gelu, leaky_relu, lgamma
from golden_mesh.goldens.quotients import check_remainder, quotient, remainder_by_trunc, rounded_quotient
from golden_mesh.registry import golden, golden_table

_HALF_PI, _ATAN = torch.tensor(math.pi / 2), (-0.33203125, 0.175048828125, -0.05841064453125)  # ckernel_sfpu_atan2.h


def _in_float32(function: Callable, *operands: Operand) -> torch.Tensor:
    """function(*operands) in float32, rounded as dest holds it. Integers stay integers. Numbers are not rounded."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    if not any(x.is_floating_point() for x in tensors):
        operands = map(beside_integers, operands)
    widest = next((x for x in tensors if x.dtype == torch.float32), tensors[0])
    return as_dest(function(*(wide(x) for x in operands)), widest)


def _with_alpha(function: Callable) -> Callable:
    def op(input_tensor_a, input_tensor_b, alpha, dtypes, out):
        return compute(function, input_tensor_a, _times(input_tensor_b, alpha, dtypes), out.dtype, dtypes)

    return op


def _times(x: torch.Tensor, alpha: float, dtypes: dict) -> torch.Tensor:
    """alpha * x in x's format. A bfloat16 dest cuts it."""
    product = wide(x) * alpha
    if x.dtype != torch.bfloat16:
        return product
    return pack(engine.keep(product, engine.BFLOAT16), dtypes["input_tensor_b"])


def _atan2(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The angle of the smaller times the inverse of the larger, which is 0 for a large number."""
    a, b = torch.broadcast_tensors(special.flushed(a), special.flushed(b))
    smaller, beyond = torch.minimum(a.abs(), b.abs()), torch.maximum(a.abs(), b.abs()) > 2.0**126
    a, b = (torch.where(beyond & (x.abs() == smaller) & (a.abs() != b.abs()), x * 0.0, x) for x in (a, b))
    return torch.atan2(a.double(), b.double()).float()


def _atan2_narrow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As the kernel of a bfloat16 dest computes it."""
    a, b = torch.broadcast_tensors(special.flushed(a), special.flushed(b))
    less, more = torch.minimum(a.abs(), b.abs()), torch.maximum(a.abs(), b.abs())
    tangent = less * special.flushed(reciprocal(more, steps=0))
    square = tangent * tangent
    angle = multiply_add(polynomial(square, _ATAN) * square, tangent, tangent)
    angle = torch.where(a.abs() >= b.abs(), _HALF_PI - angle, angle)
    angle = torch.where(a.abs() == b.abs(), torch.where(a == 0, 0.0, _HALF_PI / 2), angle)
    return torch.copysign(torch.where(b.signbit(), 2 * _HALF_PI - angle, angle), a).where(~more.isnan(), torch.nan)


@golden("ttnn.atan2")
def atan2(input_tensor_a, input_tensor_b):
    narrow = input_tensor_a.dtype == input_tensor_b.dtype == torch.bfloat16
    return _in_float32(_atan2_narrow if narrow else _atan2, input_tensor_a, input_tensor_b)


def _packed(function: Callable, a: torch.Tensor, b: Operand, dtype: ttnn.DataType) -> torch.Tensor:
    """An op of two operands, as its result of `dtype` holds it. Integers stay integers."""
    if isinstance(b, torch.Tensor) and not (a.is_floating_point() or b.is_floating_point()):
        return function(a.long(), b.long())
    return pack(compute(function, a, b, dtype, {"a": dtype, "b": dtype}), dtype)


@golden("ttnn.multigammaln")
def multigammaln(input_tensor, out):
    """Of four dimensions: lgamma at x and up to 1.5 below, added one by one. Each step is a tensor."""
    total = lgamma(input_tensor)
    for below in (0.5, 1.0, 1.5):
        total = _packed(torch.add, total, lgamma(_packed(torch.sub, input_tensor, below, out.dtype)), out.dtype)
    return _packed(torch.add, total, 3 * math.log(math.pi), out.dtype)


def _is_in_steps(dtype, *operands: Operand) -> bool:
    """Whether the library has no kernel of three operands: block floats of which some broadcast, all in one way."""
    if dtype not in BLOCK_FLOATS or not all(isinstance(x, torch.Tensor) and x.dim() > 1 for x in operands):
        return False
    extents = [max(x.shape[dim] for x in operands) for dim in (-2, -1)]
    ways = {tuple(x.shape[dim] < extent for dim, extent in zip((-2, -1), extents)) for x in operands}
    return len(ways - {(False, False)}) == 1


@golden("ttnn.addcmul")
def addcmul(input_a, input_b, input_c, value, out):
    """a + value * b * c, which the packer rounds."""
    if _is_in_steps(out.dtype, input_a, input_b, input_c):
        product = _packed(torch.mul, input_b, input_c, out.dtype)
        return _packed(torch.add, input_a, _packed(torch.mul, product, float(value), out.dtype), out.dtype)
    if not input_a.is_floating_point():
        return _in_float32(lambda a, b, c, value: a + value * b * c, input_a, input_b, input_c, value)
    result = wide(input_a) + value * wide(input_b) * wide(input_c)
    return pack(result, ttnn.bfloat16) if out.dtype in BLOCK_FLOATS else result


_ROWS = {
    "ttnn.addalpha": _with_alpha(torch.add),
    # a + b, a - b or a * b; b broadcasts one row, one column or one element (dim)
    "ttnn.bcast": lambda input_a, input_b, math_op, out: compute(
        getattr(torch, math_op.name.lower()), input_a, input_b, out.dtype
    ),
    # the next number of the tensors' dtype from a towards b
    "ttnn.nextafter": lambda input_tensor_a, input_tensor_b: torch.nextafter(input_tensor_a, input_tensor_b),
    # all products of the elements of the last dimensions: [..., N], [..., M] -> [..., N, M]
    "ttnn.outer": lambda input_tensor_a, input_tensor_b: _packed(
        torch.mul, input_tensor_a[..., None], input_tensor_b[..., None, :], _dtype(input_tensor_a)
    ),
    "ttnn.snake_beta": lambda input_tensor, alpha, beta: _in_float32(
        lambda x, a, b: x + torch.sin(a * x) ** 2 / b, input_tensor, alpha, beta
    ),
    "ttnn.subalpha": _with_alpha(torch.sub),
}
golden_table(_ROWS, ignores="dim")


@golden("ttnn.hypot")
def hypot(input_tensor_a, input_tensor_b, dtypes, out):
    """Squares of large numbers are infinite, and of small ones 0. Block floats have squares in their format."""
    if out.dtype != ttnn.float32:
        squares = dict(input_tensor_a_activations=["square"], input_tensor_b_activations=["square"])
        return compute(torch.add, input_tensor_a, input_tensor_b, out.dtype, dtypes, activations=["sqrt"], **squares)
    square = lambda x: special.normal(special.normal(x) ** 2)
    return _in_float32(lambda a, b: torch.sqrt(square(a) + square(b)), input_tensor_a, input_tensor_b)


@golden("ttnn.isclose")
def isclose(input_tensor_a, input_tensor_b, rtol, atol, equal_nan):
    a, b = wide(input_tensor_a), wide(input_tensor_b)
    if a.dtype != b.dtype:
        a, b = a.float(), b.float()
    return torch.isclose(a, b, rtol, atol, equal_nan)


@golden("ttnn.div_no_nan")
def div_no_nan(input_tensor_a, input_tensor_b, value, out):
    """a / b, and 0 where b is 0. Block floats are packed before: beside an infinity are zeros."""
    other = value if input_tensor_b is None else input_tensor_b
    if not isinstance(other, torch.Tensor) and other and input_tensor_a.dtype == torch.bfloat16:
        return _packed(torch.mul, input_tensor_a, 1 / float(other), out.dtype)
    return _in_float32(partial(_div_no_nan, dtype=out.dtype), input_tensor_a, other)


def _div_no_nan(a: torch.Tensor, b: Operand, dtype) -> torch.Tensor:
    b = torch.as_tensor(b)
    is_zero = b == 0 if b.is_floating_point() else (b == 0) | (b == -1 << 31)  # as in `quotient`
    found = quotient(a, b)
    return torch.where(is_zero, 0.0, pack(found.bfloat16().float(), dtype) if dtype in BLOCK_FLOATS else found)


@golden("ttnn.floor_div")
def floor_div(input_tensor_a, input_tensor_b, value, out):
    other = value if input_tensor_b is None else input_tensor_b
    if isinstance(other, torch.Tensor):
        dtype = out.dtype if input_tensor_a.dtype == torch.bfloat16 else ttnn.float32
        return _in_float32(partial(rounded_quotient, rounding=torch.floor, dtype=dtype), input_tensor_a, other)
    if not input_tensor_a.is_floating_point():
        inverse = 1 / torch.tensor(float(other))  # the nearest: 49 / 7 may be 6
        return torch.floor(input_tensor_a.float() * inverse)
    if input_tensor_a.dtype == torch.float32:
        return torch.floor(input_tensor_a / other)
    return torch.floor(wide(_packed(torch.mul, input_tensor_a, 1 / float(other), out.dtype)))


@golden("ttnn.fmod")
def fmod(input_tensor_a, input_tensor_b, scalar):
    """The remainder of a / b with a's sign."""
    other = scalar if input_tensor_b is None else input_tensor_b
    check_remainder("ttnn.fmod", input_tensor_a, other)
    if not input_tensor_a.is_floating_point():
        return remainder_by_trunc(input_tensor_a, torch.as_tensor(other))
    narrow = input_tensor_a.dtype == torch.bfloat16
    by = remainders.by_trunc if isinstance(other, torch.Tensor) else remainders.by_trunc_of_number
    return _in_float32(partial(by, narrow=narrow), input_tensor_a, other)


@golden("ttnn.addcdiv")
def addcdiv(input_a, input_b, input_c, value, out):
    """a + value * b / c"""
    if out.dtype in BLOCK_FLOATS:
        found = _packed(quotient, _packed(torch.mul, input_b, float(value), out.dtype), input_c, out.dtype)
        return _packed(torch.add, input_a, found, out.dtype)
    return _in_float32(lambda a, b, c: a + value * b / c, input_a, input_b, input_c)


@golden("ttnn.lerp")
def lerp(input, end, weight, out):
    """input + weight * (end - input). A number is cut to bfloat16 beside bfloat16 tensors."""
    if _is_in_steps(out.dtype, input, end, weight):
        product = _packed(torch.mul, _packed(torch.sub, end, input, out.dtype), weight, out.dtype)
        return _packed(torch.add, input, product, out.dtype)
    if not isinstance(weight, torch.Tensor) and input.dtype == torch.bfloat16:
        weight = engine.cut_number(weight)
    return _in_float32(lambda a, b, w: a + w * (b - a), input, end, weight)


@golden("ttnn.mac")
def mac(input_tensor_a, input_tensor_b, input_tensor_c, value, value1, value2):
    """a * b + c. A number in place of b or c has a name of its own."""
    numbers = iter([number for number in (value, value1, value2) if number is not None])
    b, c = (next(numbers) if x is None else x for x in (input_tensor_b, input_tensor_c))
    return _in_float32(lambda a, b, c: a * b + c, input_tensor_a, b, c)


@golden("ttnn.clamped_silu_glu")
def clamped_silu_glu(gate, up, limit):
    """silu(gate, at most limit) * up, within -limit and limit"""

    def function(g, u):
        g = g.clamp(max=limit)
        return g / (1 + torch.exp(-g)) * u.clamp(-limit, limit)

    return _in_float32(function, gate, up)


@golden("ttnn.prelu")
def prelu(input_tensor_a, weight):
    """x, or weight * x below 0. weight: a number, a list of one, or a tensor of a value for each channel (dim 1)."""
    if isinstance(weight, (list, tuple)):
        (weight,) = weight
    if not isinstance(weight, torch.Tensor):
        return leaky_relu(input_tensor_a, weight)
    weight = weight.reshape(-1, *[1] * (input_tensor_a.dim() - 2))
    return _in_float32(lambda x, w: torch.where(x < 0, w * x, x), input_tensor_a, weight)


@golden("ttnn.polyval")
def polyval(input_tensor_a, coeffs, out):
    """A polynomial by ttnn's multiply and add. coeffs begins with the coefficient of the highest power."""
    first, *rest = map(float, coeffs)
    result, factor = torch.full_like(input_tensor_a, first), first
    for coefficient in rest:
        product = _packed(torch.mul, input_tensor_a, factor, out.dtype)
        result = factor = _packed(torch.add, product, coefficient, out.dtype)
    return result


_REDUCTIONS = {"NONE": lambda x: x, "SUM": torch.sum, "MEAN": torch.mean}


def _loss(difference: Callable, size: Callable) -> Callable:
    def op(input_reference, input_prediction, reduction):
        reduce = _REDUCTIONS[getattr(reduction, "name", "NONE")]
        return reduce(size(wide(_packed(difference, input_reference, input_prediction, _dtype(input_reference)))))

    return op


golden_table({"ttnn.l1_loss": _loss(torch.sub, torch.abs), "ttnn.mse_loss": _loss(squared_difference, lambda x: x)})


def _dtype(x: torch.Tensor) -> ttnn.DataType:
    return ttnn.float32 if x.dtype == torch.float32 else ttnn.bfloat16


def _gated(x: torch.Tensor, dim: int, activation: Callable, out) -> torch.Tensor:
    """x [..., S, 2 * W] -> [..., S padded to a tile, W]. The activation is a separate op: its result is packed.

    On a chip the last tile's rows hold x's padding, gated. Here they are zeros.
    """
    values, gate = x.chunk(2, dim)
    gate = pack(as_dest(activation(wide(gate)), x), out.dtype)
    result = compute(torch.mul, values, gate, out.dtype, {"a": out.dtype, "b": out.dtype})
    return F.pad(result, (0, 0, 0, out.shape[-2] - result.shape[-2]))


def _glu(name: str) -> Callable:
    def op(input_tensor, dim, out):
        return _gated(input_tensor, dim, partial(activate, activation=name), out)

    return op


golden_table({"ttnn.glu": _glu("sigmoid"), "ttnn.reglu": _glu("relu"), "ttnn.swiglu": _glu("silu")})


@golden("ttnn.geglu")
def geglu(input_tensor, dim, variant, out):
    return _gated(input_tensor, dim, partial(gelu, variant=variant, fast_and_approximate_mode=False), out)


STATE = 32


def _kernel(fidelity) -> Kernel:
    return Kernel(PHASES[getattr(fidelity, "name", "HiFi4")], wide=False)


@golden("ttnn.experimental.repeat_and_interleave_eltwise_mul")
def repeat_and_interleave_eltwise_mul(a, b, math_fidelity, out):
    """a [..., 32], repeated for each channel, times b [..., channels], each element 32 times -> [..., channels * 32].

    Either operand may have the full width already.
    """
    width = out.shape[-1]
    if a.shape[-1] == STATE:
        a = a.repeat(1, 1, 1, width // STATE)
    if b.shape[-1] * STATE == width:
        b = b.repeat_interleave(STATE, -1)
    return multiply(a, b, _kernel(math_fidelity))


@golden("ttnn.experimental.hc_sum_reduce")
def hc_sum_reduce(input, math_fidelity):
    """Sums of 32 neighbors, [..., channels * 32] -> [..., channels]."""
    return engine.source_b(input, _kernel(math_fidelity)).unflatten(-1, (-1, STATE)).sum(-1)
