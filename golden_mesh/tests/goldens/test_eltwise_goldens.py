"""Elementwise ops: unary functions, binary ops with their fused activations, in-place forms,
selections.
"""

import math

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic.packer import pack
from golden_mesh.arithmetic.vector import in_bfloat16_dest
from golden_mesh.errors import GoldenError
from goldens.support import assert_close, assert_same

ANY = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "erf": torch.special.erf,
    "exp": torch.exp,
    "exp2": lambda x: 2**x,
    "expm1": lambda x: (x.double().exp() - 1).float(),
    "floor": torch.floor,
    "gelu": F.gelu,
    "neg": lambda x: -x,
    "relu": lambda x: x.clamp(min=0),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "sign": torch.sign,
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "square": lambda x: x * x,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": lambda x: torch.sin(x) / torch.cos(x),
    "eqz": lambda x: (x == 0).float(),
    "nez": lambda x: (x != 0).float(),
    "gtz": lambda x: (x > 0).float(),
    "gez": lambda x: (x >= 0).float(),
    "ltz": lambda x: (x < 0).float(),
    "lez": lambda x: (x <= 0).float(),
    "logical_not": lambda x: (x == 0).float(),
    "identity": lambda x: x,
    "hardsigmoid": lambda x: (x / 6 + 0.5).clamp(0, 1),
    "hardswish": lambda x: x * (x / 6 + 0.5).clamp(0, 1),
    "relu6": lambda x: x.clamp(0, 6),
    "log_sigmoid": lambda x: -torch.log1p(torch.exp(-x)),
    "mish": lambda x: x * torch.tanh(torch.log1p(torch.exp(x))),
    "sigmoid_accurate": lambda x: 1 / (1 + torch.exp(-x)),
    "swish": lambda x: x / (1 + torch.exp(-x)),
}
POSITIVE = {
    "log": torch.log,
    "log1p": lambda x: torch.log(1 + x.double()).float(),
    "log2": lambda x: torch.log(x) / math.log(2),
    "log10": lambda x: torch.log(x) / math.log(10),
    "sqrt": torch.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1 / x,
}


# Off by a unit, or cut (test_vectors.py, test_families.py).
KERNELS = {
    "exp",
    "hardsigmoid",
    "hardswish",
    "log_sigmoid",
    "sigmoid",
    "sigmoid_accurate",
    "silu",
    "swish",
}


@pytest.mark.parametrize("name", ANY)
def test_unary(chips, name):
    x = chips.draw(2, 1, 33, 45)
    steps = 2 if name in KERNELS else 1
    got = chips.get(getattr(ttnn, name)(chips.put(x)))
    assert_close(got, [ANY[name](v) for v in x], steps=steps)


def kernel(name: str, x: torch.Tensor) -> torch.Tensor:
    """A function as the vector unit computes it with a bfloat16 dest; test_vectors.py holds it to records."""
    return in_bfloat16_dest(name)(x.bfloat16()).float()


@pytest.mark.parametrize("name", POSITIVE)
def test_unary_of_positive_values(chips, name):
    x = [v.abs() + 0.125 for v in chips.draw(1, 1, 33, 45)]
    x = [v.bfloat16().float() for v in x]
    assert_close(chips.get(getattr(ttnn, name)(chips.put(x))), [POSITIVE[name](v) for v in x])


def test_gelu_by_tanh(chips):
    x = chips.draw(1, 1, 33, 45)
    got = ttnn.gelu(chips.put(x), variant=ttnn.GeluVariant.Tanh)
    inner = lambda v: math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)  # noqa: E731
    assert_close(chips.get(got), [0.5 * v * (1 + torch.tanh(inner(v))) for v in x])


