"""Elementwise ops of one tensor, each against torch on random and on special values, in bfloat16
and in float32. Ops on integers, on their bits and on quantized numbers.
"""

import math

import pytest
import torch
import ttnn

from golden_mesh.arithmetic.vector import in_bfloat16_dest
from golden_mesh.errors import GoldenError
from goldens.support import Put, assert_values, examples

LARGE = [20.0, -20.0, 90.0, 1e38, -1e38, 1e-30, -1e-30]
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, *LARGE]
DTYPES = {"bfloat16": ttnn.bfloat16, "float32": ttnn.float32}


def values(scale: float = 2.0) -> torch.Tensor:
    """[1, 1, 33, 45] random values that bfloat16 holds, with the special ones in the first row."""
    x = (torch.randn(1, 1, 33, 45) * scale).bfloat16().float()
    x[..., 0, : len(SPECIAL)] = torch.tensor(SPECIAL).bfloat16().float()
    return x.masked_fill(x.isnan(), math.nan)  # a positive one


def softplus(x, beta=1.0, threshold=20.0):
    return torch.where(x * beta > threshold, x, torch.log1p(torch.exp(x * beta)) / beta)


def elu(x, alpha=1.0):
    return torch.where(x > 0, x, alpha * torch.expm1(x))


def hardmish(x):
    return x * (x / 2 + 1).clamp(0, 1)


def xielu(x, p=0.8, n=0.8):
    """As published: a parabola for positive x, an integrated ELU for the others."""
    return torch.where(x > 0, p * x * x + 0.5 * x, n * torch.expm1(x.clamp(max=-1e-6)) - n * x + 0.5 * x)


# Calls, with torch's result in float64. test_families.py has the ops with records of a chip.
CASES = {
    "acos(x)": torch.acos,
    "acosh(x)": lambda x: torch.where(x < 1, math.nan, torch.log(x + torch.sqrt(x * x - 1))),
    "asin(x)": torch.asin,
    "asinh(x)": torch.asinh,
    "atan(x)": torch.atan,
    "atanh(x)": lambda x: (torch.log1p(x) - torch.log1p(-x)) / 2,
    "cbrt(x)": lambda x: x.sign() * x.abs() ** (1 / 3),
    "celu(x)": elu,
    "celu(x, alpha=1.5)": lambda x: torch.where(x > 0, x, 1.5 * torch.expm1(x / 1.5)),
    "cosh(x)": lambda x: (torch.exp(x) + torch.exp(-x)) / 2,
    "deg2rad(x)": lambda x: x * math.pi / 180,
    "elu(x)": elu,
    "elu(x, alpha=0.5)": lambda x: elu(x, 0.5),
    "frac(x)": lambda x: x - x.trunc(),
    "hardmish(x)": hardmish,
    "hardshrink(x)": lambda x: torch.where(x.abs() <= 0.5, 0.0, x),
    "hardshrink(x, lambd=1.5)": lambda x: torch.where(x.abs() <= 1.5, 0.0, x),
    "i1(x)": lambda x: torch.special.i1(x.clamp(-88.5, 88.5).nan_to_num(88.5)),
    "isfinite(x)": lambda x: (x.abs() < math.inf).double(),
    "isinf(x)": lambda x: (x.abs() == math.inf).double(),
    "isnan(x)": lambda x: (x != x).double(),
    "isneginf(x)": lambda x: (x == -math.inf).double(),
    "isposinf(x)": lambda x: (x == math.inf).double(),
    "leaky_relu(x, 0.125)": lambda x: torch.where(x >= 0, x, x / 8),
    "rad2deg(x)": lambda x: x * 180 / math.pi,
    "relu_min(x, 0.5)": lambda x: x.clamp(min=0.5),
    "round(x)": torch.round,
    "selu(x)": lambda x: 1.0506999492645264 * elu(x, 1.673259973526001),
    "selu(x, scale=2.0, alpha=0.5)": lambda x: 2 * elu(x, 0.5),
    "signbit(x)": lambda x: torch.signbit(x).double(),
    "sinh(x)": lambda x: torch.expm1(x) / 2 - torch.expm1(-x) / 2,
    "softplus(x)": softplus,
    "softplus(x, beta=2.0, threshold=4.0)": lambda x: softplus(x, 2, 4),
    "softshrink(x)": lambda x: torch.where(x.abs() <= 0.5, 0.0, x - 0.5 * x.sign()),
    "softshrink(x, lambd=1.0)": lambda x: torch.where(x.abs() <= 1, 0.0, x - x.sign()),
    "softsign(x)": lambda x: x / (1 + x.abs()),
    "tanhshrink(x)": lambda x: x - torch.tanh(x),
    "threshold(x, 0.5, -3.0)": lambda x: torch.where(x <= 0.5, -3.0, x),
    "trunc(x)": lambda x: x.sign() * x.abs().floor(),
    "xielu(x)": xielu,
    "xielu(x, alpha_p=0.5, alpha_n=1.5)": lambda x: xielu(x, 0.5, 1.5),
    "nez(x)": lambda x: (x != 0).double(),
    "gtz(x)": lambda x: (x > 0).double(),
    "gez(x)": lambda x: (x >= 0).double(),
    "ltz(x)": lambda x: (x < 0).double(),
    "lez(x)": lambda x: (x <= 0).double(),
    "identity(x)": lambda x: x,
    "sigmoid_accurate(x)": torch.sigmoid,
}
LOGIT = math.log(3)  # of 0.75
# Beyond these values, and of NaN, the kernels give another value than the function (test_special.py, which also has
# erfc and lgamma).
OWN_TAILS = {
    "frac": (-1e30, 1e30),
    "hardmish": (-1e30, 1e30),
    "softplus": (-1.2, 1e30),
    "softsign": (-1e30, 1e30),
    "sigmoid_accurate": (-80, 80),
}


