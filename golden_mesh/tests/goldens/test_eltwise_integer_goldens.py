"""Ops on integers and on their bits, against arithmetic of unlimited width."""

import math

import pytest
import torch
import ttnn

from goldens.support import assert_same

INTEGERS = [0, 1, -1, 2**31 - 1, -(2**31), 5, -7, 1 << 20]
PLACES = [0, 1, 4, 31, 32, 33, 16, 7]


def whole_numbers() -> torch.Tensor:
    x = torch.randint(-(2**31), 2**31 - 1, (1, 1, 32, 64))
    x[..., 0, :64] = torch.tensor([i for i in INTEGERS for _ in PLACES])
    return x


def places() -> torch.Tensor:
    x = torch.randint(0, 32, (1, 1, 32, 64))
    x[..., 0, :64] = torch.tensor(PLACES * len(INTEGERS))
    return x


def as_int32(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int64).add(2**31).remainder(2**32).sub(2**31)


def shifted_left(x, n):
    return as_int32(torch.where(n < 32, (x * 2 ** n.clamp(max=31)), 0))


BITWISE = {
    "bitwise_and": lambda x, n: x & n,
    "bitwise_or": lambda x, n: x | n,
    "bitwise_xor": lambda x, n: x ^ n,
    "bitwise_left_shift": shifted_left,
    "logical_left_shift": shifted_left,
    "bitwise_right_shift": lambda x, n: torch.div(x, 2 ** n.clamp(max=31), rounding_mode="floor"),
    "logical_right_shift": lambda x, n: as_int32(
        torch.where(
            n < 32, torch.div(x.remainder(2**32), 2 ** n.clamp(max=31), rounding_mode="floor"), 0
        )
    ),
}


@pytest.mark.parametrize("name", BITWISE)
def test_bits_of_int32(chips, name):
    x, n = whole_numbers(), places()
    put = lambda t: chips.put(t.int(), ttnn.int32)  # noqa: E731
    assert_same(getattr(ttnn, name)(put(x), put(n)), BITWISE[name](x, n))
    want = BITWISE[name](x, torch.tensor(5))
    assert_same(getattr(ttnn, name)(put(x), 5), want)


@pytest.mark.parametrize("name", ("bitwise_and", "bitwise_left_shift", "bitwise_right_shift"))
def test_bits_of_uint16(chips, name):
    x, n = torch.randint(0, 2**16, (1, 1, 32, 64)), torch.randint(0, 16, (1, 1, 32, 64))
    put = lambda t: chips.put(t.int(), ttnn.uint16)  # noqa: E731
    got = chips.get(getattr(ttnn, name)(put(x), put(n)))
    assert_same([g.int() & 0xFFFF for g in got], BITWISE[name](x, n) % 2**16)


def test_bitwise_not(chips):
    x = whole_numbers()
    assert_same(ttnn.bitwise_not(chips.put(x.int(), ttnn.int32)), -x - 1)


@pytest.mark.parametrize("name", ("gcd", "lcm"))
def test_common_divisors_and_multiples(chips, name):
    a, b = torch.randint(1, 1000, (1, 1, 32, 64)), torch.randint(1, 1000, (1, 1, 32, 64))
    got = getattr(ttnn, name)(*(chips.put(x.int(), ttnn.int32) for x in (a, b)))
    want = [getattr(math, name)(*p) for p in zip(a.flatten().tolist(), b.flatten().tolist())]
    assert_same(got, torch.tensor(want).reshape(a.shape))


def test_bitcast_reads_the_same_bits(chips):
    x = whole_numbers().int()
    x = x.masked_fill((x.view(torch.float32)).isnan(), 0)
    got = ttnn.bitcast(chips.put(x, ttnn.int32), ttnn.float32)
    assert_same(got, x.view(torch.float32))
    y = torch.randn(1, 1, 32, 64).bfloat16()
    got = chips.get(ttnn.bitcast(chips.put(y), ttnn.uint16))
    assert_same([g.int() & 0xFFFF for g in got], y.view(torch.int16).int() & 0xFFFF)
