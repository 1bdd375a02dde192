"""Elementwise ops of several tensors: plain and with activations, in place, with numbers, broadcast.

test_families.py has the ops that have a chip's records of their usual form.
"""

import itertools
import math
from inspect import signature

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic.packer import pack
from golden_mesh.arithmetic.vector import in_bfloat16_dest
from golden_mesh.errors import GoldenError
from goldens.support import assert_close, assert_near, assert_same, assert_values

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e30, 1e-30, 1.0, -1.0, 0.5, -2.5]
PAIRS = torch.tensor(list(itertools.product(SPECIAL, repeat=2)))
DTYPES = {"bfloat16": ttnn.bfloat16, "float32": ttnn.float32}
U = ttnn.UnaryOpType
SQUARE = ttnn.UnaryWithParam(U.POWER, 2.0)


def pair() -> list[torch.Tensor]:
    """Two tensors [1, 2, 33, 45] of random values that bfloat16 holds. All pairs of special values come first."""
    tensors = []
    for special in PAIRS.unbind(1):
        x = torch.randn(2 * 33 * 45).mul(2).bfloat16().float()
        x[: len(special)] = special.bfloat16().float()
        tensors.append(x.masked_fill(x.isnan(), math.nan).reshape(1, 2, 33, 45))
    return tensors


def finite(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16().float()


def kernel(name: str, x: torch.Tensor) -> torch.Tensor:
    """A function as the vector unit computes it with a bfloat16 dest; test_vectors.py holds it to records."""
    return in_bfloat16_dest(name)(x.bfloat16()).double()


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().double()


def logaddexp2(a, b):
    return torch.logaddexp(a * math.log(2), b * math.log(2)) / math.log(2)


# Torch's result for two tensors in float64, also for special values.
BINARY = {
    "atan2": torch.atan2,
    "div_no_nan": lambda a, b: torch.where(b == 0, 0.0, a / b),
    "floor_div": lambda a, b: torch.floor((a / b).float()),
    "fmod": torch.fmod,
    "hypot": lambda a, b: torch.where(a.isinf() | b.isinf(), math.inf, torch.sqrt(a * a + b * b)),
    "ldexp": lambda a, b: a * 2**b,
    "logaddexp": torch.logaddexp,
    "logaddexp2": logaddexp2,
    "remainder": torch.remainder,
    "xlogy": lambda a, b: torch.where((a == 0) & ~b.isnan(), 0.0, a * torch.log(b)),
}
COMPARISONS = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}
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
STEPS = {"squared_difference": 3, "xlogy": 4, "logaddexp2": 2, "logaddexp": 2}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("name", [*BINARY, "ne", "lt", "ge", *list(COMPARISONS)[-3:]])
def test_binary(chips, name, dtype):
    a, b = pair()
    b = b.clamp(-100, 100) if name == "ldexp" else b  # the rest is in the exponents' own range
    got = getattr(ttnn, name)(chips.put(a, dtype), chips.put(b, dtype))
    inputs = (a, b) if name in ("fmod", "remainder") else (a.double(), b.double())
    want = (BINARY | COMPARISONS)[name](*inputs).double()
    assert_values(got, want, dtype, STEPS.get(name, 1) if name == "xlogy" else 1)


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_binary_with_a_number(chips, name):
    a = chips.draw(1, 2, 33, 45)
    got = getattr(ttnn, name)(chips.put(a), 1.5)
    want = [WITH_NUMBERS[name](x.double(), torch.tensor(1.5)).double() for x in a]
    assert_close(got, want, steps=STEPS.get(name, 1))


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_changes_the_operand_and_no_replica_of_it(chips, name):
    a, b = pair()
    b = b.clamp(-100, 100) if name == "ldexp" else b
    target = chips.put(a, ttnn.float32)
    copy = ttnn.clone(target)
    getattr(ttnn, f"{name}_")(target, chips.put(b, ttnn.float32))
    want = IN_PLACE[name](a.double(), b.double()).double()
    if name in ("add", "subtract", "multiply", "divide"):
        want = IN_PLACE[name](a, b).double()
    assert_values(target, want, ttnn.float32)
    assert_values(copy, a, ttnn.float32)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_with_a_number_and_an_activation_of_the_result(chips, name):
    a = finite(1, 1, 33, 45)
    target = chips.put(a)
    getattr(ttnn, f"{name}_")(target, 1.5, activations=[U.NEG])
    want = -IN_PLACE[name](a.double(), torch.tensor(1.5).double()).double()
    assert_values(target, want, steps=3 if name == "squared_difference" else 1)