def test_gelu_by_a_table_is_within_two_hundredths(chips):
    """It is what UnaryOpType.GELU means without a parameter. A parameter of 0 is the exact function."""
    x, one = chips.draw(1, 1, 33, 45), chips.put(torch.ones(1, 1, 33, 45))
    tables = [
        ttnn.gelu(chips.put(x), fast_and_approximate_mode=True),
        ttnn.mul(chips.put(x), one, input_tensor_a_activations=[ttnn.UnaryOpType.GELU]),
    ]
    exact = ttnn.mul(
        chips.put(x),
        one,
        input_tensor_a_activations=[ttnn.UnaryWithParam(ttnn.UnaryOpType.GELU, 0)],
    )
    assert_close(chips.get(exact), [F.gelu(v) for v in x], steps=2)
    for table in tables:
        for g, v in zip(chips.get(table), x):
            assert 0.01 < (g - F.gelu(v)).abs().max() < 0.03


BINARY = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "divide": lambda a, b: a / b,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "eq": lambda a, b: (a == b).float(),
    "ne": lambda a, b: (a != b).float(),
    "lt": lambda a, b: (a < b).float(),
    "le": lambda a, b: (a <= b).float(),
    "gt": lambda a, b: (a > b).float(),
    "ge": lambda a, b: (a >= b).float(),
    "rsub": lambda a, b: b - a,
    "squared_difference": lambda a, b: (a - b) ** 2,
    "logical_and": lambda a, b: ((a != 0) & (b != 0)).float(),
    "logical_or": lambda a, b: ((a != 0) | (b != 0)).float(),
    "logical_xor": lambda a, b: ((a != 0) != (b != 0)).float(),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary(chips, name):
    a, b = chips.draw(1, 2, 33, 45), chips.draw(1, 2, 33, 45)
    for x, y in zip(a, b):
        x[..., 0] = y[..., 1] = 0  # for the logical ones
        x[..., 2] = y[..., 2]
        y[y == 0] = 0.5 if "div" in name else 0
    assert_close(
        chips.get(getattr(ttnn, name)(chips.put(a), chips.put(b))),
        [BINARY[name](x, y) for x, y in zip(a, b)],
        steps=3 if name == "squared_difference" else 1,  # the difference is rounded, and squared
    )


@pytest.mark.parametrize("name", BINARY)
def test_binary_with_a_number(chips, name):
    a = chips.draw(1, 2, 33, 45)
    got = getattr(ttnn, name)(chips.put(a), 1.5)
    want = [BINARY[name](x, torch.tensor(1.5)) for x in a]
    assert_close(chips.get(got), want, steps=3 if name == "squared_difference" else 1)


def test_a_number_may_come_first(chips):
    b = chips.draw(1, 1, 33, 45)
    assert_close(chips.get(ttnn.subtract(2.5, chips.put(b))), [2.5 - y for y in b])


@pytest.mark.parametrize("shape", ((1, 1, 1, 45), (1, 1, 33, 1), (1, 2, 1, 1)), ids=str)
def test_binary_broadcasts(chips, shape):
    a, b = chips.draw(1, 2, 33, 45), chips.draw(*shape)
    assert_close(
        chips.get(ttnn.multiply(chips.put(a), chips.put(b))), [x * y for x, y in zip(a, b)]
    )


def test_a_replicated_operand_meets_each_chips_own(chips):
    a, b = chips.draw(1, 1, 33, 45), torch.randn(1, 1, 33, 45).bfloat16()
    assert_close(chips.get(ttnn.add(chips.put(a), chips.put(b))), [x + b.float() for x in a])


@pytest.mark.parametrize(
    "silu", (ttnn.UnaryOpType.SILU, ttnn.UnaryWithParam(ttnn.UnaryOpType.SILU)), ids=str
)
def test_multiply_with_silu_of_the_first_operand(chips, silu):
    """The gate of an MLP in one op: silu is rounded to bfloat16 before the product."""
    a, b = chips.draw(1, 1, 33, 45), chips.draw(1, 1, 33, 45)
    got = ttnn.mul(chips.put(a), chips.put(b), input_tensor_a_activations=[silu])
    assert_close(chips.get(got), [kernel("SILU", x) * y for x, y in zip(a, b)])


