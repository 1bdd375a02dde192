"""Elementwise functions of one tensor, and selections.

The vector unit computes in float32. For a bfloat16 tensor it rounds the result to bfloat16 in dest, or cuts it
(vector.py). Many functions are ttnn's own golden functions in float64. In float32 some of torch's functions compute a
tensor's last elements with other code.
"""

from typing import Callable

import torch
import ttnn

from golden_mesh.arithmetic import approximations, engine, special, steps, vector
from golden_mesh.arithmetic.vector import in_bfloat16_dest, of_nan
from golden_mesh.goldens import activations
from golden_mesh.goldens.activations import PLAIN, WITH_NUMBERS, beside_integers, function, functions, stored, wide
from golden_mesh.hazards.values import note_special
from golden_mesh.registry import golden, golden_table
from golden_mesh.versions import library_golden

_UNARY = (
    "abs ceil cos eqz erf exp exp2 expm1 floor gez gtz hardsigmoid hardswish identity lez log log10 log1p log2 "
    "log_sigmoid logical_not ltz mish neg nez reciprocal relu relu6 rsqrt sigmoid sigmoid_accurate sign silu sin sqrt "
    "square swish tan tanh"
).split()
_TYPES = activations.STRINGS | {"log_sigmoid": "LOGSIGMOID", "sigmoid_accurate": "SIGMOID"}  # else the name in capitals


def _unary(name: str) -> Callable:
    def op(input_tensor, fast_and_approximate_mode):
        if not fast_and_approximate_mode:
            return function(name, input_tensor)
        note_special(f"ttnn.{name.lower()}", input_tensor)
        if name == "EXP":
            return function("FAST_EXP", input_tensor)
        return as_dest(PLAIN[name](wide(input_tensor)), input_tensor)

    return op