@pytest.mark.parametrize("name", ("add", "subtract", "multiply", "divide"))
def test_in_place_with_activations_of_all(chips, name):
    a, b = chips.draw(1, 1, 33, 45), chips.draw(1, 1, 33, 45)
    target = chips.put(a)
    activations = {
        f"input_tensor_{side}_activations": [u] for side, u in zip("ab", (U.SILU, U.EXP))
    }
    getattr(ttnn, f"{name}_")(target, chips.put(b), activations=[U.RELU], **activations)
    before = [(kernel("SILU", x), kernel("EXP", y)) for x, y in zip(a, b)]
    assert_close(target, [F.relu(ARITHMETIC[name](x, y)) for x, y in before])


# A call of one to three tensors that differ by chip, torch's result in float64, and the roundings of the result.
CALLS = {
    "a number first": (lambda a: ttnn.subtract(2.5, a), lambda a: 2.5 - a, 1),
    "an operand twice": (lambda a: ttnn.add_(a, a), lambda a: a + a, 1),
    "a row": (lambda a, b: ttnn.multiply(a, b[:, :, :1]), lambda a, b: a * b[:, :, :1], 1),
    "a column": (lambda a, b: ttnn.multiply(a, b[..., :1]), lambda a, b: a * b[..., :1], 1),
    "a value a head": (
        lambda a, b: ttnn.multiply(a, b[:, :, :1, :1]),
        lambda a, b: a * b[:, :, :1, :1],
        1,
    ),
    "a silu with no number": (
        lambda a, b: ttnn.mul(a, b, input_tensor_a_activations=[ttnn.UnaryWithParam(U.SILU)]),
        lambda a, b: kernel("SILU", a) * b,
        1,
    ),
    "activations of b and of the result": (
        lambda a, b: ttnn.add(
            a, b, input_tensor_b_activations=[U.SQUARE], activations=[U.NEG, U.RELU]
        ),
        lambda a, b: F.relu(-(a + rounded(b * b))),
        1,
    ),
    "a power of the result": (
        lambda a, b: ttnn.add(a, b, activations=[SQUARE]),
        lambda a, b: (a + b) ** 2,
        3,
    ),
    "a power of a": (
        lambda a, b: ttnn.multiply(a, b, input_tensor_a_activations=[SQUARE]),
        lambda a, b: a**2 * b,
        2,
    ),
    "exact gelu": (
        lambda a, b: ttnn.mul(a, b, input_tensor_a_activations=[ttnn.UnaryWithParam(U.GELU, 0)]),
        lambda a, b: F.gelu(a) * b,
        2,
    ),
    "gelu by tanh": (
        lambda a: ttnn.gelu(a, variant=ttnn.GeluVariant.Tanh),
        lambda a: F.gelu(a, approximate="tanh"),
        1,
    ),
    "a chain": (
        lambda a: ttnn.unary_chain(
            a, [ttnn.UnaryWithParam(U.RELU), ttnn.UnaryWithParam(U.EXP, 0.0)]
        ),
        lambda a: kernel("EXP", a.clamp(min=0)),
        1,
    ),
    "floor of a quotient": (
        lambda a, b: ttnn.div(a, b, rounding_mode="floor"),
        lambda a, b: torch.floor(a / b),
        1,
    ),
    "trunc of a quotient": (
        lambda a, b: ttnn.div(a, b, rounding_mode="trunc"),
        lambda a, b: torch.trunc(a / b),
        1,
    ),
    "pow 2": (lambda a: ttnn.pow(a, 2), lambda a: a**2, 1),
    "pow 3": (lambda a: ttnn.pow(a, 3.0), lambda a: a**3, 1),
    "where": (
        lambda a, b: ttnn.where(ttnn.gtz(a), b, -1.5),
        lambda a, b: torch.where(a > 0, b, torch.tensor(-1.5)),
        1,
    ),
    "floor_div": (lambda a: ttnn.floor_div(a, 2.0), lambda a: torch.floor(a / 2), 1),
    "remainder": (lambda a: ttnn.remainder(a, 0.1), lambda a: torch.remainder(a.float(), 0.1), 1),
    "fmod": (lambda a: ttnn.fmod(a, 0.1), lambda a: torch.fmod(a.float(), 0.1), 1),
    "no nan": (lambda a: ttnn.div_no_nan(a, 0.0), torch.zeros_like, 1),
    "no nan, value": (lambda a: ttnn.div_no_nan(a, value=2.0), lambda a: a / 2, 1),
    "lerp 0": (lambda a, b: ttnn.lerp(a, b, 0.0), lambda a, b: a, 1),
    "mac": (lambda a, b: ttnn.mac(a, 2.0, b), lambda a, b: a * 2 + b, 1),
    "addcmul, a row": (
        lambda a, b, c: ttnn.addcmul(a, b[:, :, :1], c, value=-1.0),
        lambda a, b, c: a - rounded(b[:, :, :1] * c),
        2,
    ),
    "prelu": (lambda a: ttnn.prelu(a, 0.25), lambda a: torch.where(a > 0, a, a / 4), 1),
    "prelu of a list": (lambda a: ttnn.prelu(a, [0.25]), lambda a: torch.where(a > 0, a, a / 4), 1),
}
for name in ("clamp", "clip"):
    for bounds in ({"min": -0.5, "max": 0.25}, {"min": -0.5}, {"max": 0.25}):
        CALLS[f"{name} {bounds}"] = (
            lambda a, name=name, bounds=bounds: getattr(ttnn, name)(a, **bounds),
            lambda a, bounds=bounds: a.clamp(**bounds),
            1,
        )


