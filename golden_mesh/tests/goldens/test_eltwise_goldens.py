"""Elementwise ops of several tensors: with activations, in place, with numbers, broadcast.

test_families.py has the ops that have a chip's records of their usual form.
"""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic.vector import in_bfloat16_dest
from golden_mesh.errors import GoldenError
from goldens.support import Put, assert_same, assert_values, bf16, examples

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e30, 1e-30, 1.0, -1.0, 0.5, -2.5]
PAIRS = torch.tensor(list(itertools.product(SPECIAL, repeat=2)))
DTYPES = {"bfloat16": ttnn.bfloat16, "float32": ttnn.float32}
IN_BOTH_DTYPES = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
X, TILES = (1, 2, 33, 45), (1, 1, 32, 64)
U, Unary = ttnn.UnaryOpType, ttnn.UnaryWithParam
SQUARE = Unary(U.POWER, 2.0)
BEFORE = {"input_tensor_a_activations": [U.SILU], "input_tensor_b_activations": [U.EXP]}


def pair() -> list[torch.Tensor]:
    """Two tensors of random values that bfloat16 holds. All pairs of special values come first."""
    tensors = []
    for special in PAIRS.unbind(1):
        x = torch.randn(2 * 33 * 45).mul(2).bfloat16().float()
        x[: len(special)] = special.bfloat16().float()
        tensors.append(x.masked_fill(x.isnan(), math.nan).reshape(X))
    return tensors


def mild() -> torch.Tensor:
    """Sums of two stay above the tail of gelu, where the kernel has its own values."""
    return bf16(*TILES).clamp(min=-1.5)


def kernel(name: str, x: torch.Tensor) -> torch.Tensor:
    """A function of the vector unit with a bfloat16 dest; test_vectors.py holds it to records."""
    return in_bfloat16_dest(name)(x.bfloat16()).double()


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().double()


def logaddexp2(a, b):
    return torch.logaddexp(a * math.log(2), b * math.log(2)) / math.log(2)


