"""Elementwise ops of several tensors: each against torch on random and on special values."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import assert_near, assert_same, assert_values

SPECIAL = torch.tensor(
    [0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e30, 1e-30, 1.0, -1.0, 0.5, -2.5]
)
PAIRS = torch.tensor(list(itertools.product(SPECIAL.tolist(), repeat=2)))
DTYPES = {"bfloat16": ttnn.bfloat16, "float32": ttnn.float32}


def pair() -> list[torch.Tensor]:
    """Two tensors [1, 2, 33, 45] of random values that bfloat16 holds, with all pairs of special
    ones first.
    """
    tensors = []
    for special in PAIRS.unbind(1):
        x = torch.randn(2 * 33 * 45).mul(2).bfloat16().float()
        x[: len(special)] = special.bfloat16().float()
        tensors.append(x.masked_fill(x.isnan(), math.nan).reshape(1, 2, 33, 45))
    return tensors


def finite(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16().float()


def logaddexp2(a, b):
    return torch.logaddexp(a * math.log(2), b * math.log(2)) / math.log(2)


# Torch's result for two tensors in float64.
BINARY = {
    "atan2": torch.atan2,
    "div_no_nan": lambda a, b: torch.where(b == 0, 0.0, a / b),
    "hypot": lambda a, b: torch.where(a.isinf() | b.isinf(), math.inf, torch.sqrt(a * a + b * b)),
    "ldexp": lambda a, b: a * 2**b,
    "logaddexp": torch.logaddexp,
    "logaddexp2": logaddexp2,
    "xlogy": lambda a, b: torch.where((a == 0) & ~b.isnan(), 0.0, a * torch.log(b)),
}
IN_PLACE = {
    "eq_": torch.eq,
    "ne_": torch.ne,
    "lt_": torch.lt,
    "le_": torch.le,
    "gt_": torch.gt,
    "ge_": torch.ge,
    "logical_and_": torch.logical_and,
    "logical_or_": torch.logical_or,
    "logical_xor_": torch.logical_xor,
    "rsub_": lambda a, b: b - a,
    "squared_difference_": lambda a, b: (a - b) * (a - b),
    "ldexp_": BINARY["ldexp"],
    "logaddexp_": BINARY["logaddexp"],
    "logaddexp2_": BINARY["logaddexp2"],
}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_binary(chips, name, dtype):
    a, b = pair()
    if name == "ldexp":
        b = b.clamp(-100, 100)  # the rest is in the exponents' own range
    got = getattr(ttnn, name)(chips.put(a, dtype), chips.put(b, dtype))
    steps = 4 if name == "xlogy" else 1  # the logarithm and the product are cut
    want = BINARY[name](a.double(), b.double())
    assert_values(chips.get(got), [want] * chips.count, dtype, steps)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(chips, name):
    a, b = pair()
    b = b.clamp(-100, 100) if name == "ldexp_" else b
    target = chips.put(a, ttnn.float32)
    copy = ttnn.clone(target)
    getattr(ttnn, name)(target, chips.put(b, ttnn.float32))
    assert_values(
        chips.get(target),
        [IN_PLACE[name](a.double(), b.double()).double()] * chips.count,
        ttnn.float32,
    )
    assert_values(chips.get(copy), [a] * chips.count, ttnn.float32)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_with_a_number_and_an_activation_of_the_result(chips, name):
    a = finite(1, 1, 33, 45)
    target = chips.put(a)
    getattr(ttnn, name)(target, 1.5, activations=[ttnn.UnaryOpType.NEG])
    want = -IN_PLACE[name](a.double(), torch.tensor(1.5).double()).double()
    steps = 3 if name == "squared_difference_" else 1  # the difference is rounded, and squared
    assert_values(chips.get(target), [want] * chips.count, steps=steps)


@pytest.mark.parametrize("name, function", (("remainder", torch.remainder), ("fmod", torch.fmod)))
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_remainders(chips, name, function, dtype):
    a, b = pair()
    got = getattr(ttnn, name)(chips.put(a, dtype), chips.put(b, dtype))
    assert_values(chips.get(got), [function(a, b)] * chips.count, dtype)
    got = getattr(ttnn, name)(chips.put(a, dtype), 0.1)  # a number that bfloat16 does not hold
    assert_values(chips.get(got), [function(a, torch.tensor(0.1))] * chips.count, dtype)


def test_floor_division(chips):
    a, b = pair()
    want = torch.floor(a / b)
    assert_values(chips.get(ttnn.floor_div(chips.put(a), chips.put(b))), [want] * chips.count)
    assert_values(chips.get(ttnn.floor_div(chips.put(a), 2.0)), [torch.floor(a / 2)] * chips.count)


def test_division_by_the_number_zero_is_zero(chips):
    a, _ = pair()
    assert_values(
        chips.get(ttnn.div_no_nan(chips.put(a), 0.0)), [torch.zeros_like(a)] * chips.count
    )
    assert_values(chips.get(ttnn.div_no_nan(chips.put(a), value=2.0)), [a / 2] * chips.count)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_nextafter_is_a_fixed_step_away_from_the_other(chips, dtype):
    a, b = finite(1, 1, 33, 45) * 2**-22, finite(1, 1, 33, 45) * 2**-22
    b[..., 0] = a[..., 0]
    got = ttnn.nextafter(chips.put(a, dtype), chips.put(b, dtype))
    step = torch.where(a > b, 1.19209e-7, torch.where(a < b, -1.19209e-7, 0.0))
    assert_near(
        chips.get(got), [a.double() + step] * chips.count, 4e-3 if dtype == ttnn.bfloat16 else 1e-6
    )
    assert_same([g[..., 0] for g in chips.get(got)], [a[..., 0]] * chips.count)


@pytest.mark.parametrize("equal_nan", (False, True))
def test_isclose_knows_its_tolerances(chips, equal_nan):
    a, b = pair()
    b[..., 10:, :] = a[..., 10:, :] * (1 + 0.1 * torch.rand(1, 2, 23, 45))
    b = b.bfloat16().float()
    how = dict(rtol=0.05, atol=0.01, equal_nan=equal_nan)
    got = chips.get(ttnn.isclose(chips.put(a, ttnn.float32), chips.put(b, ttnn.float32), **how))
    want = torch.isclose(a, b, **how)
    assert 100 < want.sum() < 2000
    assert_values(got, [want.float()] * chips.count)


TERNARY = {
    "addalpha": ((2.5,), {}, lambda a, b, c: a + 2.5 * b),
    "subalpha": ((2.5,), {}, lambda a, b, c: a - 2.5 * b),
    "addcmul": (None, {"value": 1.5}, lambda a, b, c: a + 1.5 * b * c),
    "addcdiv": (None, {"value": 1.5}, lambda a, b, c: a + 1.5 * b / c),
    "mac": (None, {}, lambda a, b, c: a * b + c),
    "lerp": (None, {}, lambda a, b, c: a + c * (b - a)),
    "snake_beta": (None, {}, lambda a, b, c: a + torch.sin(a * b) ** 2 / c),
}


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("name", TERNARY)
def test_ternary(chips, name, dtype):
    numbers, options, function = TERNARY[name]
    a, b = pair()
    c = finite(1, 2, 33, 45)
    if name == "snake_beta":
        a, b = a.clamp(-100, 100), finite(1, 2, 33, 45)
    tensors = [chips.put(x, dtype) for x in ((a, b, c) if numbers is None else (a, b))]
    got = getattr(ttnn, name)(*tensors, *(numbers or ()), **options)
    want = (
        function(a, b, c) if dtype == ttnn.float32 else function(a.double(), b.double(), c.double())
    )
    relative = (
        want.double().nan_to_num(0, 0, 0).abs().clamp(min=1)
    )  # a difference of large numbers has their error
    keep = (
        want.double().abs() > 0.01 * (a.abs() + b.abs()).double().nan_to_num(0, 0, 0)
    ) | ~want.isfinite()
    assert keep.sum() > 2000 and relative.max() >= 1
    put = lambda x: torch.where(keep, x, 0)  # noqa: E731
    assert_values(
        [put(g.double()) for g in chips.get(got)], [put(want.double())] * chips.count, dtype
    )


def test_lerp_and_mac_take_numbers(chips):
    a, b = finite(1, 1, 33, 45), finite(1, 1, 33, 45)
    assert_values(
        chips.get(ttnn.lerp(chips.put(a, ttnn.float32), chips.put(b, ttnn.float32), 0.0)),
        [a] * chips.count,
    )
    assert_values(
        chips.get(ttnn.lerp(chips.put(a, ttnn.float32), chips.put(b, ttnn.float32), 1.0)),
        [b] * chips.count,
    )
    assert_values(
        chips.get(ttnn.mac(chips.put(a), 2.0, chips.put(b))), [(a * 2.0 + b).double()] * chips.count
    )


def test_ternary_ops_broadcast(chips):
    a, b, c = finite(1, 2, 33, 45), finite(1, 1, 1, 45), finite(1, 2, 33, 45)
    got = ttnn.addcmul(*(chips.put(x, ttnn.float32) for x in (a, b, c)), value=-1.0)
    assert_values(
        chips.get(got), [a.double() - b.double() * c.double()] * chips.count, ttnn.float32
    )


@pytest.mark.parametrize(
    "weight", (0.25, [0.25], torch.tensor([0.25, -2.0])), ids=("number", "list", "tensor")
)
def test_prelu(chips, weight):
    x = pair()[0]
    given = chips.put(weight) if isinstance(weight, torch.Tensor) else weight
    want = F.prelu(x, weight if isinstance(weight, torch.Tensor) else torch.tensor([0.25]))
    assert_values(chips.get(ttnn.prelu(chips.put(x), given)), [want] * chips.count)


def test_polyval_takes_the_highest_power_first(chips):
    x = finite(1, 1, 33, 45)
    got = ttnn.polyval(chips.put(x, ttnn.float32), [3.0, 0.0, -2.0, 0.5])
    assert_values(
        chips.get(got), [3 * x.double() ** 3 - 2 * x.double() + 0.5] * chips.count, ttnn.float32
    )


def test_outer(chips):
    a, b = finite(64), finite(96)
    assert_values(
        chips.get(ttnn.outer(chips.put(a), chips.put(b))), [torch.outer(a, b)] * chips.count
    )


@pytest.mark.parametrize("reduction", ("NONE", "SUM", "MEAN"))
def test_losses(chips, reduction):
    a, b = finite(1, 1, 32, 64), finite(1, 1, 32, 64)
    how = {"reduction": getattr(ttnn.LossReductionMode, reduction)}
    reduce = {"NONE": lambda x: x, "SUM": torch.sum, "MEAN": torch.mean}[reduction]
    put = lambda x: chips.put(x, ttnn.float32)  # noqa: E731
    assert_values(
        chips.get(ttnn.l1_loss(put(a), put(b), **how)), [reduce((a - b).abs())] * chips.count
    )
    assert_values(
        chips.get(ttnn.mse_loss(put(a), put(b), **how)), [reduce((a - b) ** 2)] * chips.count
    )


@pytest.mark.parametrize(
    "dim, shape", (("H", (1, 2, 1, 64)), ("W", (1, 2, 32, 1)), ("HW", (1, 2, 1, 1)))
)
@pytest.mark.parametrize(
    "op, function", (("ADD", torch.add), ("SUB", torch.sub), ("MUL", torch.mul))
)
def test_bcast(chips, dim, shape, op, function):
    a, b = finite(1, 2, 32, 64), finite(*shape)
    got = ttnn.bcast(
        chips.put(a), chips.put(b), getattr(ttnn.BcastOpMath, op), getattr(ttnn.BcastOpDim, dim)
    )
    want, rounding = function(a, b), 2**-7  # the engine's adder has eleven bits
    for g in chips.get(got):
        assert ((g - want).abs() <= rounding * (a.abs() + b.abs())).all()


@pytest.mark.parametrize("name", ("glu", "reglu", "swiglu", "geglu"))
def test_gated_units_multiply_the_first_half_by_the_activation_of_the_second(chips, name):
    x = torch.cat([p[..., :32] for p in pair()], -1).clamp(-100, 100)
    value, gate = x.double().chunk(2, -1)
    activation = {"glu": torch.sigmoid, "reglu": torch.relu, "swiglu": F.silu, "geglu": F.gelu}[
        name
    ]
    want = value * activation(gate).bfloat16().double()
    got = chips.get(getattr(ttnn, name)(chips.put(x), -1))
    assert_values(
        [g[:, :, :33] for g in got], [want] * chips.count
    )  # ttnn gives the padded rows, too


def test_gated_units_of_other_forms(chips):
    x = finite(1, 1, 32, 64)
    value, gate = x.double().chunk(2, -1)
    got = ttnn.geglu(chips.put(x, ttnn.float32), 3, variant=ttnn.GeluVariant.Tanh)
    assert_values(
        chips.get(got), [value * F.gelu(gate, approximate="tanh")] * chips.count, ttnn.float32
    )
    gate, up = finite(1, 1, 32, 64), finite(1, 1, 32, 64)
    put = lambda t: chips.put(t, ttnn.float32)  # noqa: E731
    want = F.silu(gate.double().clamp(max=0.5)) * up.double().clamp(-0.5, 0.5)
    assert_values(
        chips.get(ttnn.clamped_silu_glu(put(gate), put(up), 0.5)),
        [want] * chips.count,
        ttnn.float32,
    )


@pytest.mark.parametrize("operand", ("tensor", "number"))
def test_bias_gelu(chips, operand):
    a, b = finite(1, 1, 33, 45), finite(1, 1, 33, 45) if operand == "tensor" else 0.75
    given = chips.put(b, ttnn.float32) if operand == "tensor" else b
    want = F.gelu((a + b).double())
    assert_values(
        chips.get(ttnn.bias_gelu(chips.put(a, ttnn.float32), given)),
        [want] * chips.count,
        ttnn.float32,
    )
    target = chips.put(a, ttnn.float32)
    ttnn.bias_gelu_(target, given)
    assert_values(chips.get(target), [want] * chips.count, ttnn.float32)


def test_refusals_name_the_op(chips):
    a = chips.put(finite(1, 1, 32, 64))
    with pytest.raises(GoldenError, match="ttnn.scatter with reduce"):
        index = chips.put(torch.zeros(1, 1, 32, 64).int(), ttnn.int32)
        ttnn.scatter(a, -1, index, a, reduce="add")