def test_activations_of_the_second_operand_and_of_the_result(chips):
    a, b = chips.draw(1, 1, 33, 45), chips.draw(1, 1, 33, 45)
    got = ttnn.add(
        chips.put(a),
        chips.put(b),
        input_tensor_b_activations=[ttnn.UnaryOpType.SQUARE],
        activations=[ttnn.UnaryOpType.NEG, ttnn.UnaryOpType.RELU],
    )
    assert_close(chips.get(got), [F.relu(-(x + (y * y).bfloat16())) for x, y in zip(a, b)])


def test_a_power_as_an_activation(chips):
    a, b = chips.draw(1, 1, 32, 64), chips.draw(1, 1, 32, 64)
    square = ttnn.UnaryWithParam(ttnn.UnaryOpType.POWER, 2.0)
    got = ttnn.add(chips.put(a), chips.put(b), activations=[square])
    assert_close(chips.get(got), [(x + y) ** 2 for x, y in zip(a, b)], steps=3)
    got = ttnn.multiply(chips.put(a), chips.put(b), input_tensor_a_activations=[square])
    assert_close(chips.get(got), [x**2 * y for x, y in zip(a, b)], steps=2)


def test_an_unknown_activation_is_refused(chips):
    a = chips.put(chips.draw(1, 1, 32, 32))
    with pytest.raises(GoldenError, match="activation"):
        ttnn.add(a, a, activations=[ttnn.UnaryWithParam(ttnn.UnaryOpType.XIELU, 0.8, 0.8)])


IN_PLACE = {"add_": "add", "subtract_": "subtract", "multiply_": "multiply", "divide_": "divide"}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_binary_changes_its_operand_and_no_replica_of_it(chips, name):
    a, b = torch.randn(1, 1, 33, 45).bfloat16(), chips.draw(1, 1, 33, 45)
    target = chips.put(a)
    copy = ttnn.clone(target)
    getattr(ttnn, name)(target, chips.put(b))
    assert_close(chips.get(target), [BINARY[IN_PLACE[name]](a.float(), y) for y in b])
    assert_same(chips.get(copy), [a] * chips.count)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_binary_with_activations(chips, name):
    a, b = chips.draw(1, 1, 33, 45), chips.draw(1, 1, 33, 45)
    target = chips.put(a)
    getattr(ttnn, name)(
        target,
        chips.put(b),
        input_tensor_a_activations=[ttnn.UnaryOpType.SILU],
        input_tensor_b_activations=[ttnn.UnaryOpType.EXP],
        activations=[ttnn.UnaryOpType.RELU],
    )
    before = [(kernel("SILU", x), kernel("EXP", y)) for x, y in zip(a, b)]
    assert_close(chips.get(target), [F.relu(BINARY[IN_PLACE[name]](x, y)) for x, y in before])


def test_in_place_with_itself(chips):
    a = chips.draw(1, 1, 33, 45)
    target = chips.put(a)
    ttnn.add_(target, target)
    assert_close(chips.get(target), [x + x for x in a])


def test_integers_stay_integers(chips):
    a, b = (
        torch.randint(-(2**24), 2**24, (1, 1, 32, 64)),
        torch.randint(-(2**24), 2**24, (1, 1, 32, 64)),
    )
    put = lambda x: chips.put(x.int(), ttnn.int32)  # noqa: E731
    assert_same(chips.get(ttnn.add(put(a), put(b))), [a + b] * chips.count)
    assert_same(chips.get(ttnn.subtract(put(a), 7)), [a - 7] * chips.count)


def test_a_block_float_result_is_rounded_as_a_packer_does(chips):
    a, b = chips.draw(1, 1, 33, 45), chips.draw(1, 1, 33, 45)
    got = ttnn.multiply(chips.put(a), chips.put(b), dtype=ttnn.bfloat8_b)
    assert_same(chips.get(got), [pack((x * y).bfloat16(), ttnn.bfloat8_b) for x, y in zip(a, b)])


