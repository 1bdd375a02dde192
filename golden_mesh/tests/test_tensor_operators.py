"""Python's operators between tensors, and between a tensor and a number."""

import operator

import pytest
import torch

OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul]
OPERATORS += [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("apply", OPERATORS, ids=lambda apply: apply.__name__)
def test_operators_compute(golden, apply):
    a, b = torch.full((1, 1, 32, 32), 3.0), torch.eye(32).view(1, 1, 32, 32) + 2
    wanted = apply(a, b).float()
    (got, *_) = golden.get(apply(golden.put(a), golden.put(b)))
    torch.testing.assert_close(got.float(), wanted, rtol=2**-7, atol=0)


@pytest.mark.parametrize("apply", OPERATORS[:3], ids=lambda apply: apply.__name__)
def test_operators_with_a_number_on_the_left(golden, apply):
    (got, *_) = golden.get(apply(6, golden.full(4)))
    assert got.unique().tolist() == [apply(6, 4.0)]