@pytest.mark.parametrize("name", CALLS)
def test_calls(chips, name):
    call, want, steps = CALLS[name]
    count = sum(p.default is p.empty for p in signature(call).parameters.values())
    inputs = [chips.draw(1, 2, 33, 45) for _ in range(count)]
    got = call(*map(chips.put, inputs))
    assert_close(got, [want(*(x.double() for x in each)) for each in zip(*inputs)], steps=steps)


# Ops of three tensors, or of two and a number.
TERNARY = {
    "addalpha": (lambda a, b, c: ttnn.addalpha(a, b, 2.5), lambda a, b, c: a + 2.5 * b),
    "subalpha": (lambda a, b, c: ttnn.subalpha(a, b, 2.5), lambda a, b, c: a - 2.5 * b),
    "addcmul": (lambda *t: ttnn.addcmul(*t, value=1.5), lambda a, b, c: a + 1.5 * b * c),
    "addcdiv": (lambda *t: ttnn.addcdiv(*t, value=1.5), lambda a, b, c: a + 1.5 * b / c),
    "mac": (ttnn.mac, lambda a, b, c: a * b + c),
    "lerp": (ttnn.lerp, lambda a, b, c: a + c * (b - a)),
    "snake_beta": (ttnn.snake_beta, lambda a, b, c: a + torch.sin(a * b) ** 2 / c),
}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("name", TERNARY)
def test_ternary(chips, name, dtype):
    call, function = TERNARY[name]
    a, b = pair()
    c = finite(1, 2, 33, 45)
    if name == "snake_beta":
        a, b = a.clamp(-100, 100), finite(1, 2, 33, 45)
    got = chips.get(call(*(chips.put(x, dtype) for x in (a, b, c))))
    wide = torch.float32 if dtype == ttnn.float32 else torch.float64
    want = function(*(x.to(wide) for x in (a, b, c))).double()
    # A difference of large numbers has their error.
    large = 0.01 * (a.abs() + b.abs()).double().nan_to_num(0, 0, 0)
    keep = (want.abs() > large) | ~want.isfinite()
    assert keep.sum() > 2000
    assert_values(
        [torch.where(keep, g.double(), 0) for g in got], torch.where(keep, want, 0), dtype
    )


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_nextafter_is_a_fixed_step_away_from_the_other(chips, dtype):
    a, b = finite(1, 1, 33, 45) * 2**-22, finite(1, 1, 33, 45) * 2**-22
    b[..., 0] = a[..., 0]
    got = ttnn.nextafter(chips.put(a, dtype), chips.put(b, dtype))
    step = torch.where(a > b, 1.19209e-7, torch.where(a < b, -1.19209e-7, 0.0))
    assert_near(got, a.double() + step, 4e-3 if dtype == ttnn.bfloat16 else 1e-6)
    assert_same([g[..., 0] for g in chips.get(got)], a[..., 0])


