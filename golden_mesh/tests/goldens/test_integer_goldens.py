"""Integer results are Python's integers, cut to the width of the result. Quotients by zero are a chip's (a simulated
N150, ttnn 0.81.1).
"""

import math
from itertools import accumulate
from operator import add, mul, sub

import pytest
import torch
import ttnn

from golden_mesh.hazards import HazardError
from goldens.support import assert_same

LOWEST = -(2**31)
ENDS = torch.tensor(
    [2**31 - 1, LOWEST, 2**31 - 2, LOWEST + 1, 65535, 65536, -32768, 16777217, 16777219, -16777217, 46341, 1, 0, -1, 3,
     -7]
)  # fmt: skip
DRAWN = torch.randint(0, 2**31, (2, 3, 40, 33), generator=torch.Generator().manual_seed(0))
INT32, UINT32, UINT16 = ttnn.int32, ttnn.uint32, ttnn.uint16
HELD = {INT32: lambda n: (n - LOWEST) % 2**32 + LOWEST, UINT32: lambda n: n % 2**32, UINT16: lambda n: n % 2**16}


def held(numbers, dtype) -> torch.Tensor:
    return torch.tensor([HELD[dtype](int(n)) for n in numbers])


def run(chips, call: str, **tensors) -> list[torch.Tensor]:
    """The call's result, flat, from each chip."""
    return [t.flatten().long() for t in chips.get(eval(f"ttnn.{call}", {"ttnn": ttnn} | tensors))]


