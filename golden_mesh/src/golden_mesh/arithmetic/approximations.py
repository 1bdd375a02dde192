"""Functions of the vector unit that differ from the true ones by per cents in their tails, by the kernels' polynomials.

The source of each is ckernel_sfpu_NAME.h of ttnn 0.81.1 (Wormhole; Blackhole has the same). All take float32. `narrow`
is the form of a bfloat16 tensor.
"""

import math

import torch

from golden_mesh.arithmetic.engine import to_nearest_even
from golden_mesh.arithmetic.parts import constant
from golden_mesh.arithmetic.special import normal
from golden_mesh.arithmetic.steps import inverse_of, log, multiply_add, reciprocal, rough_log

Coefficients = tuple[float, ...]

# Segments of |x| from 0 and 2.5 on, to 5: numerator and denominator, from the constant on.
_ERFC = (
    ((1.0000233650, -1.3375675678, 6.8185544014e-01, -1.5691982210e-01, 1.3746744953e-02),
     (1.0, -2.0801517367e-01, 4.3667086959e-01, -3.4568668343e-03, 2.5104774162e-02, 2.8375532478e-02)),
    ((-2.5655237550e-05, 2.1275576728e-05, -6.6162156145e-06, 9.1439767402e-07, -4.7387182178e-08),
     (1.0, -1.6457208991e-01, -2.0572184026e-01, -1.3888636231e-01, 1.2677097321e-01, -2.1375391632e-02)),
)  # fmt: skip
_DIGAMMA_NARROW = (
    (-3.3767190625e05, -6.0287050000e05, 2.1532992188e05, 2.1398454688e05, 1.9496867188e04, 2.4847094727e02,
     8.7151519954e-02),
    (1.0, 3.3760150000e05, 4.0892268750e05, 9.9775718750e04, 5.1246479492e03, 4.1351390839e01),
)  # fmt: skip
# To 51.005, and to 102.
_DIGAMMA = (
    ((-4.2596286535e-01, -1.2459139824, -7.0374596119e-01, 3.5418295860e-01, 3.9686101675e-01, 1.0760356486e-01,
      1.1159370653e-02, 4.5299832709e-04, 6.4513715188e-06, 2.3348954770e-08, 3.3629592167e-12),
     (-6.3762914866e-08, 4.2596703768e-01, 1.0, 8.2736301422e-01, 3.0081826448e-01, 4.9985647202e-02, 3.7117889151e-03,
      1.1463041301e-04, 1.2610012732e-06, 3.3732798776e-09)),
    ((1.3856337913e05, -2.7915017828e05, 5.5189096727e04, 2.6230285816e04, 2.0102400217e03, 5.4774037756e01,
      6.1410588531e-01, 2.8495312547e-03, 4.9248967852e-06, 2.2963254970e-09, 3.8530168912e-14),
     (-1.6724299601e05, 1.0, 6.3677231206e04, 1.1013851737e04, 5.9383811201e02, 1.2890647910e01, 1.2061770104e-01,
      4.7490052009e-04, 6.9240316615e-07, 2.5925175628e-10)),
)  # fmt: skip
_DIGAMMA_BREAK, _DIGAMMA_END = 51.005, 102.0
_ERFINV_OFFSET, _ERFINV_INVERSE = -4.330746750799873, 6.802721088435375  # -2 / (pi a) and 1 / a, a = 0.147
_SOFTPLUS_NARROW = (
    6.9423984729e-01, -5.0932420424e-01, 1.4279095486e-01, -1.3000584069e-02, -1.8627923291e-03, 5.0152968088e-04,
    -3.1273466851e-05,
)  # fmt: skip
_SOFTPLUS_END = 5.0
_GELU_ZERO, _GELU_TAIL, _GELU_LINEAR = -5.54259443, -3.125, 2.78125
_GELU_CORE = (
    3.9894227818e-01, -6.6361041488e-02, 9.7720050615e-03, -1.0717806322e-03, 8.1812159812e-05, -3.8082057209e-06,
    7.9821413868e-08,
)  # fmt: skip
_GELU_OF_EXP = (3.0369991064e-01, 9.5413386822e-02, 1.3809983619e-02, 7.5950479368e-04)
_GRID = 0.375  # added to a float32, it leaves multiples of 2**-25
# Of the square of x / sqrt(2): erf's numerator over x / sqrt(2), and its denominator.
_ERF = (
    (1.1283791065, 2.1477432549e-01, 6.2133435160e-02, 5.6230435148e-03, 6.1307044234e-04, 1.7678321456e-05,
     2.7384647439e-08, -2.8632063387e-10),
    (1.0, 5.2367275953e-01, 1.2961706519e-01, 1.9642570987e-02, 1.9545555115e-03, 1.3179056987e-04, 1.3156344494e-06,
     -3.5153888689e-09, -6.7350725691e-12),
)  # fmt: skip
_LOG_ROOT_2PI, _LOG_ROOT_PI, _LOG_PI = 0.9189385332046727, 0.57236494, 1.1447298858
_PI_NARROW = 3.140625
_STIRLING_NARROW = (0.0833333333, -0.0027777777)
_STIRLING = (0.0833333333, -0.0027777777, 0.0007936507, -0.0005952380)
# Of the distance from 1 and from 2, up to 0.25.
_LGAMMA_AT_1 = (-0.57721566, 0.82246703, -0.40068563, 0.27058081, -0.20738555)
_LGAMMA_AT_2 = (0.42278434, 0.32246703, -0.06735230, 0.02058081, -0.00738555)
_ROOT_SEED = constant(0x5F370000)