@pytest.mark.parametrize("equal_nan", (False, True))
def test_isclose_knows_its_tolerances(chips, equal_nan):
    a, b = pair()
    b[..., 10:, :] = a[..., 10:, :] * (1 + 0.1 * torch.rand(1, 2, 23, 45))
    b = b.bfloat16().float()
    how = dict(rtol=0.05, atol=0.01, equal_nan=equal_nan)
    want = torch.isclose(a, b, **how)
    assert 100 < want.sum() < 2000
    assert_values(
        ttnn.isclose(chips.put(a, ttnn.float32), chips.put(b, ttnn.float32), **how), want.float()
    )


# Calls in float32 of tensors [1, 1, 32, 64].
FLOAT32 = {
    "tanh of geglu": (
        lambda x: ttnn.geglu(x, 3, variant=ttnn.GeluVariant.Tanh),
        lambda x: x[..., :32] * F.gelu(x[..., 32:], approximate="tanh"),
    ),
    "clamped_silu_glu": (
        lambda g, u: ttnn.clamped_silu_glu(g, u, 0.5),
        lambda g, u: F.silu(g.clamp(max=0.5)) * u.clamp(-0.5, 0.5),
    ),
    "bias_gelu": (ttnn.bias_gelu, lambda a, b: F.gelu(a + b)),
    "bias_gelu, a number": (lambda a: ttnn.bias_gelu(a, 0.75), lambda a: F.gelu(a + 0.75)),
    "bias_gelu_": (ttnn.bias_gelu_, lambda a, b: F.gelu(a + b)),
    "lerp 1": (lambda a, b: ttnn.lerp(a, b, 1.0), lambda a, b: b),
    "polyval, highest power first": (
        lambda x: ttnn.polyval(x, [3.0, 0.0, -2.0, 0.5]),
        lambda x: 3 * x**3 - 2 * x + 0.5,
    ),
    "a number is whole": (
        lambda a: ttnn.multiply(a, 0.1),
        lambda a: a * torch.tensor(0.1).double(),
    ),
}
for name, loss in (("l1_loss", F.l1_loss), ("mse_loss", F.mse_loss)):
    for how in ("NONE", "SUM", "MEAN"):
        FLOAT32[f"{name} {how}"] = (
            lambda a, b, name=name, how=how: getattr(ttnn, name)(
                a, b, reduction=getattr(ttnn.LossReductionMode, how)
            ),
            lambda a, b, loss=loss, how=how: loss(a, b, reduction=how.lower()),
        )


@pytest.mark.parametrize("name", FLOAT32)
def test_calls_in_float32(chips, name):
    call, want = FLOAT32[name]
    plain = [p for p in signature(want).parameters.values() if p.default is p.empty]
    inputs = [finite(1, 1, 32, 64) for _ in plain]
    got = call(*(chips.put(x, ttnn.float32) for x in inputs))
    assert_values(got, want(*(x.double() for x in inputs)), ttnn.float32)


@pytest.mark.parametrize("name", ("glu", "reglu", "swiglu", "geglu"))
def test_gated_units_multiply_the_first_half_by_the_activation_of_the_second(chips, name):
    x = torch.cat([p[..., :32] for p in pair()], -1).clamp(-100, 100)
    value, gate = x.double().chunk(2, -1)
    activations = {"glu": torch.sigmoid, "reglu": torch.relu, "swiglu": F.silu, "geglu": F.gelu}
    got = chips.get(getattr(ttnn, name)(chips.put(x), -1))
    want = value * rounded(activations[name](gate))
    assert_values([g[:, :, :33] for g in got], want)  # ttnn gives the padded rows, too


@pytest.mark.parametrize("dim, shape", (("H", (1, 64)), ("W", (32, 1)), ("HW", (1, 1))))
@pytest.mark.parametrize("op", ("ADD", "SUB", "MUL"))
def test_bcast(chips, dim, shape, op):
    a, b = finite(1, 2, 32, 64), finite(1, 2, *shape)
    how = getattr(ttnn.BcastOpMath, op), getattr(ttnn.BcastOpDim, dim)
    want = getattr(torch, op.lower())(a, b)
    for g in chips.get(ttnn.bcast(chips.put(a), chips.put(b), *how)):
        # the engine's adder has eleven bits
        assert ((g - want).abs() <= 2**-7 * (a.abs() + b.abs())).all()


