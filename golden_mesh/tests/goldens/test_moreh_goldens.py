"""The `moreh_` operations against torch, and their gradients against torch's automatic differentiation."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import assert_near

X, Y = (2, 3, 32, 64), (2, 3, 64, 32)  # shapes of the operands
STRIP = (1, 1, 1, 64)

# op -> shapes of its tensors, its other arguments, torch's function
FORWARD = {
    "abs_pow": ((X,), {"p": 2.5}, lambda x: x.abs() ** 2.5),
    "sum": ((X,), {"dim": [1, 3], "keepdim": True}, lambda x: x.sum([1, 3], keepdim=True)),
    "mean": ((X,), {"dim": 3, "keepdim": True}, lambda x: x.mean(3, keepdim=True)),
    "cumsum": ((X,), {"dim": 1}, lambda x: x.cumsum(1)),
    "dot": ((STRIP, STRIP), {}, lambda a, b: (a * b).sum().reshape(1, 1, 1, 1)),
    "matmul": ((X, Y), {}, torch.matmul),
    "matmul transposed": ((X, X), {"transpose_other": True}, lambda a, b: a @ b.mT),
    "bmm": (((3, 32, 64), (3, 64, 32)), {}, torch.bmm),
    "linear": (((1, 1, 32, 64), (1, 1, 96, 64)), {}, lambda x, w: x @ w.mT),
    "softmax": ((X,), {"dim": 3}, lambda x: x.softmax(3)),
    "softmin": ((X,), {"dim": 2}, lambda x: F.softmin(x, 2)),
    "logsoftmax": ((X,), {"dim": 3}, lambda x: x.log_softmax(3)),
    "layer_norm": ((X,), {"normalized_dims": 2}, lambda x: F.layer_norm(x, X[-2:])),
    "group_norm": (((2, 6, 32, 32),), {"num_groups": 3}, lambda x: F.group_norm(x, 3)),
}  # fmt: skip


@pytest.mark.parametrize("case", FORWARD)
def test_forward(chips, case):
    shapes, how, function = FORWARD[case]
    given = [chips.draw(*shape) for shape in shapes]
    got = getattr(ttnn, f"moreh_{case.split()[0]}")(*map(chips.put, given), **how)
    got = got[0] if isinstance(got, list) else got
    assert_near(chips.get(got), [function(*(v.double() for v in x)) for x in zip(*given)], 4e-3)


# op -> shapes of the inputs, the function whose gradients it returns, its other arguments, names of the results
BACKWARD = {
    "matmul": ((X, Y), torch.matmul, {}, "input_a_grad", "input_b_grad"),
    "bmm": (((3, 32, 64), (3, 64, 32)), torch.bmm, {}, "input_grad", "mat2_grad"),
    "linear": (
        ((1, 1, 32, 64), (1, 1, 96, 64)), lambda x, w: x @ w.mT,
        {"are_required_outputs": [True, True, False]}, "input_grad", "weight_grad",
    ),
}  # fmt: skip


def gradients(function, grad, *inputs):
    inputs = [x.double().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*inputs), inputs, grad.double())


@pytest.mark.parametrize("name", BACKWARD)
def test_backward_of_products(chips, name):
    shapes, function, how, *names = BACKWARD[name]
    a, b = (torch.randn(shape).bfloat16().float() for shape in shapes)
    grad = torch.randn(function(a, b).shape).bfloat16().float()
    op = getattr(ttnn, f"moreh_{name}_backward")
    buffers = dict(zip(names, (chips.put(torch.zeros(shape)) for shape in shapes)))
    got = [t for t in op(*map(chips.put, (grad, a, b)), **how, **buffers) if t is not None]
    for tensor, want in zip(got, gradients(function, grad, a, b), strict=True):
        assert_near(chips.get(tensor), [want] * chips.count, 4e-3)


@pytest.mark.parametrize("name", ("softmax", "softmin", "logsoftmax"))
def test_backward_of_softmax(chips, name):
    function = {"softmin": F.softmin, "logsoftmax": F.log_softmax}.get(name, F.softmax)
    x, grad = torch.randn(X), torch.randn(X)
    op = getattr(ttnn, f"moreh_{name}_backward")
    got = op(*(chips.put(v) for v in (function(x, 3), grad)), 3)
    want = gradients(lambda v: function(v, 3), grad, x)
    assert_near(chips.get(got), [*want] * chips.count, 1e-2)


def test_backward_of_sums(chips):
    x, grad = torch.randn(X).bfloat16().float(), torch.randn(2, 1, 32, 1).bfloat16().float()
    given, there = chips.put(grad), chips.put(x)
    how = {"dim": [1, 3], "keepdim": True}
    got = ttnn.moreh_sum_backward(given, input=there, **how)
    assert_near(chips.get(got), [grad.expand(X).double()] * chips.count, 4e-3)
    got = ttnn.moreh_mean_backward(given, input_grad_shape=ttnn.Shape(X), **how)
    assert_near(chips.get(got), [grad.expand(X).double() / 192] * chips.count, 4e-3)
    norm = lambda v: torch.linalg.vector_norm(v, 3.0, [1, 3], keepdim=True)  # noqa: E731
    got = ttnn.moreh_norm_backward(there, chips.put(norm(x)), given, 3.0, **how)
    assert_near(chips.get(got), [*gradients(norm, grad, x)] * chips.count, 4e-3)
    got = ttnn.moreh_cumsum_backward(there, 1)
    assert_near(chips.get(got), [x.double().flip(1).cumsum(1).flip(1)] * chips.count, 4e-3)


def test_backward_of_norms(chips):
    put = chips.put
    x, grad = (torch.randn(2, 6, 32, 32).bfloat16().float() for _ in range(2))
    gamma, beta = torch.rand(32).bfloat16().float() + 0.5, torch.randn(32)
    want = gradients(lambda a, g, b: F.layer_norm(a, (32,), g, b), grad, x, gamma, beta)
    row = (1, 32)
    buffers = [put(torch.zeros(shape)) for shape in (x.shape, row, row)]
    mean, rstd = x.mean(-1), (x.var(-1, correction=0) + 1e-5).rsqrt()
    given = [put(v) for v in (grad, x, mean, rstd)]
    got = ttnn.moreh_layer_norm_backward(
        *given, 1, gamma=put(gamma.reshape(row)), input_grad=buffers[0], gamma_grad=buffers[1], beta_grad=buffers[2]
    )  # fmt: skip
    for tensor, w in zip(got, want, strict=True):
        assert_near([t.reshape(w.shape) for t in chips.get(tensor)], [w] * chips.count, 1e-2)
    groups = x.reshape(2, 3, -1)
    stats = groups.mean(-1), (groups.var(-1, correction=0) + 1e-5).rsqrt()
    given = [put(v.reshape(1, 1, 2, 3)) for v in stats]
    got = ttnn.moreh_group_norm_backward(
        put(grad), put(x), *given, 3, are_required_outputs=[True, False, True]
    )
    dx, _, db = gradients(lambda a, g, b: F.group_norm(a, 3, g, b), grad, x, torch.ones(6), torch.zeros(6))
    assert got[1] is None
    assert_near(chips.get(got[0]), [dx] * chips.count, 1e-2)
    assert_near([t.reshape(6) for t in chips.get(got[2])], [db] * chips.count, 1e-2)


def test_a_step_of_gradient_descent(chips):
    parameter, slope = (torch.randn(32, 32).bfloat16().float() for _ in range(2))
    parameter.requires_grad_()
    optimizer = torch.optim.SGD([parameter], lr=0.5, weight_decay=0.25)
    parameter.grad, before = slope, parameter.detach().clone()
    optimizer.step()
    given = [chips.put(v) for v in (before, slope)]
    got = ttnn.moreh_sgd(*given, lr=0.5, weight_decay=0.25, momentum_initialized=False)
    assert_near(chips.get(got[0]), [parameter.detach().double()] * chips.count, 4e-3)


def test_elements_by_their_numbers(chips):
    x, rows = torch.randn(6, 40).bfloat16().float(), torch.tensor([5, 0, 3])
    given = chips.put(x, layout=ttnn.ROW_MAJOR_LAYOUT)
    index = chips.put(rows.int(), ttnn.int32, ttnn.ROW_MAJOR_LAYOUT)
    got = ttnn.moreh_getitem(given, [index], [0])
    assert_near(chips.get(got), [x[rows].double()] * chips.count, 1e-6)


def test_another_function_of_the_softmax_family_is_refused(chips):
    with pytest.raises(GoldenError, match="ttnn.moreh_softmax .*op="):
        other = ttnn._ttnn.operations.moreh.MorehSoftmaxOp.SOFTMIN
        ttnn.moreh_softmax(chips.put(torch.randn(X)), 3, op=other)