def _polynomial(x: torch.Tensor, coefficients: Coefficients) -> torch.Tensor:
    """Multiplied and added in two roundings."""
    result = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = result.mul_(x).add_(coefficient)
    return result


def _by_inverse(x: torch.Tensor, parts: tuple[Coefficients, Coefficients]) -> torch.Tensor:
    """The quotient in float32: NaN where the numerator overflows and the denominator's inverse is too small."""
    numerator, denominator = (_polynomial(x, of).float() for of in parts)
    return numerator * normal(1 / denominator)


def erfc(x: torch.Tensor) -> torch.Tensor:
    """From 2.5 on up to 1.4 times right, and never below 2e-12. NaN counts as infinity."""
    size = x.abs().nan_to_num(torch.inf).clamp(max=5.0)
    result = torch.where(size < 2.5, *(_quotient(size, *parts) for parts in _ERFC))
    return torch.where(x < 0, 2 - result, result)


def _quotient(x: torch.Tensor, above: Coefficients, below: Coefficients) -> torch.Tensor:
    denominator = _polynomial(x, below)
    return _polynomial(x, above) * torch.copysign(reciprocal(denominator.abs(), steps=0), denominator)


def digamma(x: torch.Tensor, narrow: bool) -> torch.Tensor:
    """Right from 0.01 on. Below, the quotient of polynomials is far from the function."""
    if narrow:
        result = _by_inverse(x, _DIGAMMA_NARROW)
    else:
        result = torch.where(x < _DIGAMMA_BREAK, *(_by_inverse(x.double(), parts) for parts in _DIGAMMA))
    return torch.where(x > _DIGAMMA_END, torch.digamma(x), result)


def erfinv(x: torch.Tensor) -> torch.Tensor:
    """Winitzki's formula, whose terms cancel: 0 for |x| < 3.5e-4. Beyond 1 it is NaN with the sign of x."""
    logarithm = log(multiply_add(-x, x, 1.0))
    term = _ERFINV_OFFSET - 0.5 * logarithm
    root = _root(term + _root(term * term - logarithm * _ERFINV_INVERSE))
    return torch.copysign(root, x)