def as_dest(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A result of `x` as dest holds it."""
    return result.bfloat16() if x.dtype == torch.bfloat16 and result.is_floating_point() else result


for _name in _UNARY:
    golden(f"ttnn.{_name}", ignores="mode vector_mode")(_unary(_TYPES.get(_name, _name.upper())))


_GELU = {"Accurate": "GELU", "Tanh": "GELU_TANH", "FastLut": "GELU_TABLE"}


@golden("ttnn.gelu")
def gelu(input_tensor, variant, fast_and_approximate_mode):
    """Exact gelu, gelu by tanh (Tanh), or gelu by a table (FastLut)."""
    variant = "FastLut" if fast_and_approximate_mode else getattr(variant, "name", "Accurate")
    return function(_GELU[variant], input_tensor)


@golden("ttnn.where")
def where(predicate, true_value, false_value):
    tensors = [x for x in (true_value, false_value) if isinstance(x, torch.Tensor)]
    if tensors and not tensors[0].is_floating_point():
        true_value, false_value = beside_integers(true_value), beside_integers(false_value)
    elif tensors and tensors[0].dtype == torch.bfloat16:
        true_value, false_value = _cut(true_value), _cut(false_value)
    is_zero = PLAIN["LOGICAL_NOT_UNARY"](predicate)
    return torch.where(is_zero, wide(false_value), wide(true_value))


def _cut(x):
    """A number beside bfloat16, of which the kernel has eight bits."""
    return x if isinstance(x, torch.Tensor) else torch.tensor(engine.cut_number(x))


_MOST_OF_INTEGERS = 16775716  # what the kernel of integers makes of float32's largest number


@golden("ttnn.clamp", "ttnn.clip")
def clamp(input_tensor, min, max=None):
    tensors = any(isinstance(limit, torch.Tensor) for limit in (min, max))
    if not tensors:  # the kernel has two numbers
        most = torch.finfo(input_tensor.dtype).max if input_tensor.is_floating_point() else _MOST_OF_INTEGERS
        min, max = -most if min is None else min, most if max is None else max
    x = wide(input_tensor)
    if isinstance(max, (int, float)) and x.is_floating_point():
        x = special.without_nan(x)  # it counts as infinity of its sign
    clamped = torch.clamp(x, wide(min), wide(max))
    return clamped if tensors else stored(clamped, input_tensor)


# ttnn's own golden functions, with the ops' parameters.
_PLAIN = (
    "asinh atan cbrt celu cosh deg2rad digamma elu erfc erfinv fill frac hardmish hardshrink isfinite isinf isnan "
    "isneginf isposinf polygamma rad2deg relu_min signbit sinh softshrink softsign threshold trunc xielu"
).split()


def _compute(function: Callable, x: torch.Tensor, *args, name: str = "", **kwargs) -> torch.Tensor:
    """function(x) in float64, rounded as dest holds it. Integers and truth values are not rounded."""
    kernel = in_bfloat16_dest(name.upper()) if x.dtype == torch.bfloat16 else _IN_FLOAT32.get(name)
    if kernel is not None and x.is_floating_point():
        return kernel(x) if x.dtype == torch.bfloat16 else kernel(x).where(~x.isnan(), of_nan(name.upper(), wide=True))
    result = function(x.double(), *args, **kwargs)
    if name.upper() in activations.STORING:
        return stored(result.float(), x) if x.is_floating_point() else result
    return as_dest(result.float(), x) if x.is_floating_point() and result.is_floating_point() else result


_IN_FLOAT32 = {
    "digamma": lambda x: approximations.digamma(x, narrow=False),
    "erfc": approximations.erfc,
    "erfinv": approximations.erfinv,
    "i0": vector.i0,
    "lgamma": approximations.lgamma,
    "softsign": vector.softsign,
}


def _by_rule(name: str, function: Callable) -> Callable:
    return lambda input_tensor, **parameters: _compute(function, input_tensor, name=name, **parameters)


_RULES = {name: library_golden(name) for name in _PLAIN} | functions(torch, "acos acosh asin atanh i0")
# an older ttnn lacks some
golden_table({f"ttnn.{name}": _by_rule(name, function) for name, function in _RULES.items() if function is not None})
lgamma = golden("ttnn.lgamma")(_by_rule("lgamma", torch.lgamma))


@golden("ttnn.logit")
def logit(input_tensor, eps):
    """log(x / (1 - x)). A bfloat16 dest holds each step: near 1 it is a coarse number. The division multiplies by an
    inverse, which is 0 for the largest numbers.
    """
    x = special.normal(input_tensor)
    if eps is not None:
        clamped = wide(special.without_nan(x)).clamp(eps, 1 - eps)
        x = as_dest(engine.round_away(clamped, 8), x) if x.dtype == torch.bfloat16 else clamped
    lost = (x.abs() > 2.0**126) & x.isfinite() & (x.dtype == torch.bfloat16)
    quotient = as_dest(wide(x) / wide(as_dest(1 - wide(x), x)), x)
    return _compute(torch.log, quotient.masked_fill(lost, 0), name="log")


@golden("ttnn.round")
def round(input_tensor, decimals):
    """By the nearest multiple of 10**-decimals, in float32. A bfloat16 dest cuts it."""
    scale = torch.tensor(10.0**decimals)
    return stored(torch.round(wide(input_tensor) * scale) * (1 / scale), input_tensor)


@golden("ttnn.heaviside")
def heaviside(input_tensor, value):
    """NaN is above 0."""
    x = wide(input_tensor)
    return stored(torch.where(x == 0, value, (~(x <= 0)).to(x.dtype)), input_tensor)


@golden("ttnn.leaky_relu")
def leaky_relu(input_tensor, negative_slope):
    return stored(wide(input_tensor) * torch.where(input_tensor >= 0, 1, negative_slope), input_tensor)


@golden("ttnn.rdiv")
def rdiv(input_tensor, value, rounding_mode):
    """value * (1 / x). For bfloat16, 1 / x is rounded, and the product is cut."""
    x = wide(input_tensor)
    inverse = steps.inverse_of(special.flushed(x))
    inverse = inverse.bfloat16().float() if input_tensor.dtype == torch.bfloat16 else inverse
    result = special.signed_product(torch.full_like(x, value), inverse)
    result = getattr(torch, rounding_mode)(result) if rounding_mode else result
    if input_tensor.dtype == torch.bfloat16:
        return engine.keep(special.infinite(result), engine.BFLOAT16).bfloat16()
    return result


def _tanhshrink(x: torch.Tensor) -> torch.Tensor:
    """x - tanh(x), whose terms cancel near 0."""
    series = x**3 * (1 / 3 - x * x * 2 / 15)
    return torch.where(x.abs() < 0.01, series, x - torch.tanh(x))


_SELU = lambda x, scale, alpha: scale * torch.where(x >= 0, x, alpha * torch.expm1(x))
# ttnn's own functions of i1 and selu differ between versions: 0.77.0 ignores the parameters and has no i1.
_ROWS = {
    "ttnn.bitwise_not": lambda input_tensor: ~input_tensor,
    "ttnn.hardtanh": lambda input_tensor, min_val, max_val: stored(
        WITH_NUMBERS["HARDTANH"](wide(input_tensor), min_val, max_val), input_tensor
    ),
    # a chip limits its input
    "ttnn.i1": lambda input_tensor: _compute(
        torch.special.i1, input_tensor.clamp(-88.5, 88.5).nan_to_num(88.5), name="i1"
    ),
    "ttnn.relu_max": lambda input_tensor, upper_limit: activations.activate(
        input_tensor, (ttnn.UnaryOpType.RELU_MAX, upper_limit)
    ),
    "ttnn.selu": lambda input_tensor, scale, alpha: _compute(_SELU, input_tensor, scale, alpha),
    "ttnn.softplus": lambda input_tensor, beta=1.0, threshold=20.0: as_dest(
        approximations.softplus(input_tensor, beta, threshold), input_tensor
    ),
    "ttnn.tanhshrink": lambda input_tensor: _compute(_tanhshrink, input_tensor, name="tanhshrink"),
    "ttnn.unary_chain": lambda input_tensor, ops_chain: activations.activate_all(input_tensor, ops_chain),
}
golden_table(_ROWS)


golden("ttnn.logical_not_", writes="input_tensor")(lambda input_tensor: PLAIN["LOGICAL_NOT_UNARY"](input_tensor))


@golden("ttnn.alt_complex_rotate90")
def alt_complex_rotate90(input_tensor):
    """Neighboring pairs (x0, x1) -> (-x1, x0)."""
    real, imaginary = input_tensor.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-imaginary, real), -1).flatten(-2)