def run(call: str, x: ttnn.Tensor) -> ttnn.Tensor:
    """Return the result of ttnn's operation, as "elu(x, alpha=0.5)"."""
    return eval(f"ttnn.{call}", {"ttnn": ttnn, "x": x})


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("call", CASES)
def test_unary(chips, call, dtype):
    name = call.partition("(")[0]
    x = values()
    if name in ("cosh", "sinh"):
        x = x.clamp(-80, 80)  # beyond it bfloat16 rounds finite float32 values to infinity
    if name in OWN_TAILS:
        x = x.nan_to_num().clamp(*OWN_TAILS[name])
    cut = in_bfloat16_dest(name.upper()) or name in ("leaky_relu", "sigmoid_accurate", "softplus")
    steps = 2 if cut and dtype == ttnn.bfloat16 else 1  # the last bits (test_families.py)
    assert_values(run(call, chips.put(x, dtype)), CASES[call](x.double()), dtype, steps)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize(
    "call, limits", {"clamp(x, 0.25, 0.75)": (0.75, 0.25), "logit(x, eps=0.25)": (LOGIT, -LOGIT)}.items()
)
def test_a_limit_takes_nan_for_infinity_of_its_sign(chips, call, limits, dtype):
    """As on a simulated N150, and clamp on a P150."""
    x = torch.tensor([[math.nan, math.nan, math.inf, math.inf]]).bfloat16()
    x = x.copysign(torch.tensor([1, -1, 1, -1])).to(torch.float32 if dtype == ttnn.float32 else torch.bfloat16)
    (got, *_) = chips.get(run(call, chips.put(x, dtype)))
    if call.startswith("logit") and dtype == ttnn.bfloat16:
        limits = 1.1015625, -1.09375  # of quotients that are rounded
    torch.testing.assert_close(got.float(), torch.tensor([limits * 2]), rtol=4e-3, atol=0)


def above_two() -> torch.Tensor:
    return (values().nan_to_num(1).abs().clamp(max=100) + 2).bfloat16().float()


GAMMA_FUNCTIONS = {
    "ttnn.digamma(x)": ("torch.special.digamma(x)", above_two),
    "ttnn.multigammaln(x)": ("torch.special.multigammaln(x, 4)", lambda: above_two() + 3),
    "ttnn.polygamma(x, 1)": ("torch.special.polygamma(1, x)", above_two),
    "ttnn.polygamma(x, 3)": ("torch.special.polygamma(3, x)", above_two),
}
test_gamma_functions = examples(GAMMA_FUNCTIONS, globals(), dtype=ttnn.float32, special=True)