def _root(x: torch.Tensor) -> torch.Tensor:
    """The root of float32 x by two steps of Newton's method. 0 and infinity stay."""
    guess = (_ROOT_SEED - (x.contiguous().view(torch.int32) >> 1)).view(torch.float32)
    for _ in range(2):
        guess = (guess * guess * (x * -0.5) + 1.5) * guess
    return torch.where((x == 0) | ~x.isfinite(), x, guess * x)


def softplus(x: torch.Tensor, beta: float = 1.0, threshold: float = 20.0) -> torch.Tensor:
    """log(1 + exp(beta x)) / beta. Of bfloat16 x it is 0 where beta x < -5."""
    scaled = x.float() * beta
    if x.dtype != torch.bfloat16:
        return torch.where(scaled > threshold, x, torch.nn.functional.softplus(scaled.double(), 1).float() / beta)
    size = scaled.abs()
    rest = _polynomial(size, _SOFTPLUS_NARROW).masked_fill_(size > _SOFTPLUS_END, 0)
    return torch.where(scaled > threshold, x.float(), (scaled.clamp(min=0) + rest) * (1 / beta))


def gelu_narrow(x: torch.Tensor) -> torch.Tensor:
    """0 below -5.54. Above it multiples of x * 2**-25, as torch.erf's float32 form gives."""
    square = x * x
    tail = torch.exp(square * -0.5) * _polynomial(x, _GELU_OF_EXP)
    tail = x * ((tail + _GRID) - _GRID)
    core = x * (0.5 + x * _polynomial(square, _GELU_CORE))
    result = torch.where(x < _GELU_TAIL, tail, torch.where(x < _GELU_LINEAR, core, x))
    return result.masked_fill(x <= _GELU_ZERO, 0)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """As `gelu_narrow`, of a float32 tensor."""
    scaled = (x * constant(math.sqrt(0.5))).clamp(max=10)
    square = scaled * scaled
    erf = (scaled * _polynomial(square, _ERF[0]) * (1 / _polynomial(square, _ERF[1]))).clamp_(-1, 1)
    result = torch.where(erf == -1, x * 2.0**-25, x * (0.5 + 0.5 * erf))
    return torch.where(x <= _GELU_ZERO, x - x, result)


def lgamma(x: torch.Tensor) -> torch.Tensor:
    """Stirling's formula, also near 1 and 2: up to a fifth off there. Below 0.5 it is reflected."""
    z = torch.where(x < 0.5, 1 - x, x)
    inverse = 1 / z
    result = (z - 0.5) * torch.log(z) - z + _LOG_ROOT_2PI + inverse * _polynomial(inverse * inverse, _STIRLING)
    for center, coefficients in ((2.0, _LGAMMA_AT_2), (1.0, _LGAMMA_AT_1)):
        away = z - center
        result = torch.where(away.abs() <= 0.25, away * _polynomial(away, coefficients), result)
    result = result.masked_fill((z - 0.5).abs() < 0.01, _LOG_ROOT_PI)
    reflected = _LOG_PI - torch.log(torch.sin(math.pi * (x - torch.round(x))).abs()) - result
    return torch.where(x < 0.5, reflected, result).masked_fill(x.isinf(), torch.inf)


def lgamma_narrow(x: torch.Tensor) -> torch.Tensor:
    """As `lgamma`. Each operation of the kernel leaves bfloat16."""
    z = torch.where(x < 0.5, 1 - x, x)
    inverse = inverse_of(z)
    result = (z - 0.5) * rough_log(z) - z + _LOG_ROOT_2PI
    result = multiply_add(inverse, _polynomial(inverse * inverse, _STIRLING_NARROW), result)
    result = to_nearest_even(result.masked_fill((x == 1) | (x == 2), 0))
    sine = to_nearest_even(torch.sin(to_nearest_even(x.frac() * _PI_NARROW)))
    reflected = _LOG_PI - to_nearest_even(log(sine.masked_fill(x == x.floor(), 0).abs())) - result
    return torch.where(x < 0.5, reflected, result).masked_fill(x.isinf(), torch.inf)
