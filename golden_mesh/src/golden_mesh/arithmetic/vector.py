"""The vector unit's functions that are not torch's, as the kernels compute them.

- exp, sigmoid, silu: with a bfloat16 dest the kernels take a shorter exp and a shorter reciprocal. Up to 12 % of their
  bfloat16 results differ from the rounded function by a unit in the last place. With a float32 dest, exp is torch's.
- Many kernels do not round what they write to a bfloat16 dest, so its last bits are cut: results are 0.3 % too small
  in the mean. Some also write an intermediate result there (acosh, asinh, atanh, hardswish).
- With math_approx_mode, the kernels of 1 / x and 1 / sqrt(x) leave out their last step.

A bfloat16 has 65,536 values, so functions of a bfloat16 dest are tables. The vector unit's other functions are
torch's own, rounded to nearest even.

The vector unit multiplies and adds with one rounding (steps.py).
"""

import math
from functools import cache, partial
from typing import Callable

import torch
import torch.nn.functional as F

from golden_mesh.arithmetic import approximations, bfloat16_dest, special, steps
from golden_mesh.arithmetic.engine import BFLOAT16, keep
from golden_mesh.arithmetic.parts import constant
from golden_mesh.arithmetic.plain import in_float32
from golden_mesh.arithmetic.steps import inverse_of, log1p, multiply_add, polynomial, reciprocal, short_exp

# The kernels' constants (ckernel_sfpu_exp.h): 2**8 / ln 2, and 127 * 2**8 less a term that makes the mean error small.
_SLOPE, _OFFSET = 256 / 0.6931471805599453, 32500.818359375
_ROUNDING = 1.5 * 2.0**23  # added to a float32, it leaves the nearest integer in its last bits
_INFINITE = 0xFF << 8  # infinity's bits, less the last 15
_LEAST, _SMALLEST = -87.33, 1.19e-38  # exp(_LEAST) is a normal float32 and below _SMALLEST

_PARABOLA = (0.9998487929243953, 1.0150876009852106, 0.5062836705674557)
_CONSTANT_OF_EXP = 1.001953125  # ttnn.exp loads it as a float16
_RSQRT_SEED, _RSQRT = constant(0x5F0B3892), constant(1.89099014875)
_ONE, _FIFTEEN = constant(1), constant(15)
# gelu by a table: slopes and offsets of |x| from 0, 0.5, 1, 1.5, 2 and 3 on. ttnn loads them as float16.
_GELU_SLOPES = (0.1928, 0.4939, 0.6188, 0.6099, 0.5402, 0.5)
_GELU_OFFSETS = (-0.00010443, -0.1604, -0.2796, -0.2635, -0.1194, 0.0)
_GELU_STARTS = torch.tensor([0.5, 1, 1.5, 2, 3])
# Of the powers of x between -4 and 4: softplus(x).
_SOFTPLUS = (
    0.6924354434013367, 0.49275708198547363, 0.12142381817102432, 0.0031102809589356184, -0.00330807245336473,
    -0.00028794066747650504, 5.3185409342404455e-05, 7.1853546614875086e-06, 7.4961114648886e-08,
)  # fmt: skip
# erf(x) / x of the square of x: numerator and denominator (ckernel_sfpu_erf.h). i0 of the square of x.
_ERF = (
    (1.1280932447, 0.27609212279, 0.045400281738, 7.4481184425e-04),
    (1.0, 0.57439188334, 0.13675764810, 8.2844606784e-03, 2.4813862145e-05),
)
_I0 = (
    1.0, 0.25, 0.015625, 0.0004340277778, 0.000006781684028, 6.78e-08, 4.71e-10, 2.40e-12, 9.39e-15, 2.90e-17,
    7.24e-20, 1.50e-22,
)  # fmt: skip
# Of the square of x: atan(x) / x below 1, and (x - tanh(x)) / x**3; of x from 1 on: tanh(x).
_ATAN = (0.9997878670692444, -0.3258085846900940, 0.1555790007114410, -4.4326744973659515e-2)
_TANHSHRINK = (3.3329936862e-01, -1.3223160803e-01, 4.8076551408e-02, -1.0762925260e-02)
_TANH_FROM_1 = (6.1829000893e-02, 1.0561303143, -4.0859283753e-01, 5.3348409333e-02)
# Seeds of the inverse hyperbolic functions' 1 / x and sqrt(x), and asinh(x) / x of the square of x below 0.75.
_INVERSE_SEED, _ROOT_SEED = constant(0xFEF392E0 - 2**32), constant(0x5F1110A0)
_ASINH = (
    1.0, -1.666652262e-01, 7.495806366e-02, -4.417778924e-02, 2.785361186e-02, -1.484858524e-02, 4.375355784e-03
)  # fmt: skip
# Of |x|: tanh (ckernel_sfpu_tanh.h).
_TANH = (
    0.0, 0.999004364013671875, 3.0897438526153564453125e-2, -0.4890659749507904052734375, 0.281917631626129150390625,
    -6.6649019718170166015625e-2, 5.876733921468257904052734375e-3,
)  # fmt: skip
# i1(x) / x of the square of x: numerator and denominator. From 10 on, of 1 / x (ckernel_sfpu_i1.h).
_I1 = (
    (4.9992737740e-01, 5.4503594600e-02, 1.6126291630e-03, 2.0223499130e-05),
    (1.0, -1.6242591070e-02, 1.0333660750e-04, -2.5076132990e-07),
)
_I1_FROM_10 = (
    3.9894228967e-01, -1.4960495444e-01, -4.6652925320e-02, -4.3674591560e-02, -1.9748322314e-02, -3.3467922914e-01,
)  # fmt: skip
_CBRT = (1.7523196935653687, -1.2509524822235107, 0.5093818306922913)  # of the first guess (ckernel_sfpu_cbrt.h)