def finite():
    return values(1.0).nan_to_num()[..., :44].contiguous()


X, HELD = (1, 2, 32, 64), Put((1, 1, 33, 45), ttnn.bfloat8_b)
EXP = ttnn.UnaryWithParam(ttnn.UnaryOpType.EXP, 1)
NONE = torch.tensor([[math.nan, math.inf, -math.inf]])
TENTHS = "torch.round(x.float() * 10) * torch.tensor(0.1)"
OTHERS = {
    # As on a simulated N150: infinity in bfloat16, NaN in float32. The inverse of 1 - x is 0 for the largest bfloat16.
    "ttnn.logit(x)  # of NaN and infinity": ("x * math.nan", NONE),
    "ttnn.logit(x)  # in float32": ("torch.log(x / (1 - x))", Put(values, ttnn.float32), {"to": ttnn.float32}),
    "ttnn.logit(x)  # of the largest": ("torch.log(2 * x * (x == 0.5))", torch.tensor([[3e38, -3e38, 0.5]])),
    # The bfloat16 below 1 - 0.01 is 0.98828.
    "ttnn.logit(x, eps=0.01)": ("x * 4.4375", torch.ones(1, 1, 32, 32), {"error": 0}),
    "ttnn.round(x, decimals=1)": (f"cut({TENTHS})", (1, 1, 32, 32), {"error": 0}),
    "ttnn.round(x, decimals=1)  # in float32": (TENTHS, Put((1, 1, 32, 32), ttnn.float32), {"to": ttnn.float32}),
    "ttnn.atan(x)": ("packed(in_bfloat16_dest('ATAN')(x.bfloat16()))", HELD, {"error": 0}),
    "ttnn.alt_complex_rotate90(x)": (
        "torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * 1j).flatten(-2)",
        finite,
    ),
    # The fast exp: tests/test_special.py has a chip's.
    "ttnn.unary_chain(x, [EXP]) - ttnn.exp(x, fast_and_approximate_mode=True)": ("x * 0", X, {"error": 0}),
    "ttnn.logical_not_(x)": ("((x == 0) & ~x.signbit()).double()", finite, {"in_place": True}),
    "ttnn.logical_not(x, output_tensor=ttnn.zeros_like(x))": ("((x == 0) & ~x.signbit()).double()", finite),
    # Into a tensor that is there.
    "ttnn.elu(y, output_tensor=x)": ("F.elu(y)", X, X, {"in_place": True}),
    "ttnn.nez(y, output_tensor=x)": ("(y != 0).double()", values, values, {"in_place": True}),
}
test_others = examples(OTHERS, globals(), special=True)

NUMBERS = [0, 1, -1, 2**31 - 1, -(2**31), 5, -7, 1 << 20]
PLACES = [0, 1, 4, 31, 32, 33, 16, 7]


def integers() -> torch.Tensor:
    """Any int32, with those in NUMBERS before each of PLACES."""
    x = torch.randint(-(2**31), 2**31 - 1, (1, 1, 32, 64))
    x[..., 0, :64] = torch.tensor([i for i in NUMBERS for _ in PLACES])
    return x


def places() -> torch.Tensor:
    x = torch.randint(0, 32, (1, 1, 32, 64))
    x[..., 0, :64] = torch.tensor(PLACES * len(NUMBERS))
    return x


def as_int32(x: torch.Tensor) -> torch.Tensor:
    return x.add(2**31).remainder(2**32).sub(2**31)


def left(x, n):
    n = torch.as_tensor(n)
    return as_int32(torch.where(n < 32, x * 2 ** n.clamp(max=31), 0))


def right(x, n):
    """0 from 32 places on (ckernel_sfpu_shift.h; a simulated N150)."""
    n = torch.as_tensor(n)
    return torch.where(n < 32, torch.div(x, 2 ** n.clamp(max=31), rounding_mode="floor"), 0)


def logical_right(x, n):
    return as_int32(right(x.remainder(2**32), n))