def cut(a: int, b: int) -> int:
    """a / b, cut towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# call -> the function of two Python integers, what the chip gives for a / 0 with a of 0, 1, 2, -1, 9 and the lowest
OF_TWO = {
    "add(x, y)": (add, [0, 1, 2, -1, 9, LOWEST]),
    "subtract(x, y)": (sub, [0, 1, 2, -1, 9, LOWEST]),
    "gcd(x, y)": (math.gcd, [0, 1, 2, 1, 9, LOWEST]),
    "remainder(x, y)": (lambda a, b: a % b, [0, 1, 2, -1, 9, LOWEST]),
    "fmod(x, y)": (lambda a, b: a - b * cut(a, b), [0, 1, 2, -1, 9, LOWEST]),
    "div(x, y, rounding_mode='trunc')": (cut, [3, -2045, 63488, 2045, 65536, -65534]),
    "div(x, y, rounding_mode='floor')": (lambda a, b: a // b, [3, -2045, 63488, 2044, 65536, -65535]),
    "squared_difference(x, y)": (lambda a, b: (a - b) ** 2, [0, 1, 4, 1, 81, 0]),
    "mse_loss(x, y)": (lambda a, b: (a - b) ** 2, [0, 1, 4, 1, 81, 0]),
    "bitwise_right_shift(x, y)": (lambda a, b: a >> b if 0 <= b < 32 else 0, [0, 1, 2, -1, 9, LOWEST]),
    "outer(x, y)": (mul, [0] * 6),
}


@pytest.mark.parametrize("call", OF_TWO)
def test_two_integers(chips, call):
    function, of_zero = OF_TWO[call]
    a, b = ENDS[:, None].expand(16, 16), ENDS[ENDS != 0].repeat(2)[:16].expand(16, 16)
    if call.startswith("outer"):
        x, y = (chips.put(row.reshape(1, 1, 1, -1), INT32) for row in (a[:, 0], b[0]))
    else:
        x, y = (chips.put(t.clone(), INT32) for t in (a, b))
    want = held(map(function, a.flatten().tolist(), b.flatten().tolist()), INT32)
    assert_same(run(chips, call, x=x, y=y), want)
    if not call.startswith("outer"):
        x = chips.put(torch.tensor([[0, 1, 2, -1, 9, LOWEST]]), INT32)
        y = chips.put(torch.zeros(1, 6), INT32)
        assert_same(run(chips, call, x=x, y=y), torch.tensor(of_zero))


# call of x -> the function of one Python integer
WITH_A_NUMBER = {
    "remainder(x, 7)": lambda a: a % 7,
    "remainder(x, 16777217)": lambda a: a % 16777217,
    "pow(x, 2)": lambda a: a**2,
    "pow(x, 3)": lambda a: a**3,
    "pow(x, 7.0)": lambda a: a**7,
    "pow(x, 100)": lambda a: a**100,
    "add(x, 16777217.0)": lambda a: a + 16777216,
    "rsub(x, 3.0)": lambda a: 3 - a,
    "subtract(x, 7)": lambda a: a - 7,
    "eq(x, 16777217.0)": lambda a: a == 16777216,
    "mac(x, x, 16777217)": lambda a: a * a + 16777216,
    "addcmul(x, x, x, value=0.5)": lambda a: a,
    "unary_chain(x, [ttnn.UnaryWithParam(ttnn.UnaryOpType.ADD_UNARY_SFPU, 16777217)])": lambda a: a + 16777216,
    # The kernel reads a sign, of UINT32 too.
    "add(x, x, activations=[ttnn.UnaryOpType.RELU])": lambda a: max(0, HELD[INT32](2 * a)),
    # 16775716: the limit that is not given, as the kernel has it.
    "clamp(x, min=5)": lambda a: min(max(a, 5), 16775716),
    "clamp(x, max=200)": lambda a: min(max(a, -16775716), 200),
}


@pytest.mark.parametrize("dtype", HELD, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("call", WITH_A_NUMBER)
def test_an_integer_and_a_number(chips, call, dtype):
    if dtype == UINT16 and call.startswith(("remainder", "addcmul", "unary_chain", "add(x, x")):
        return  # the library or a hazard refuses it
    if dtype != INT32 and call.startswith("clamp"):
        return
    numbers = [HELD[dtype](n) for n in ENDS.tolist()]
    numbers = [n for n in numbers if n < 2**31]  # a host tensor's
    x = chips.put(torch.tensor([numbers]), dtype)
    want = held(map(WITH_A_NUMBER[call], numbers), dtype)
    assert_same(run(chips, call, x=x), want)


@pytest.mark.parametrize("name", ("GTZ", "GEZ", "LTZ", "LEZ", "NEG", "RELU"))
def test_a_sign_of_uint16_is_refused(chips, name):
    x = chips.put(torch.ones(1, 1, 32, 32), UINT16)
    with pytest.raises(HazardError, match=name):
        ttnn.add(x, x, activations=[getattr(ttnn.UnaryOpType, name)])


def along(x: torch.Tensor, dim: int, function, dtype, reverse=False) -> torch.Tensor:
    """The running results of function(int, int) along dim."""
    rows = x.movedim(dim, -1).flatten(0, -2).tolist()
    found = [held(list(accumulate(reversed(row) if reverse else row, function))[:: -1 if reverse else 1], dtype)
             for row in rows]  # fmt: skip
    return torch.stack(found).reshape(x.movedim(dim, -1).shape).movedim(-1, dim)


@pytest.mark.parametrize("dtype", (INT32, UINT32), ids=lambda dtype: dtype.name)  # uint16 is a hazard
@pytest.mark.parametrize(
    "call, dim, function, reverse",
    [
        ("cumsum(x, dim=0)", 0, add, False),
        ("cumsum(x, dim=3, reverse_order=True)", 3, add, True),
        ("cumprod(x, dim=2)", 2, mul, False),
        ("cumprod(x, dim=0, reverse_order=True)", 0, mul, True),
        ("moreh_cumsum(x, 1)", 1, add, False),
    ],
)
def test_running_sums_and_products(chips, call, dim, function, reverse, dtype):
    got = run(chips, call, x=chips.put(DRAWN, dtype))
    assert_same(got, along(DRAWN, dim, function, dtype, reverse).flatten())


def test_a_scaled_sum_of_integers_goes_through_a_float32(chips):
    x = chips.put(DRAWN, INT32)
    want = (HELD[INT32](DRAWN.sum(-1)).float() * 3).double().clamp(LOWEST, -LOWEST - 1)
    assert_same(ttnn.sum(x, dim=-1, scalar=3.0), want.int())


def test_scatter_add_adds_integers(chips):
    index = torch.arange(33).remainder(5).expand(DRAWN.shape)
    x, at = chips.put(DRAWN, INT32), chips.put(index, INT32)
    want = DRAWN.scatter_add(3, index, DRAWN)
    assert_same(ttnn.scatter_add(x, 3, at, x), HELD[INT32](want).int())


def test_a_number_of_where_is_a_float32(chips):
    x = chips.put(ENDS[None], INT32)
    got = ttnn.where(ttnn.gtz(x), x, 16777217)
    assert_same(got, torch.where(ENDS > 0, ENDS, 16777216)[None].int())


def test_the_lowest_int32_counts_as_zero_in_a_quotient(chips):
    x, y = (chips.put(torch.tensor([row]), INT32) for row in ([LOWEST, 6, 6, LOWEST], [2, LOWEST, 3, LOWEST]))
    want = torch.tensor([[0, math.inf, 2, math.nan]])
    for got in chips.get(ttnn.div(x, y)):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert_same(ttnn.div_no_nan(x, y), torch.tensor([[0.0, 0, 2, 0]]))