@in_float32(lambda x, scale, **how: torch.exp(x * scale))
def exp(x: torch.Tensor, scale: float, *, approximate: bool, most: int = _INFINITE) -> torch.Tensor:
    """Return exp(x * scale) of float32 x <= 0, as a float32 dest holds it.

    The approximate form (Schraudolph's) writes x * scale / ln 2, with eight bits behind the point, into a
    float's bits. It is a straight line between two powers of two: 2.2 % too small at 0, within 3 % elsewhere.
    A result below the smallest power comes out negative, and the packer makes it zero.
    """
    if not approximate:
        # A denormal result becomes zero, as on chips. Torch takes ten times as long for denormals and for smaller
        # results.
        return torch.threshold_((x * scale).clamp_(min=_LEAST).exp_(), _SMALLEST, 0)
    code = x.mul(_SLOPE * scale).add_(_OFFSET).clamp_(0, most).add_(_ROUNDING)
    return code.view(torch.int32).bitwise_left_shift_(_FIFTEEN).view(torch.float32)


@in_float32(torch.exp)
def fast_exp(x: torch.Tensor) -> torch.Tensor:
    """Return ttnn.exp(x, fast_and_approximate_mode=True) of float32 x: the straight lines of `exp`, from -88.5 on."""
    code = multiply_add(x.clamp(min=-88.5), _SLOPE, _OFFSET).round_().clamp_(0, _INFINITE)
    return code.int().bitwise_left_shift_(15).view(torch.float32)