# Torch's result for two tensors in float64, also for special values.
BINARY = {
    "atan2": torch.atan2,
    "div_no_nan": lambda a, b: torch.where(b == 0, 0.0, a / b),
    "hypot": lambda a, b: torch.sqrt(sum(x.float().square() for x in (a, b))),
    "ldexp": lambda a, b: a * 2**b,
    "logaddexp": torch.logaddexp,
    "logaddexp2": logaddexp2,
}
COMPARISONS = {name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
COMPARISONS |= {f"logical_{name}": getattr(torch, f"logical_{name}") for name in ("and", "or", "xor")}
ARITHMETIC = {
    "add": torch.add,
    "subtract": torch.subtract,
    "multiply": torch.multiply,
    "divide": torch.divide,
    "rsub": lambda a, b: b - a,
    "squared_difference": lambda a, b: (a - b) * (a - b),
}
IN_PLACE = COMPARISONS | ARITHMETIC
IN_PLACE |= {name: BINARY[name] for name in ("ldexp", "logaddexp", "logaddexp2")}
WITH_NUMBERS = IN_PLACE | {"div": torch.div, "maximum": torch.maximum, "minimum": torch.minimum}
# Roundings of a result in bfloat16 where they are several.
STEPS = {"squared_difference": 3, "logaddexp2": 2, "logaddexp": 2, "ldexp": 3, "hypot": 2}


@IN_BOTH_DTYPES
@pytest.mark.parametrize("name", BINARY | COMPARISONS)
def test_binary(chips, name, dtype):
    a, b = pair()
    if name.startswith("logaddexp"):  # where terms do not cancel
        a, b = (torch.where(x.isfinite(), x.abs(), x) for x in (a, b))
    if name == "ldexp":  # the rest is in the exponents' own range
        a, b = (x.nan_to_num(1, 1, 1).clamp(-100, 100) for x in (a, b))
    want = lambda x, y: (BINARY | COMPARISONS)[name](x, y).double()
    chips.check(getattr(ttnn, name), want, a, b, dtype=dtype, steps=STEPS.get(name, 1), special=True)


def test_the_lowest_integer_is_a_zero_in_a_logical_operation(chips):
    """Recorded on a simulated N150; on a P150 it is none."""
    lowest = -1 << 31
    a = torch.tensor([[0, 1, lowest, lowest, lowest, lowest + 1]], dtype=torch.int32)
    b = torch.tensor([[lowest, lowest, 0, 5, lowest, lowest]], dtype=torch.int32)
    a, b = (chips.put(x, ttnn.int32) for x in (a, b))
    for name, want in {"and": [0] * 6, "or": [0, 1, 0, 1, 0, 1], "xor": [0, 1, 0, 1, 0, 1]}.items():
        assert chips.get(getattr(ttnn, f"logical_{name}")(a, b))[0].flatten().tolist() == want, name
    for name, want in {"eqz": 1, "nez": 0, "ltz": 0, "gtz": 0, "lez": 1, "gez": 1}.items():
        assert chips.get(getattr(ttnn, name)(a))[0].flatten()[3] == want, name


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_binary_with_a_number(chips, name):
    want = lambda x: WITH_NUMBERS[name](x, torch.tensor(1.5)).double()
    chips.check(lambda x: getattr(ttnn, name)(x, 1.5), want, X, steps=STEPS.get(name, 1))


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_changes_the_operand_and_no_replica_of_it(chips, name):
    a, b = pair()
    b = b.clamp(-100, 100) if name == "ldexp" else b
    op, how = getattr(ttnn, f"{name}_"), dict(dtype=ttnn.float32, special=True, in_place=True)
    chips.check(op, lambda x, y: IN_PLACE[name](x, y).double(), a, b, **how)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_with_a_number_and_an_activation_of_the_result(chips, name):
    chips.check(
        lambda x: getattr(ttnn, f"{name}_")(x, 1.5, activations=[U.NEG]),
        lambda x: -IN_PLACE[name](x, torch.tensor(1.5)).double(),
        X, in_place=True, special=True, steps=STEPS.get(name, 1),
    )  # fmt: skip


EXAMPLES = {
    "x / y": ("x / y", X, X),
    "6 - x": ("6 - x", X),
    "x >= y": ("(x >= y).double()", X, X),
    "ttnn.subtract(2.5, x)": ("2.5 - x", X),
    "ttnn.add_(x, x)": ("x + x", X, {"in_place": True}),
    "ttnn.multiply_(x, y, activations=[U.RELU], **BEFORE)":
        ("F.relu(kernel('SILU', x) * kernel('EXP', y))", X, X, {"in_place": True}),
    "ttnn.add(y, 1.0, output_tensor=x)": ("y + 1", X, X, {"in_place": True}),
    "ttnn.multiply(x, y[:, :, :1, :1])": ("x * y[:, :, :1, :1]", X, X),
    "ttnn.add(x, y, input_tensor_b_activations=[U.SQUARE], activations=[U.NEG, U.RELU])":
        ("F.relu(-(x + rounded(y * y)))", X, X),
    "ttnn.add(x, y, activations=[SQUARE])": ("(x + y) ** 2", X, X, {"steps": 3}),
    "ttnn.multiply(x, y, input_tensor_a_activations=[SQUARE])": ("x**2 * y", X, X, {"steps": 2}),
    "ttnn.mul(x, y, input_tensor_a_activations=[Unary(U.GELU, 0)])": ("F.gelu(x) * y", X, X, {"steps": 2}),
    # UnaryOpType.GELU without a parameter means a table (tests/test_families.py), a parameter of 0 the function.
    "ttnn.gelu(x, fast_and_approximate_mode=True) - ttnn.add(x, x * 0, input_tensor_a_activations=[U.GELU])":
        ("x * 0", X, {"error": 0}),
    "ttnn.gelu(x, variant=ttnn.GeluVariant.Tanh)": ("F.gelu(x, approximate='tanh')", X),
    "ttnn.unary_chain(x, [Unary(U.RELU), Unary(U.EXP, 0.0)])": ("kernel('EXP', x.clamp(min=0))", X),
    "ttnn.div(3.0, x)": ("3 / x", X),
    "ttnn.div(3.0, x, rounding_mode='floor')": ("torch.floor((3 / x).bfloat16().double())", X),
    "ttnn.pow(x, 2)": ("cut(x**2)", X, {"error": 0}),  # as a simulated N150 and P150, 3,840 values
    "ttnn.pow(x, 1.5)": ("x**1.5", lambda: bf16(*X).abs(), {"steps": 2}),  # a cubic for the logarithm
    "ttnn.where(ttnn.gtz(x), y, -1.5)": ("torch.where(x > 0, y, -1.5)", X, X),
    "ttnn.floor_div(x, 2.0)": ("torch.floor(x / 2)", X),
    "ttnn.remainder(x, 0.5)": ("torch.remainder(x.float(), 0.5)", X),
    "ttnn.fmod(x, 0.5)": ("torch.fmod(x.float(), 0.5)", X),
    "ttnn.div_no_nan(x, 0.0)": ("x * 0", X),
    "ttnn.div_no_nan(x, value=2.0)": ("x / 2", X),
    "ttnn.lerp(x, y, 0.0)": ("x", X, X),
    "ttnn.addcmul(x, y[:, :, :1], z, value=-1.0)": ("x - rounded(y[:, :, :1] * z)", X, X, X, {"steps": 2}),
    "ttnn.prelu(x, 0.2)": ("cut(torch.where(x > 0, x, x.float() * 0.2))", X, {"error": 0}),  # as a simulated N150
    "ttnn.prelu(x, [0.25])": ("torch.where(x > 0, x, x / 4)", X),
    "ttnn.clamp(x, min=-0.5, max=0.25)": ("x.clamp(-0.5, 0.25)", X),
    "ttnn.clip(x, min=-0.5, max=0.25)": ("x.clamp(-0.5, 0.25)", X),
    "ttnn.add(x, y)": ("x + y", X, Put(lambda: bf16(*X))),  # one operand alike on all chips
    "ttnn.add_(x, y)": ("x + y", Put(lambda: bf16(*X)), X, {"in_place": True}),  # replicas part
    # A block float is rounded as a packer does. A float32 result of bfloat16 is not rounded.
    "ttnn.multiply(x, y, dtype=ttnn.bfloat8_b)": ("packed(x * y)", X, X, {"error": 0}),
    "ttnn.add(x, y, dtype=ttnn.float32)": ("x + y", X, X, {"to": ttnn.float32}),
    "ttnn.multiply(x, y, dtype=ttnn.float32)": ("x * y", X, X, {"to": ttnn.float32}),
    # A number is rounded to the dtype of the tensor that it meets.
    "ttnn.multiply(x, 0.1, dtype=ttnn.float32)": ("x * 0.10009765625", torch.ones(1, 1, 32, 32), {"error": 0}),
    "ttnn.outer(x, y)": ("torch.outer(x, y)", lambda: bf16(64), lambda: bf16(96), {"special": True}),
    "ttnn.prelu(x, y)": ("F.prelu(x, y)", lambda: pair()[0], torch.tensor([0.25, -2.0]), {"special": True}),
}  # fmt: skip

for op, (dim, shape) in itertools.product(("ADD", "SUB", "MUL"), (("H", (1, 64)), ("W", (32, 1)), ("HW", (1, 1)))):
    call = f"ttnn.bcast(x, y, ttnn.BcastOpMath.{op}, ttnn.BcastOpDim.{dim})"
    EXAMPLES[call] = f"torch.{op.lower()}(x, y)", (1, 2, 32, 64), (1, 2, *shape)
test_examples = examples(EXAMPLES, globals())


FLOAT32 = {
    "ttnn.geglu(x, 3, variant=ttnn.GeluVariant.Tanh)": ("x[..., :32] * F.gelu(x[..., 32:], approximate='tanh')", TILES),
    "ttnn.clamped_silu_glu(x, y, 0.5)": ("F.silu(x.clamp(max=0.5)) * y.clamp(-0.5, 0.5)", TILES, TILES),
    "ttnn.bias_gelu(x, y)": ("F.gelu(x + y)", mild, mild),
    "ttnn.bias_gelu(x, 0.75)": ("F.gelu(x + 0.75)", mild),
    "ttnn.bias_gelu_(x, y)": ("F.gelu(x + y)", mild, mild, {"in_place": True}),
    "ttnn.lerp(x, y, 1.0)": ("y", TILES, TILES),
    "ttnn.nextafter(x, y)": ("torch.nextafter(x.float(), y.float())", TILES, TILES, {"error": 0}),
    "ttnn.polyval(x, [3.0, 0.0, -2.0, 0.5])": ("3 * x**3 - 2 * x + 0.5", TILES),
    "ttnn.multiply(x, 0.1)": ("x * torch.tensor(0.1).double()", TILES),  # a number is whole
}
for loss in ("l1_loss", "mse_loss"):
    for how in ("NONE", "SUM", "MEAN"):
        call = f"ttnn.{loss}(x, y, reduction=ttnn.LossReductionMode.{how})"
        FLOAT32[call] = f"F.{loss}(x, y, reduction='{how.lower()}')", TILES, TILES

test_examples_in_float32 = examples(FLOAT32, globals(), dtype=ttnn.float32, special=True)


@pytest.mark.parametrize("equal_nan", (False, True))
def test_isclose_knows_its_tolerances(chips, equal_nan):
    a, b = pair()
    b[..., 10:, :] = a[..., 10:, :] * (1 + 0.1 * torch.rand(1, 2, 23, 45))
    how = dict(rtol=0.05, atol=0.01, equal_nan=equal_nan)
    want = torch.isclose(a, b.bfloat16().float(), **how)
    assert 100 < want.sum() < 2000
    x, y = chips.put(a, ttnn.float32), chips.put(b.bfloat16().float(), ttnn.float32)
    assert_values(ttnn.isclose(x, y, **how), want.float())


@pytest.mark.parametrize("name", ("glu", "reglu", "swiglu", "geglu"))
def test_gated_units_multiply_the_first_half_by_the_activation_of_the_second(chips, name):
    x = torch.cat([p[..., :32] for p in pair()], -1).nan_to_num().clamp(-3, 100)  # the tails are the kernels'
    value, gate = x.double().chunk(2, -1)
    activations = {"glu": torch.sigmoid, "reglu": torch.relu, "swiglu": F.silu, "geglu": F.gelu}
    got = chips.get(getattr(ttnn, name)(chips.put(x), -1))
    want = value * rounded(activations[name](gate))
    assert_values([g[:, :, :33] for g in got], want)  # ttnn gives the padded rows, too


ACTIVATIONS = {
    "U.RELU6": "x.clamp(0, 6)",
    "U.SELU, 1.0, 1.5": "torch.where(x > 0, x, 1.5 * x.expm1())",
    "U.SOFTPLUS, 2.0, 20.0": "(2 * x).exp().log1p() / 2",
    "U.HARDTANH, -1.0, 2.0": "x.clamp(-1, 2)",
    "U.CLAMP_TSS, -0.5, 0.5": "x.clamp(-0.5, 0.5)",
    "U.LEAKY_RELU, 0.25": "torch.where(x > 0, x, x / 4)",
    "U.ELU, 2.0": "torch.where(x > 0, x, 2 * x.expm1())",
    "U.THRESHOLD, 1.0, -3.0": "torch.where(x > 1, x, -3.0)",
    "U.RSUB, 1.0": "1 - x",
}
FUSED = {
    f"ttnn.add(x, 0.0, activations=[Unary({numbers})])": (want, lambda: 4 * bf16(32, 64))
    for numbers, want in ACTIVATIONS.items()
}
test_an_activation_with_numbers_is_fused = examples(FUSED, globals(), dtype=ttnn.float32, steps=8)


@pytest.mark.parametrize("dtype", (ttnn.bfloat8_b, ttnn.bfloat4_b))
@pytest.mark.parametrize(
    "op, x, at", (("log", 0.0, -math.inf), ("reciprocal", 0.0, math.inf), ("acosh", 0.5, math.inf))
)
def test_beside_an_infinity_a_block_float_is_zero(chips, op, x, at, dtype):
    """On a simulated N150; the packer writes infinity for NaN."""
    held = torch.full((1, 1, 32, 32), 2.0)
    held[..., 3] = x
    want = torch.zeros(1, 1, 32, 32)
    want[..., 16:] = getattr(torch, op)(held[..., 16:])
    want[..., 3] = at
    for got in chips.get(getattr(ttnn, op)(chips.put(held, dtype))):
        torch.testing.assert_close(got.float(), want, rtol=0.2, atol=0)


def test_hypot_of_block_floats_packs_the_squares(chips):
    """0.25 beside a square of 36, whose last bit is 0.5, becomes 0.5: integers times 0.5 judge."""
    a = torch.zeros(1, 1, 32, 32)
    a[..., 0], a[..., 1] = 6.0, 0.5
    want = torch.zeros(1, 1, 32, 32)
    want[..., 0], want[..., 1] = 6.0, 0.6875  # the root of 0.5, to the last bit of 6
    assert_same(ttnn.hypot(chips.put(a, ttnn.bfloat8_b), chips.put(0 * a, ttnn.bfloat8_b)), want)


A, B, LONG = (1, 1, 32, 32), (1, 1, 32, 5120), (1, 1, 32, 5120 * 32)
MAMBA = {
    # A bfloat16 dest rounds after each fidelity phase that adds bits.
    "E.repeat_and_interleave_eltwise_mul(x, y)": ("interleaved(x, y)", A, B, {"steps": 3}),
    "E.hc_sum_reduce(x)": ("x.unflatten(-1, (5120, 32)).sum(-1)", LONG, {"error": 3e-3}),
}
test_mamba = examples(MAMBA, globals())


def interleaved(a, b):
    return (b.unsqueeze(-1) * a.unsqueeze(-2)).flatten(-2)


def test_refusals_name_the_op(chips):
    a = chips.put(bf16(*TILES))
    with pytest.raises(GoldenError, match="activation"):
        ttnn.add(a, a, activations=[Unary(U.XIELU, 0.8, 0.8)])
    with pytest.raises(GoldenError, match="ttnn.scatter .*reduce=.add"):
        ttnn.scatter(a, -1, chips.put(torch.zeros(TILES).int()), a, reduce="add")
