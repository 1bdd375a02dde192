"""Gradients against the slope between two near points, in float64."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from goldens.support import assert_near

CASES = {
    "abs": (torch.abs, {}),
    "cosh": (torch.cosh, {}),
    "erf": (torch.erf, {}),
    "exp": (torch.exp, {}),
    "hardswish": (F.hardswish, {}),
    "log_sigmoid": (F.logsigmoid, {}),
    "neg": (torch.neg, {}),
    "relu": (torch.relu, {}),
    "relu6": (F.relu6, {}),
    "selu": (F.selu, {}),
    "sigmoid": (torch.sigmoid, {}),
    "silu": (F.silu, {}),
    "sin": (torch.sin, {}),
    "square": (torch.square, {}),
    "tanh": (torch.tanh, {}),
    "celu": (lambda x, alpha: F.celu(x, alpha), {"alpha": 1.5}),
    "elu": (lambda x, alpha: F.elu(x, alpha), {"alpha": 0.5}),
    "hardshrink": (lambda x, lambd: F.hardshrink(x, lambd), {"lambd": 0.8}),
    "hardtanh": (lambda x, min, max: x.clamp(min, max), {"min": -0.51, "max": 0.76}),
    "leaky_relu": (lambda x, negative_slope: F.leaky_relu(x, negative_slope), {"negative_slope": 0.3}),
    "softplus": (lambda x, beta, threshold: F.softplus(x, beta, threshold), {"beta": 2.0, "threshold": 20.0}),
    "softshrink": (lambda x, lambd: F.softshrink(x, lambd), {"lambd": 0.3}),
}  # fmt: skip
POSITIVE = {
    "log": torch.log,
    "rsqrt": torch.rsqrt,
    "sqrt": torch.sqrt,
    "reciprocal": torch.reciprocal,
}
STEP = 1e-6


def draw(*shape):
    """Away from zero and from the edges of the piecewise functions."""
    x = torch.randn(shape).bfloat16().float()
    return torch.where(x.abs() < 0.1, x.sign() * 0.125 + 0.0625 * (x == 0), x)


def slope(function, x):
    x = x.double()
    return (function(x + STEP) - function(x - STEP)) / (2 * STEP)


@pytest.mark.parametrize("name", CASES)
def test_of_one_tensor(chips, name):
    function, parameters = CASES[name]
    x, grad = draw(1, 1, 33, 40), draw(1, 1, 33, 40)
    (got,) = getattr(ttnn, f"{name}_bw")(chips.put(grad), chips.put(x), **parameters)
    want = grad.double() * slope(lambda v: function(v, **parameters), x)
    assert_near(chips.get(got), [want] * chips.count, 4e-3)


@pytest.mark.parametrize("name", POSITIVE)
def test_of_a_positive_tensor(chips, name):
    x, grad = draw(1, 1, 32, 40).abs() + 0.5, draw(1, 1, 32, 40)
    x = x.bfloat16().float()
    (got,) = getattr(ttnn, f"{name}_bw")(chips.put(grad), chips.put(x))
    assert_near(chips.get(got), [grad.double() * slope(POSITIVE[name], x)] * chips.count, 4e-3)


@pytest.mark.parametrize("name", ("hypot", "logaddexp", "squared_difference"))
def test_of_two_tensors(chips, name):
    function = {"squared_difference": lambda a, b: (a - b) ** 2}.get(name) or getattr(torch, name)
    a, b, grad = draw(1, 1, 32, 40), draw(1, 1, 32, 40), draw(1, 1, 32, 40)
    got = getattr(ttnn, f"{name}_bw")(chips.put(grad), chips.put(a), chips.put(b))
    wanted = (
        slope(lambda v: function(v, b.double()), a),
        slope(lambda v: function(a.double(), v), b),
    )
    for tensor, want in zip(got, wanted, strict=True):
        assert_near(chips.get(tensor), [grad.double() * want] * chips.count, 4e-3)


def test_of_arithmetic(chips):
    a, b, grad = draw(1, 1, 32, 40), draw(1, 1, 32, 40), draw(1, 1, 32, 40)
    given = [chips.put(x) for x in (grad, a, b)]
    for op, wanted in (
        (ttnn.add_bw, (grad, grad)),
        (ttnn.sub_bw, (grad, -grad)),
        (ttnn.mul_bw, (grad * b, grad * a)),
    ):
        for tensor, want in zip(op(*given), wanted, strict=True):
            assert_near(chips.get(tensor), [want.double()] * chips.count, 4e-3)
        (got,) = op(*given[:2], 3.0)[:1]
        want = {ttnn.mul_bw: 3 * grad}.get(op, grad).double()
        assert_near(chips.get(got), [want] * chips.count, 4e-3)


# op -> numbers, torch's function of two tensors
OF_TENSORS = {
    "addalpha": ((2.0,), lambda a, b: a + 2 * b),
    "subalpha": ((2.0,), lambda a, b: a - 2 * b),
    "rsub": ((), lambda a, b: b - a),
    "ldexp": ((), lambda a, b: a * 2**b),
    "lerp": ((0.25,), lambda a, b: a + (b - a) / 4),
    "max": ((), torch.maximum),
    "min": ((), torch.minimum),
    "bias_gelu": ((), lambda a, b: F.gelu(a + b)),
}
OF_A_TENSOR = {
    "pow": ((3.0,), lambda x: x**3),
    "rpow": ((2.0,), lambda x: 2**x),
    "div": ((4.0,), lambda x: x / 4),
    "div_no_nan": ((0.0,), lambda x: x * 0),
    "rdiv": ((4.0,), lambda x: 4 / x),
    "clamp": ((-0.51, 0.76), lambda x: x.clamp(-0.51, 0.76)),
    "threshold": ((0.51, 5.0), lambda x: F.threshold(x, 0.51, 5.0)),
    "trunc": ((), lambda x: x * 0),
    "fill_zero": ((), lambda x: x * 0),
    "gelu": ((), F.gelu),
    "bias_gelu": ((0.5,), lambda x: F.gelu(x + 0.5)),
    "assign": ((), lambda x: x),
    "polygamma": ((2,), lambda x: torch.polygamma(2, x)),
}


@pytest.mark.parametrize("name", OF_A_TENSOR)
def test_of_a_tensor_and_numbers(chips, name):
    numbers, function = OF_A_TENSOR[name]
    x, grad = draw(1, 1, 32, 40), draw(1, 1, 32, 40)
    x = x.abs() + 0.5 if name == "polygamma" else x
    x = x.bfloat16().float()
    (got,) = getattr(ttnn, f"{name}_bw")(chips.put(grad), chips.put(x), *numbers)
    want = grad.double() * slope(function, x)
    assert_near(chips.get(got), [want + 1e-30] * chips.count, 4e-3) if want.any() else None
    assert want.any() or not any(g.any() for g in chips.get(got))


@pytest.mark.parametrize("name", OF_TENSORS)
def test_of_two_tensors_and_numbers(chips, name):
    numbers, function = OF_TENSORS[name]
    a, b, grad = draw(1, 1, 32, 40), draw(1, 1, 32, 40) + 0.03, draw(1, 1, 32, 40)
    b = b.bfloat16().float()
    got = getattr(ttnn, f"{name}_bw")(chips.put(grad), chips.put(a), chips.put(b), *numbers)
    wanted = slope(lambda v: function(v, b.double()), a), slope(lambda v: function(a.double(), v), b)
    for tensor, want in zip(got, wanted, strict=True):
        assert_near(chips.get(tensor), [grad.double() * want] * chips.count, 4e-3)


def test_of_remainders(chips):
    a, b, grad = draw(1, 1, 32, 40), draw(1, 1, 32, 40), draw(1, 1, 32, 40)
    given = [chips.put(v) for v in (grad, a, b)]
    for op, rounded in ((ttnn.fmod_bw, torch.trunc), (ttnn.remainder_bw, torch.floor)):
        for tensor, want in zip(op(*given), (grad, -grad * rounded(a / b)), strict=True):
            assert_near(chips.get(tensor), [want.double()] * chips.count, 4e-3)


def test_of_three_tensors(chips):
    a, b, c, grad = (draw(1, 1, 32, 40) for _ in range(4))
    given = [chips.put(v) for v in (grad, a, b, c)]
    for op, wanted in (
        (ttnn.addcmul_bw, (grad, 2 * grad * c, 2 * grad * b)),
        (ttnn.addcdiv_bw, (grad, 2 * grad / c, -2 * grad * b / c**2)),
    ):
        for tensor, want in zip(op(*given, 2.0), wanted, strict=True):
            assert_near(chips.get(tensor), [want.double()] * chips.count, 4e-3)
    chosen = [chips.put(grad), chips.put((a > 0).float()), *given[2:]]
    for tensor, want in zip(ttnn.where_bw(*chosen), (grad * (a > 0), grad * (a <= 0)), strict=True):
        assert_near(chips.get(tensor), [want.double()] * chips.count, 4e-3)


def test_only_the_gradients_that_are_required(chips):
    a, b, grad = draw(1, 1, 32, 40), draw(1, 1, 32, 40), draw(1, 1, 32, 40)
    given = [chips.put(x) for x in (grad, a, b)]
    first, second = ttnn.mul_bw(*given, are_required_outputs=[False, True])
    assert first is None
    assert_near(chips.get(second), [(grad * a).double()] * chips.count, 4e-3)


def test_of_an_embedding(chips):
    ids, grad = torch.randint(0, 50, (2, 32)), draw(1, 1, 64, 64)
    want = F.one_hot(ids.flatten(), 64).double().T @ grad[0, 0].double()
    table = chips.put(torch.zeros(64, 64), layout=ttnn.ROW_MAJOR_LAYOUT)
    given = chips.put(ids.int(), ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT)
    got = ttnn.embedding_bw(given, table, chips.put(grad))
    assert_near([g.reshape(64, 64) for g in chips.get(got)], [want] * chips.count, 4e-3)