def test_gelu_by_a_table_is_within_two_hundredths(chips):
    """UnaryOpType.GELU without a parameter means this function. A parameter of 0 is the exact one."""
    x, one = chips.draw(1, 1, 33, 45), chips.put(torch.ones(1, 1, 33, 45))
    for table in (
        ttnn.gelu(chips.put(x), fast_and_approximate_mode=True),
        ttnn.mul(chips.put(x), one, input_tensor_a_activations=[U.GELU]),
    ):
        for g, v in zip(chips.get(table), x):
            assert 0.01 < (g - F.gelu(v)).abs().max() < 0.03


def test_a_replicated_operand_meets_each_chips_own(chips):
    a, b = chips.draw(1, 1, 33, 45), finite(1, 1, 33, 45)
    assert_close(ttnn.add(chips.put(a), chips.put(b)), [x + b for x in a])
    target = chips.put(b)
    ttnn.add_(target, chips.put(a))  # the replicas of b part here
    assert_close(target, [x + b for x in a])


def test_integers_stay_integers(chips):
    a, b = (torch.randint(-(2**24), 2**24, (1, 1, 32, 64)) for _ in "ab")
    x, y = (chips.put(t.int(), ttnn.int32) for t in (a, b))
    assert_same(ttnn.add(x, y), a + b)
    assert_same(ttnn.subtract(x, 7), a - 7)


def test_a_block_float_result_is_rounded_as_a_packer_does(chips):
    a, b = chips.draw(1, 1, 33, 45), chips.draw(1, 1, 33, 45)
    got = ttnn.multiply(chips.put(a), chips.put(b), dtype=ttnn.bfloat8_b)
    assert_same(got, [pack((x * y).bfloat16(), ttnn.bfloat8_b) for x, y in zip(a, b)])


def test_a_number_is_cut_to_the_dtype_of_the_tensor_that_it_meets(chips):
    ones = torch.ones(1, 1, 32, 32)
    assert_same(ttnn.multiply(chips.put(ones), 0.1, dtype=ttnn.float32), ones * 0.099609375)


@pytest.mark.parametrize("name", ("add", "multiply"))
def test_a_float32_result_of_bfloat16_operands_is_not_rounded(chips, name):
    a, b = chips.draw(1, 1, 33, 45), chips.draw(1, 1, 33, 45)
    got = getattr(ttnn, name)(chips.put(a), chips.put(b), dtype=ttnn.float32)
    assert_close(got, [ARITHMETIC[name](x, y) for x, y in zip(a, b)], ttnn.float32)


def test_a_weight_of_prelu_a_head(chips):
    x, weight = pair()[0], torch.tensor([0.25, -2.0])
    assert_values(ttnn.prelu(chips.put(x), chips.put(weight)), F.prelu(x, weight))


def test_outer(chips):
    a, b = finite(64), finite(96)
    assert_values(ttnn.outer(chips.put(a), chips.put(b)), torch.outer(a, b))


def test_a_preallocated_output_receives_the_values(chips):
    a, out = chips.draw(1, 1, 33, 45), chips.put(torch.zeros(1, 1, 33, 45))
    ttnn.add(chips.put(a), 1.0, output_tensor=out)
    assert_close(out, [x + 1 for x in a])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_nan_is_packed_as_infinity_in_bfloat16(chips, dtype):
    """Every op that computes ends in a pack. An op that moves data keeps NaN, and float32 keeps it (tt-metal 51557)."""
    x = chips.put(torch.full((1, 1, 32, 32), math.nan), dtype)
    for got in (ttnn.neg(x), ttnn.add(x, x), ttnn.exp(x), ttnn.sum(x, dim=-1)):
        for values in chips.get(got):
            assert (values == math.inf if dtype == ttnn.bfloat16 else values.isnan()).all()
    assert all(values.isnan().all() for values in chips.get(ttnn.clone(x)))


def test_refusals_name_the_op(chips):
    a = chips.put(finite(1, 1, 32, 64))
    with pytest.raises(GoldenError, match="activation"):
        ttnn.add(a, a, activations=[ttnn.UnaryWithParam(U.XIELU, 0.8, 0.8)])
    with pytest.raises(GoldenError, match="ttnn.scatter with reduce"):
        ttnn.scatter(a, -1, chips.put(torch.zeros(1, 1, 32, 64).int(), ttnn.int32), a, reduce="add")