def in_bfloat16_dest(name: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return the kernel of a UnaryOpType's name for a bfloat16 dest: bfloat16 -> bfloat16. None: there is none here."""
    return partial(_look_up, name) if name in _KERNELS else None


def _look_up(name: str, x: torch.Tensor) -> torch.Tensor:
    codes = x.contiguous().view(torch.int16).flatten().to(torch.int32).bitwise_and_(0xFFFF)
    return _table(name).index_select(0, codes).view(x.shape)


@cache
def _table(name: str) -> torch.Tensor:
    """The function's values of all bfloat16, by their codes, [65536]."""
    x = torch.arange(1 << 16, dtype=torch.int32).bitwise_left_shift(16).view(torch.float32)
    if name not in _KEEP_SMALL:
        x = special.flushed(x)
    result = torch.where(x.isnan(), of_nan(name, wide=False), _KERNELS[name](x))
    if name in _MAKE_NAN:
        result = special.infinite(result, x)
    return result.bfloat16()


def of_nan(name: str, wide: bool) -> float:
    """What the kernel of a UnaryOpType's name gives for NaN, in a float32 dest (wide) or a bfloat16 dest."""
    tables = _OF_NAN, _OF_NAN_IN_FLOAT32 if wide else _OF_NAN_IN_BFLOAT16
    if special.on_blackhole():
        tables += _OF_NAN_ON_BLACKHOLE, {} if wide else _OF_NAN_IN_BFLOAT16_ON_BLACKHOLE
    return next((table[name] for table in reversed(tables) if name in table), torch.nan)


def parabolic_exp(x: torch.Tensor) -> torch.Tensor:
    """exp of float32 x: the nearest power of two, 0 from 2**-127 on, times a parabola (ckernel_sfpu_sdpa.h)."""
    whole = (x * steps.INVERSE_LN2).round().clamp(-127, 127)
    rest = multiply_add(whole, -0.6931471805599453, x)
    return torch.where(whole == -127, 0, torch.ldexp(polynomial(rest, _PARABOLA), whole))


def inverse(x: torch.Tensor, approximate: bool) -> torch.Tensor:
    """Return 1 / x of float32 x >= 1 as a bfloat16 dest holds it. The approximate form is cut, not rounded."""
    return keep(reciprocal(x, steps=0), BFLOAT16) if approximate else (1 / x).bfloat16().float()


def inverse_root(x: torch.Tensor, approximate: bool) -> torch.Tensor:
    """1 / sqrt(x) of float32 x > 0. The approximate form is one step of Newton's method from an integer's bits."""
    if not approximate:
        return torch.rsqrt(x)
    guess = (_RSQRT_SEED - (x.contiguous().view(torch.int32) >> _ONE)).view(torch.float32)
    return guess * multiply_add(-guess, x * guess, _RSQRT)


@in_float32(F.gelu)
def gelu_by_table(x: torch.Tensor) -> torch.Tensor:
    """Return float32 x / 2 plus a line of |x|: up to 0.02 from gelu's value. ttnn calls it fast and approximate."""
    at = torch.bucketize(x.abs(), _GELU_STARTS, right=True)
    slopes, offsets = (torch.tensor(c).half().float() for c in (_GELU_SLOPES, _GELU_OFFSETS))
    return x * 0.5 + (slopes[at] * x.abs() + offsets[at])


@in_float32(F.logsigmoid)
def log_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Return -softplus(-x) of float32 x: a polynomial between -4 and 4, within 4e-3, and above 4 the fast exp."""
    softplus = polynomial(-x, _SOFTPLUS)
    return torch.where(x > 4, -fast_exp(-x), torch.where(x > -4, -softplus, x))


@in_float32(torch.special.i0)
def i0(x: torch.Tensor) -> torch.Tensor:
    """Return i0 of float32 x by the kernel's polynomial, which is 4 % too small at 16."""
    return polynomial(x * x, _I0)


def _i1(x: torch.Tensor) -> torch.Tensor:
    x = x.clamp(-88.5, 88.5)
    numerator, denominator = (polynomial(x * x, c) for c in _I1)
    root = torch.rsqrt(x.abs())
    large = torch.copysign(short_exp(x.abs()) * root * polynomial(root * root, _I1_FROM_10), x)
    return torch.where(x.abs() > 10, large, special.flushed(numerator * x * inverse_of(denominator)))


def _atan(x: torch.Tensor) -> torch.Tensor:
    least = torch.where(x.abs() >= 1, inverse_of(x.abs()), x.abs())
    angle = polynomial(least * least, _ATAN) * least
    return torch.copysign(torch.where(x.abs() >= 1, torch.pi / 2 - angle, angle), x)


def _tanhshrink(x: torch.Tensor) -> torch.Tensor:
    tanh = torch.copysign(polynomial(x.abs(), _TANH_FROM_1).clamp(max=1), x)
    return torch.where(x.abs() > 1, x - tanh, special.flushed(x * (x * x) * polynomial(x * x, _TANHSHRINK)))


def _mish(x: torch.Tensor) -> torch.Tensor:
    exp = short_exp(x).bfloat16().float()
    inverse = reciprocal(multiply_add(exp + 1, exp + 1, 1.0))
    factor = exp * (exp + 2) * inverse
    if special.on_blackhole():
        factor = torch.where(x >= 0, multiply_add(inverse, -2.0, 1.0), factor)
    return torch.where(x >= 8, x, x * factor)


def _cbrt(x: torch.Tensor) -> torch.Tensor:
    """A constant less a third of x's bits is a guess of 1 / cbrt(x)."""
    bits = multiply_add(x.abs().view(torch.int32).float(), -1 / 768, 13929516.0)  # 2**23 + 0x548C2B4B / 256
    guess = bits.view(torch.int32).bitwise_left_shift(8).view(torch.float32)
    square = x.abs() * (guess * guess)
    correction = polynomial(square * guess, _CBRT)
    return torch.copysign(square, x) * (correction * correction)


def softsign(x: torch.Tensor) -> torch.Tensor:
    """x / (1 + |x|), and 0 beyond 2**126, whose inverse is too small a number."""
    return torch.where((x.abs() > 2.0**126) & x.isfinite(), 0, F.softsign(x))


def _erf(x: torch.Tensor) -> torch.Tensor:
    """A quotient of polynomials, cut to bfloat16."""
    x = x.clamp(-10, 10)
    numerator, denominator = (polynomial(x * x, c) for c in _ERF)
    return keep((x * numerator / denominator).clamp(-1, 1), BFLOAT16)


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    return reciprocal(1 + short_exp(-x))


def _cut(function: Callable) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function of float64, cut to bfloat16."""
    return lambda x: keep(function(x.double()).float(), BFLOAT16)


_LARGE = 2.0**28  # from here on acosh and asinh are log1p(x - 1) + ln 2


def _acosh(x: torch.Tensor) -> torch.Tensor:
    less = x - 1
    sum_ = torch.where(x < _LARGE, less + _root((x + 1) * less), less)
    result = log1p(keep(sum_, BFLOAT16)) + torch.where(x >= _LARGE, math.log(2), 0.0)
    return torch.where(x > 1, result, torch.where(x == 1, 0.0, torch.nan))


def _asinh(x: torch.Tensor) -> torch.Tensor:
    size, square = x.abs(), x * x
    middle = multiply_add(square, _inverse(1 + _root(1 + square)), size)
    large = log1p(keep(torch.where(size < _LARGE, middle, size - 1), BFLOAT16))
    large = large + torch.where(size >= _LARGE, math.log(2), 0.0)
    return torch.copysign(torch.where(size < 0.75, size * polynomial(square, _ASINH), large), x)


def _atanh(x: torch.Tensor) -> torch.Tensor:
    size = x.abs()
    middle = 0.5 * log1p(keep(2 * size * _inverse(1 - size), BFLOAT16))
    edge = torch.where(size == 1, torch.inf, torch.nan)
    return torch.copysign(torch.where(size < 1, middle, edge), x)


def _inverse(x: torch.Tensor) -> torch.Tensor:
    """1 / x of x > 0, of the inverse hyperbolic functions."""
    if special.on_blackhole():
        guess = reciprocal(x, steps=0)
        return multiply_add(guess, multiply_add(-x, guess, 1.0), guess)
    guess = (_INVERSE_SEED - x.view(torch.int32)).view(torch.float32)
    error = multiply_add(x, guess, 1.0)
    return multiply_add(-guess, multiply_add(error, error, error), -guess)


def _root(x: torch.Tensor) -> torch.Tensor:
    """sqrt(x) of x >= 0, of the inverse hyperbolic functions."""
    guess = (_ROOT_SEED - (x.view(torch.int32) >> _ONE)).view(torch.float32)
    for _ in range(2):
        guess = guess * multiply_add(-(x * 0.5 * guess), guess, 1.5)
    root = x * guess
    return torch.where(x == 0, 0, multiply_add(0.5 * multiply_add(-root, root, x), guess, root))


_KERNELS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name.upper(): getattr(torch, name) for name in "frac neg rsqrt sign".split()},
    "ACOSH": _acosh,
    "ASINH": _asinh,
    "ATAN": _atan,
    "ATANH": _atanh,
    "CBRT": _cbrt,
    "DEG2RAD": _cut(torch.deg2rad),
    "DIGAMMA": lambda x: keep(approximations.digamma(x, narrow=True), BFLOAT16),
    "ERF": _erf,
    "ERFC": lambda x: keep(approximations.erfc(x), BFLOAT16),
    "ERFINV": lambda x: keep(special.without_nan(approximations.erfinv(x)), BFLOAT16),
    "EXP": lambda x: short_exp(x, _CONSTANT_OF_EXP),
    "EXP2": lambda x: steps.power_of_two(x + 127),
    "FAST_EXP": lambda x: keep(fast_exp(x), BFLOAT16),
    "GELU": approximations.gelu_narrow,
    "GELU_TABLE": lambda x: keep(gelu_by_table(x), BFLOAT16),
    "HARDMISH": lambda x: keep(x * (x / 2 + 1).clamp(0, 1), BFLOAT16),
    "HARDSIGMOID": _cut(F.hardsigmoid),
    # the matrix engine multiplies by the cut hardsigmoid
    "HARDSWISH": lambda x: bfloat16_dest.multiply(_cut(F.hardsigmoid)(x), x, phases=4).masked_fill(x == -torch.inf, 0),
    "I0": lambda x: keep(i0(x), BFLOAT16),
    "I1": _i1,
    "LOG": steps.log,
    "LOG10": steps.log10,
    "LOG1P": log1p,
    "LOG2": steps.log2,
    "LOGSIGMOID": lambda x: keep(log_sigmoid(x), BFLOAT16),
    "LGAMMA": approximations.lgamma_narrow,
    "MISH": _mish,
    "RAD2DEG": _cut(torch.rad2deg),
    "RECIP": torch.reciprocal,
    "RELU6": F.relu6,
    "SIGMOID": _sigmoid,
    "SILU": lambda x: x * special.normal(_sigmoid(x)),
    "SOFTSIGN": _cut(softsign),
    "TANH": lambda x: torch.copysign(polynomial(x.abs(), _TANH).clamp(max=1), x),
    "TANHSHRINK": _tanhshrink,
}
# What the kernels give for NaN where it is not NaN: they clamp, or compare by the sign.
_OF_NAN = {"DIGAMMA": 89.0, "ERFC": 2.018e-12, "LOGSIGMOID": 0.0, "RECIP": 0.0, "RELU6": 6.0}
_OF_NAN |= dict.fromkeys(("ERF", "HARDSIGMOID", "SIGN"), 1.0)
_OF_NAN_IN_FLOAT32 = {"SIGMOID": 0.0}
_OF_NAN_IN_BFLOAT16 = {"NEG": -torch.inf, "RSQRT": -torch.inf, "SIGMOID": 1.0, "TANH": 1.0}
_OF_NAN_ON_BLACKHOLE = {"DIGAMMA": torch.nan, "LOGSIGMOID": torch.nan}
_OF_NAN_IN_BFLOAT16_ON_BLACKHOLE = {"GELU": 0.0, "RSQRT": torch.inf, "SIGMOID": 0.0}
# Of large negative numbers, or -infinity.
_MAKE_NAN = {"DIGAMMA", "FRAC", "GELU_TABLE", "HARDMISH", "MISH", "SILU", "SOFTSIGN"}
_KEEP_SMALL = {"RSQRT", "SIGN"}  # they read a subnormal's bits
