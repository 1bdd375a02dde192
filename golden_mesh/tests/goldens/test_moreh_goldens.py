"""The `moreh_` operations and their gradients against torch's."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import ROW_MAJOR, Put, assert_near, bf16, examples, ints

X, Y, SMALL, IMAGE = (2, 3, 32, 64), (2, 3, 64, 32), (2, 1, 32, 1), (2, 6, 32, 32)
STRIP, LINE, WEIGHT, SQUARE = (1, 1, 1, 64), (1, 1, 32, 64), (1, 1, 96, 64), (32, 32)
BATCH = (3, 32, 64), (3, 64, 32)
ALL = dict(dim=[1, 3], keepdim=True)
# A product has LoFi by default: it cuts its operands, by 2 % together. A dest of bfloat16 rounds each sum.
LOFI, SUM = {"error": 2.8e-2}, {"error": 8e-3}

EXAMPLES = {
    "ttnn.moreh_abs_pow(x, p=2.5)": ("x.abs() ** 2.5", X),
    "ttnn.moreh_sum(x, **ALL)": ("x.sum([1, 3], keepdim=True)", X, SUM),
    "ttnn.moreh_mean(x, dim=3, keepdim=True)": ("x.mean(3, keepdim=True)", X),
    "ttnn.moreh_norm(x, p=3.0, dim=1, keepdim=True)": ("norm(x, 1)", X, SUM),
    "ttnn.moreh_norm(x, p=3.0, dim=[2, 3], keepdim=False)": ("norm(x, [2, 3])", X, {"error": 1.6e-2}),
    "ttnn.moreh_cumsum(x, dim=1)": ("x.cumsum(1)", X),
    "ttnn.moreh_dot(x, y)": ("(x * y).sum().reshape(1, 1, 1, 1)", STRIP, STRIP),
    "ttnn.moreh_matmul(x, y)": ("x @ y", X, Y, LOFI),
    "ttnn.moreh_matmul(x, y, transpose_other=True)": ("x @ y.mT", X, X, LOFI),
    "ttnn.moreh_bmm(x, y)": ("x @ y", *BATCH, LOFI),
    "ttnn.moreh_linear(x, y)": ("x @ y.mT", LINE, WEIGHT, LOFI),
    "ttnn.moreh_softmax(x, dim=3)": ("x.softmax(3)", X, {"error": 7e-3}),
    "ttnn.moreh_softmin(x, dim=2)": ("F.softmin(x, 2)", X, SUM),
    "ttnn.moreh_logsoftmax(x, dim=3)": ("x.log_softmax(3)", X),
    "ttnn.moreh_layer_norm(x, normalized_dims=2)[0]": ("F.layer_norm(x, X[-2:])", X),
    "ttnn.moreh_group_norm(x, num_groups=3)[0]": ("F.group_norm(x, 3)", IMAGE),
    "ttnn.moreh_getitem(x, [y], [0])": ("x[[5, 0, 3]]", Put((6, 40), layout=ROW_MAJOR), ints([5, 0, 3]), {"error": 0}),
    # One step of gradient descent.
    "ttnn.moreh_sgd(x, y, lr=0.5, weight_decay=0.25, momentum_initialized=False)[:1]":
        ("(x - 0.5 * (y + 0.25 * x),)", SQUARE, SQUARE),
    # Gradients: y is the input, x the gradient of the result.
    "ttnn.moreh_sum_backward(x, input=y, **ALL)": ("x.expand(X)", SMALL, X),
    "ttnn.moreh_mean_backward(x, input_grad_shape=ttnn.Shape(X), **ALL)": ("x.expand(X) * 0.00518798828125", SMALL),
    "ttnn.moreh_norm_backward(y, ttnn.moreh_norm(y, 3.0, **ALL), x, 3.0, **ALL)":
        ("gradients(lambda v: norm(v, [1, 3]), x, y)[0]", SMALL, X),
    "ttnn.moreh_cumsum_backward(x, 1)": ("x.flip(1).cumsum(1).flip(1)", X),
    "ttnn.moreh_softmax_backward(ttnn.moreh_softmax(y, dim=3), x, 3)":
        ("gradients(lambda v: F.softmax(v, 3), x, y)[0]", X, X, {"error": 1e-2}),
    "ttnn.moreh_softmin_backward(ttnn.moreh_softmin(y, dim=3), x, 3)":
        ("gradients(lambda v: F.softmin(v, 3), x, y)[0]", X, X, {"error": 1e-2}),
    "ttnn.moreh_logsoftmax_backward(ttnn.moreh_logsoftmax(y, dim=3), x, 3)":
        ("gradients(lambda v: F.log_softmax(v, 3), x, y)[0]", X, X, {"error": 1e-2}),
    "ttnn.moreh_matmul_backward(x, y, z, input_a_grad=zeros(y), input_b_grad=zeros(z))":
        ("gradients(torch.matmul, x, y, z)", (2, 3, 32, 32), X, Y, LOFI),
    "ttnn.moreh_bmm_backward(x, y, z, input_grad=zeros(y), mat2_grad=zeros(z))":
        ("gradients(torch.bmm, x, y, z)", (3, 32, 32), *BATCH, LOFI),
    "ttnn.moreh_linear_backward(x, y, z, are_required_outputs=[True, True, False], "
    "input_grad=zeros(y), weight_grad=zeros(z))[:2]":
        ("gradients(lambda v, w: v @ w.mT, x, y, z)", (1, 1, 32, 96), LINE, WEIGHT),
}  # fmt: skip


def norm(x, dim):
    return torch.linalg.vector_norm(x, 3.0, dim, keepdim=True)


def zeros(like):
    return ttnn.zeros_like(like)


def gradients(function, grad, *inputs):
    inputs = [x.double().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*inputs), inputs, grad.double())


test_examples = examples(EXAMPLES, globals(), error=4e-3)


def test_backward_of_norms(chips):
    put = chips.put
    x, grad = bf16(*IMAGE), bf16(*IMAGE)
    gamma, beta, row = torch.rand(32).bfloat16().float() + 0.5, torch.randn(32), (1, 32)
    want = gradients(lambda a, g, b: F.layer_norm(a, (32,), g, b), grad, x, gamma, beta)
    names = ("input_grad", "gamma_grad", "beta_grad")
    buffers = {n: put(torch.zeros(shape)) for n, shape in zip(names, (IMAGE, row, row))}
    given = grad, x, x.mean(-1), (x.var(-1, correction=0) + 1e-5).rsqrt()
    scale = put(gamma.reshape(row))
    got = ttnn.moreh_layer_norm_backward(*map(put, given), 1, gamma=scale, **buffers)
    for tensor, w in zip(got, want, strict=True):
        assert_near([t.reshape(w.shape) for t in chips.get(tensor)], w, 1e-2)
    groups = x.reshape(2, 3, -1)
    stats = groups.mean(-1), (groups.var(-1, correction=0) + 1e-5).rsqrt()
    given = grad, x, *(v.reshape(1, 1, 2, 3) for v in stats)
    required = dict(are_required_outputs=[True, False, True])
    got = ttnn.moreh_group_norm_backward(*map(put, given), 3, **required)
    ones = torch.ones(6), torch.zeros(6)
    dx, _, db = gradients(lambda a, g, b: F.group_norm(a, 3, g, b), grad, x, *ones)
    assert got[1] is None
    assert_near(got[0], dx, 1e-2)
    assert_near([t.reshape(6) for t in chips.get(got[2])], db, 1e-2)


def test_another_function_of_the_softmax_family_is_refused(chips):
    with pytest.raises(GoldenError, match="ttnn.moreh_softmax .*op="):
        other = ttnn._ttnn.operations.moreh.MorehSoftmaxOp.SOFTMIN
        ttnn.moreh_softmax(chips.put(torch.randn(X)), 3, op=other)
