"""Gradients, against the slope between two near points in float64."""

import re

import pytest
import torch
import torch.nn.functional as F
import ttnn

from goldens.support import ROW_MAJOR, Put, assert_near, assert_same, examples, ints

STEP, ERROR, SHAPE = 1e-6, 6e-3, (1, 1, 33, 40)


def draw(*shape):
    """Away from zero and from the edges of the piecewise functions."""
    x = torch.randn(shape or SHAPE).bfloat16().float()
    return torch.where(x.abs() < 0.1, x.sign() * 0.125 + 0.0625 * (x == 0), x)


def positive():
    return (draw().abs() + 0.5).bfloat16().float()


# The call after "ttnn." of a gradient g and of tensors -> the function of the tensors: with numbers, of several,
# or not torch's function of that name. test_families.py has others.
CASES = {
    "assign_bw(g, a)": lambda a: a,
    "exp_bw(g, a)": torch.exp,
    "fill_zero_bw(g, a)": lambda a: a * 0,
    "gelu_bw(g, a)": F.gelu,
    "log_sigmoid_bw(g, a)": F.logsigmoid,
    "square_bw(g, a)": torch.square,
    "add_bw(g, a, 3.0)": lambda a: a + 3,
    "bias_gelu_bw(g, a, 0.5)": lambda a: F.gelu(a + 0.5),
    "celu_bw(g, a, alpha=1.5)": lambda a: F.celu(a, 1.5),
    "clamp_bw(g, a, -0.51, 0.76)": lambda a: a.clamp(-0.51, 0.76),
    "div_bw(g, a, 4.0)": lambda a: a / 4,
    "div_bw(g, a, 4.0, 'trunc')": lambda a: a * 0,
    "div_bw(g, a, b, rounding_mode='floor')": lambda a, b: a * 0 + b * 0,
    "div_no_nan_bw(g, a, 0.0)": lambda a: a * 0,
    "elu_bw(g, a, alpha=0.5)": lambda a: F.elu(a, 0.5),
    "hardshrink_bw(g, a, lambd=0.0625)": lambda a: F.hardshrink(a, 0.0625),
    "hardtanh_bw(g, a, min=-0.51, max=0.76)": lambda a: a.clamp(-0.51, 0.76),
    "leaky_relu_bw(g, a, negative_slope=0.3)": lambda a: F.leaky_relu(a, 0.3),
    "mul_bw(g, a, 3.0)": lambda a: a * 3,
    "polygamma_bw(g, positive, 2)": lambda a: torch.polygamma(2, a),
    "pow_bw(g, a, 3.0)": lambda a: a**3,
    "rdiv_bw(g, a, 4.0)": lambda a: 4 / a,
    "rpow_bw(g, a, 2.0)": lambda a: 2**a,
    "softplus_bw(g, a, beta=2.0, threshold=20.0)": lambda a: F.softplus(a, 2, 20),
    "softshrink_bw(g, a, lambd=0.0625)": lambda a: F.softshrink(a, 0.0625),
    "sub_bw(g, a, 3.0)": lambda a: a - 3,
    "threshold_bw(g, a, 0.5, 5.0)": lambda a: F.threshold(a, 0.5, 5),
    "add_bw(g, a, b)": lambda a, b: a + b,
    "addalpha_bw(g, a, b, 2.0)": lambda a, b: a + 2 * b,
    "bias_gelu_bw(g, a, b)": lambda a, b: F.gelu(a + b),
    "hypot_bw(g, a, b)": lambda a, b: torch.hypot(a, b),
    "ldexp_bw(g, a, b)": lambda a, b: a * 2**b,
    "lerp_bw(g, a, b, 0.25)": lambda a, b: a + (b - a) / 4,
    "logaddexp_bw(g, a, b)": lambda a, b: torch.logaddexp(a, b),
    "max_bw(g, a, b)": lambda a, b: torch.maximum(a, b),
    "min_bw(g, a, b)": lambda a, b: torch.minimum(a, b),
    "mul_bw(g, a, b)": lambda a, b: a * b,
    "rsub_bw(g, a, b)": lambda a, b: b - a,
    "squared_difference_bw(g, a, b)": lambda a, b: (a - b) ** 2,
    "sub_bw(g, a, b)": lambda a, b: a - b,
    "subalpha_bw(g, a, b, 2.0)": lambda a, b: a - 2 * b,
    "addcdiv_bw(g, a, b, c, 2.0)": lambda a, b, c: a + 2 * b / c,
    "addcmul_bw(g, a, b, c, 2.0)": lambda a, b, c: a + 2 * b * c,
}


@pytest.mark.parametrize("call", CASES)
def test_gradients_of_each_tensor(chips, call):
    function = CASES[call]
    names = re.findall(r"\b(?:a|b|c|positive)\b", call.partition("g, ")[2])
    inputs = [positive() if name == "positive" else draw() for name in names]
    if len(inputs) > 1:
        inputs[1] = (inputs[1] + 0.03).bfloat16().float()
    grad = draw()
    tensors = dict(zip(("g", *names), map(chips.put, (grad, *inputs))))
    found = eval(f"ttnn.{call}", {"ttnn": ttnn}, tensors)
    wide = [x.double() for x in inputs]
    for at, got in enumerate(found[: len(inputs)]):
        up, down = ([*wide[:at], wide[at] + s, *wide[at + 1 :]] for s in (STEP, -STEP))
        want = grad.double() * (function(*up) - function(*down)) / (2 * STEP)
        assert_near(got, want, ERROR) if want.any() else assert_same(got, want)
    assert len(found) >= len(inputs)


A = draw
EXPLICIT = {
    "ttnn.fmod_bw(x, y, z)": ("x, -x * torch.trunc(y / z)", A, A, A),
    "ttnn.remainder_bw(x, y, z)": ("x, -x * torch.floor(y / z)", A, A, A),
    "ttnn.where_bw(x, ttnn.gtz(y), z, u)": ("x * (y > 0), x * (y <= 0)", A, A, A, A),
    # Only the gradients that are required.
    "ttnn.mul_bw(x, y, z, are_required_outputs=[False, True])[1:]": ("(x * y,)", A, A, A),
    "ttnn.mul_bw(x, y, z, are_required_outputs=[True, False])[:1]": ("(x * z,)", A, A, A),
    "ttnn.embedding_bw(x, y, z)": (
        "(F.one_hot(x.flatten(), 64).double().T @ z[0, 0])[None, None]",
        ints(lambda: torch.randint(0, 50, (2, 32)), ttnn.uint32),
        Put(torch.zeros(64, 64), layout=ROW_MAJOR),
        (1, 1, 64, 64),
    ),
}
test_explicit = examples(EXPLICIT, globals(), error=ERROR)


def test_a_gradient_that_is_not_required_is_none(chips):
    given = [chips.put(draw()) for _ in range(3)]
    assert ttnn.mul_bw(*given, are_required_outputs=[False, True])[0] is None