def test_a_number_is_cut_to_the_dtype_of_the_tensor_that_it_meets(chips):
    """0.1 is 0.099609375 beside a bfloat16 tensor."""
    ones = torch.ones(1, 1, 32, 32)
    got = ttnn.multiply(chips.put(ones), 0.1, dtype=ttnn.float32)
    assert_same(chips.get(got), [ones * 0.099609375] * chips.count)
    got = ttnn.multiply(chips.put(ones, ttnn.float32), 0.1)
    assert_same(chips.get(got), [ones * torch.tensor(0.1)] * chips.count)


def test_a_float32_result_of_bfloat16_operands_is_not_rounded(chips):
    a, b = chips.draw(1, 1, 33, 45), chips.draw(1, 1, 33, 45)
    for name in ("add", "multiply"):
        got = getattr(ttnn, name)(chips.put(a), chips.put(b), dtype=ttnn.float32)
        assert_close(chips.get(got), [BINARY[name](x, y) for x, y in zip(a, b)], ttnn.float32)


@pytest.mark.parametrize("mode", ("floor", "trunc"))
def test_division_may_round(chips, mode):
    a, b = chips.draw(1, 1, 33, 45, scale=8), chips.draw(1, 1, 33, 45)
    got = ttnn.div(chips.put(a), chips.put(b), rounding_mode=mode)
    assert_close(chips.get(got), [getattr(torch, mode)(x / y) for x, y in zip(a, b)])


@pytest.mark.parametrize("exponent", (2, 3.0))
def test_pow(chips, exponent):
    x = chips.draw(1, 1, 33, 45)
    assert_close(chips.get(ttnn.pow(chips.put(x), exponent)), [v**exponent for v in x])


def test_where_takes_numbers_and_tensors(chips):
    condition, a = chips.draw(1, 1, 33, 45), chips.draw(1, 1, 33, 45)
    got = ttnn.where(ttnn.gtz(chips.put(condition)), chips.put(a), -1.5)
    assert_close(
        chips.get(got), [torch.where(c > 0, x, torch.tensor(-1.5)) for c, x in zip(condition, a)]
    )


@pytest.mark.parametrize("name", ("clamp", "clip"))
@pytest.mark.parametrize(
    "bounds", ({"min": -0.5, "max": 0.25}, {"min": -0.5}, {"max": 0.25}), ids=str
)
def test_clamp(chips, name, bounds):
    x = chips.draw(1, 1, 33, 45)
    assert_close(
        chips.get(getattr(ttnn, name)(chips.put(x), **bounds)), [v.clamp(**bounds) for v in x]
    )


def test_unary_chain_applies_the_first_first(chips):
    x = chips.draw(1, 1, 33, 45)
    chain = [
        ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU),
        ttnn.UnaryWithParam(ttnn.UnaryOpType.EXP, 0.0),
    ]
    assert_close(
        chips.get(ttnn.unary_chain(chips.put(x), chain)), [kernel("EXP", v.clamp(min=0)) for v in x]
    )


def test_a_preallocated_output_receives_the_values(chips):
    a = chips.draw(1, 1, 33, 45)
    out = ttnn.empty(
        (1, 1, 33, 45), ttnn.bfloat16, ttnn.TILE_LAYOUT, chips.device, ttnn.DRAM_MEMORY_CONFIG
    )
    ttnn.add(chips.put(a), 1.0, output_tensor=out)
    assert_close(chips.get(out), [x + 1 for x in a])


@pytest.mark.parametrize("dtype", (ttnn.bfloat16, ttnn.float32), ids=str)
def test_nan_is_packed_as_infinity_in_bfloat16(chips, dtype):
    """Every op that computes ends in a pack. An op that moves data keeps NaN, and float32 keeps it (tt-metal 51557)."""
    x = chips.put(torch.full((1, 1, 32, 32), math.nan), dtype)
    for got in (ttnn.neg(x), ttnn.add(x, x), ttnn.exp(x), ttnn.sum(x, dim=-1)):
        for values in chips.get(got):
            assert (values == math.inf if dtype == ttnn.bfloat16 else values.isnan()).all()
    assert all(values.isnan().all() for values in chips.get(ttnn.clone(x)))