def bits_of_a_float() -> torch.Tensor:
    x = integers().int()
    return x.masked_fill(x.view(torch.float32).isnan(), 0)


def up_to(largest: int):
    return lambda: torch.randint(1, largest, (1, 1, 32, 64))


HALF, SHIFTS = (Put(up_to(largest), ttnn.uint16) for largest in (2**16, 16))
# Against arithmetic of unlimited width.
INTEGERS = {
    "ttnn.bitwise_not(x)": ("-x - 1", integers),
    "ttnn.fill(x, 7)": ("torch.full_like(x, 7)", integers),
    "ttnn.relu_min(x, -5)": ("x.clamp(min=-5)", integers),
    "ttnn.lcm(x, y)": ("torch.lcm(x, y)", up_to(1000), up_to(1000)),
    "ttnn.bitcast(x, ttnn.float32)":  # a simulated N150 has no denormals, and the last 13 bits are lost
        ("F.threshold((x.int() & -8192).view(torch.float32).abs(), 2**-126 - 2**-149, 0) * x.sign()", bits_of_a_float),
    "ttnn.typecast(ttnn.bitcast(x, ttnn.uint16), ttnn.int32)":
        ("x.bfloat16().view(torch.int16).int() & 0xFFFF", (1, 1, 32, 64)),
}  # fmt: skip
for name, want in {
    "bitwise_and": "x & {}",
    "bitwise_or": "x | {}",
    "bitwise_xor": "x ^ {}",
    "bitwise_left_shift": "left(x, {})",
    "logical_left_shift": "left(x, {})",
    "bitwise_right_shift": "right(x, {})",
    "logical_right_shift": "logical_right(x, {})",
}.items():
    INTEGERS[f"ttnn.{name}(x, y)"] = want.format("y"), integers, places
    INTEGERS[f"ttnn.{name}(x, 5)"] = want.format("5"), integers
    if name in ("bitwise_and", "bitwise_left_shift", "bitwise_right_shift"):
        call = f"ttnn.typecast(ttnn.{name}(x, y), ttnn.int32)"  # of uint16
        INTEGERS[call] = f"({want.format('y')}) % 2**16", HALF, SHIFTS
test_integers = examples(INTEGERS, globals(), error=0)

X4, WHOLE = Put((1, 2, 32, 64), ttnn.float32), lambda: torch.randint(-99, 99, (1, 2, 32, 64))
CHANNELS = Put(lambda: torch.rand(64) + 0.05, ttnn.float32), lambda: torch.randint(-9, 9, (64,))


def nearest(x: torch.Tensor) -> torch.Tensor:
    """Ties away from zero."""
    return torch.floor(x.abs() + 0.5) * x.sign()


QUANTIZED = {
    "ttnn.quantize(x, 2**-8, -9)": ("nearest(x.float() * 256 - 9).clamp(-127, 127)", X4),
    "ttnn.quantize(x, y, z, axis=3)": ("torch.trunc(x.float() / y.float() + z)", X4, *CHANNELS),
    "ttnn.requantize(x, 0.05, 3, 0.125, -1)": ("torch.round((x - 3) * (0.05 / 0.125) - 1)", WHOLE),
    "ttnn.requantize(x, 0.5, 3, 0.125, -1)": ("torch.round((x - 3) * 4.0 - 1).clamp(-127, 127)", WHOLE),
}
DEQUANTIZED = {
    "ttnn.dequantize(x, 0.05, 3, dtype=ttnn.float32)": ("(x - 3) * 0.05", WHOLE),
    "ttnn.dequantize(x, y, z, axis=3, dtype=ttnn.float32)": ("(x - z) * y", WHOLE, *CHANNELS),
}
test_quantized = examples(QUANTIZED, globals(), error=0)
test_dequantized = examples(DEQUANTIZED, globals(), error=1e-6)


def test_unknown_arguments_of_a_rule_are_refused(chips):
    """ttnn's own golden function would ignore the parameter."""
    with pytest.raises(GoldenError, match="table"):
        a = chips.put(torch.ones(1, 1, 32, 32))
        ttnn.bias_gelu(a, a, fast_and_approximate_mode=True)
