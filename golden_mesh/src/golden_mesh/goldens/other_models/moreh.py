"""The `moreh_` operations of training. Many sum in float32 and round only their results.

A backward op returns the gradients that are_required_outputs names, or those with a preallocated tensor.
"""

import math
from functools import reduce
from typing import Callable

import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic import engine, packer
from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.product import TILE, multiply, product, sums_of_columns, sums_of_rows
from golden_mesh.arithmetic.vector import inverse
from golden_mesh.goldens.activations import function
from golden_mesh.goldens.creation import constant
from golden_mesh.goldens.other_models.backward import gradients, slots
from golden_mesh.goldens.reduction import axes, cumsum, sum_of_outer
from golden_mesh.registry import golden, golden_table


def _present(values, wanted, out=None) -> list[torch.Tensor]:
    """The values that are wanted, in the shapes of `out`, the slots of the op's results."""
    found = [value for value, want in zip(values, wanted, strict=True) if want]
    return found if out is None else [v.reshape(s.shape) for v, s in zip(found, slots(out))]


def _spread(reduced: torch.Tensor, dim, shape) -> torch.Tensor:
    """A reduction's result over `dim`, with or without its dims, as [..., 1, ...]."""
    dims = axes(dim, len(shape))
    return reduced.float().reshape([1 if d in dims else size for d, size in enumerate(shape)])


def power_in_steps(x: torch.Tensor, p: float) -> torch.Tensor:
    """|x|**p of bfloat16 x: the whole power, cut, times exp(log(|x|) * the rest). Each step is packed."""
    kernel = Kernel.of(None, "HiFi4")
    whole = math.floor(p)
    power = engine.keep(x.float().abs() ** whole, engine.BFLOAT16)
    rest = multiply(function("LOG", x.abs()), torch.tensor(p - whole), kernel).bfloat16()
    return multiply(power, function("EXP", rest), kernel).bfloat16()


@golden("ttnn.moreh_norm", ignores="keepdim")
def moreh_norm(input, p, dim, compute_kernel_config, out):
    """moreh_abs_pow, moreh_sum and moreh_abs_pow."""
    dims, kernel = axes(dim, input.dim()), Kernel.of(compute_kernel_config, "HiFi4")
    if kernel.wide or input.dtype != torch.bfloat16 or p <= 0 or math.isinf(p):
        return torch.linalg.vector_norm(input.float(), p, dims).reshape(out.shape)
    return power_in_steps(moreh_sum(power_in_steps(input, p), dims, compute_kernel_config, out), 1 / p)


def _sum_over(x: torch.Tensor, d: int, kernel: Kernel, *, mean: bool = False) -> torch.Tensor:
    """The sum of bfloat16 over a dim, or its mean: the factor of rows is rounded to bfloat16, others are cut."""
    factor = 1 / x.shape[d] if mean else 1.0
    if d == x.dim() - 1:
        total = sums_of_rows(x, kernel, torch.tensor(factor).bfloat16().item())
    elif d == x.dim() - 2:
        total = sums_of_columns(x, kernel, engine.cut_number(factor))
    elif mean:  # the sum of two is packed
        total = _times(reduce(engine.add, x.split(1, d)), factor, kernel)
    else:
        total = sum_of_outer(x, d, kernel)
    return packer.pack(total, ttnn.bfloat16)


def _times(x: torch.Tensor, factor: float, kernel: Kernel) -> torch.Tensor:
    return multiply(x.bfloat16(), torch.tensor(engine.cut_number(factor)).bfloat16(), kernel)


@golden("ttnn.moreh_sum", ignores="keepdim")
def moreh_sum(input, dim, compute_kernel_config, out):
    """One dim after another, from the last one on."""
    if not input.is_floating_point():
        return input.sum(axes(dim, input.dim())).reshape(out.shape)
    for d in sorted(axes(dim, input.dim()), reverse=True):
        input = _sum_over(input, d, Kernel.of(compute_kernel_config, "HiFi4"))
    return input.reshape(out.shape)


@golden("ttnn.moreh_mean", ignores="keepdim")
def moreh_mean(input, dim, compute_kernel_config, out):
    for d in sorted(axes(dim, input.dim()), reverse=True):
        input = _sum_over(input, d, Kernel.of(compute_kernel_config, "HiFi4"), mean=True)
    return input.reshape(out.shape)


@golden("ttnn.moreh_mean_backward", ignores="keepdim input_grad_shape")
def moreh_mean_backward(output_grad, dim, compute_kernel_config, out):
    count = math.prod(out.shape[d] for d in axes(dim, len(out.shape)))
    spread = _spread(output_grad, dim, out.shape).expand(out.shape)
    return _times(spread, 1 / count, Kernel.of(compute_kernel_config, "HiFi4"))


@golden("ttnn.moreh_norm_backward", ignores="keepdim")
def moreh_norm_backward(input, output_grad, p, dim):
    dims = axes(dim, input.dim())
    norm = lambda x: torch.linalg.vector_norm(x, p, dims, keepdim=True)
    return gradients(norm, _spread(output_grad, dim, input.shape), input)[0]


@golden("ttnn.moreh_dot_backward")
def moreh_dot_backward(output_grad, input, other, input_grad, other_grad):
    found = output_grad.float() * other.float(), output_grad.float() * input.float()
    return _present(found, (input_grad is not None, other_grad is not None))


@golden("ttnn.moreh_matmul")
def moreh_matmul(input, other, transpose_input=False, transpose_other=False, bias=None, compute_kernel_config=None):
    """[..., M, K] @ [..., K, N] + bias [1, N] or [1, 1]. By default LoFi, and a bfloat16 dest that sums all of K."""
    kernel = Kernel.of(compute_kernel_config, "LoFi")
    a, b = _partial_tiles_times_one(input, kernel), _partial_tiles_times_one(other, kernel)
    a = a.transpose(-1, -2) if transpose_input else a
    b = b.transpose(-1, -2) if transpose_other else b
    result = product(a, b, kernel, block=-(-a.shape[-1] // TILE))
    return result if bias is None else engine.add(engine.to_bfloat16(result), bias)


def _partial_tiles_times_one(x: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """The kernel clears the padding of the last tiles by a product, which has a fidelity, too."""
    height, width = (size if size % TILE == 0 else size // TILE * TILE for size in x.shape[-2:])
    if (height, width) == x.shape[-2:]:
        return x
    masked = multiply(x, torch.ones(1, 1), kernel).to(x.dtype)
    masked[..., :height, :width] = x[..., :height, :width]
    return masked


@golden("ttnn.moreh_matmul_backward")
def moreh_matmul_backward(output_grad, input_a, input_b, are_required_outputs):
    of_a = moreh_matmul(output_grad, input_b, transpose_other=True)
    found = of_a, moreh_matmul(input_a, output_grad, transpose_input=True)
    return _present([g.sum_to_size(x.shape) for g, x in zip(found, (input_a, input_b))], are_required_outputs)


@golden("ttnn.moreh_linear_backward")
def moreh_linear_backward(output_grad, input, weight, are_required_outputs, bias):
    """The bias' gradient is a sum over rows, or over all elements for a bias of one."""
    bias = torch.zeros(1, weight.shape[-2]) if bias is None else bias
    linear = lambda x, w, b: x @ w.transpose(-1, -2) + b
    return _present(gradients(linear, output_grad, input, weight, bias), are_required_outputs)


def _softmax_of(turned: Callable) -> Callable:
    def op(input_tensor, dim, compute_kernel_config):
        kernel, _, weights, total = _softmax(input_tensor, dim, compute_kernel_config, turned)
        return multiply(weights, inverse(total, kernel.approximate), kernel)

    return op


# The largest value is subtracted in softmin, too. So a row that spans more than 88 overflows.
golden_table({"ttnn.moreh_softmax": _softmax_of(lambda scores: scores), "ttnn.moreh_softmin": _softmax_of(torch.neg)})


@golden("ttnn.moreh_logsoftmax")
def moreh_logsoftmax(input_tensor, dim, compute_kernel_config):
    _, scores, _, total = _softmax(input_tensor, dim, compute_kernel_config)
    return scores - total.log() if scores.dtype == torch.float32 else engine.subtract(scores, total.log().bfloat16())


def _softmax(x: torch.Tensor, dim: int, config, turned=lambda scores: scores):
    """(kernel, x less its maximum, its exp, the sum of that). Each step is packed in a bfloat16 dest, the default."""
    kernel = Kernel.of(config, "HiFi4", approximate=True)
    largest = x.amax(dim, keepdim=True)
    if kernel.wide:
        scores = turned(x.float() - largest.float())
        weights = scores.exp()
        return kernel, scores, weights, weights.sum(dim, keepdim=True)
    scores = turned(engine.subtract(x, largest).bfloat16())
    weights = function("EXP", scores)
    return kernel, scores, weights, _sum_along(weights, dim, kernel)


@golden("ttnn.moreh_softmax_backward")
def moreh_softmax_backward(output_tensor, output_grad_tensor, dim, compute_kernel_config):
    y, grad, kernel = output_tensor, output_grad_tensor, Kernel.of(compute_kernel_config, "HiFi4")
    if kernel.wide or y.dtype != torch.bfloat16:
        y, grad = y.float(), grad.float()
        return y * (grad - (y * grad).sum(dim, keepdim=True))
    total = _sum_along(multiply(y, grad, kernel).bfloat16(), dim, kernel)
    return multiply(y, engine.subtract(grad, total.bfloat16()).bfloat16(), kernel)


@golden("ttnn.moreh_logsoftmax_backward")
def moreh_logsoftmax_backward(output_tensor, output_grad_tensor, dim, compute_kernel_config):
    y, grad, kernel = output_tensor, output_grad_tensor, Kernel.of(compute_kernel_config, "HiFi4")
    if kernel.wide or y.dtype != torch.bfloat16:
        grad = grad.float()
        return grad - y.float().exp() * grad.sum(dim, keepdim=True)
    *first, last = grad.split(TILE, dim)  # the last tile is summed alone
    total = _sum_along(last, dim, kernel)
    if first:
        total = engine.add(_sum_along(torch.cat(first, dim), dim, kernel), total)
    return engine.subtract(grad, multiply(function("EXP", y), total.bfloat16(), kernel).bfloat16())


def _sum_along(x: torch.Tensor, dim: int, kernel: Kernel) -> torch.Tensor:
    return sums_of_rows(x.transpose(dim, -1), kernel).transpose(dim, -1)


def _normalized(x: torch.Tensor, dims: list[int], eps: float) -> tuple[torch.Tensor, ...]:
    """x without its mean and divided by its deviation over dims; the mean; 1 / the deviation."""
    mean = x.mean(dims, keepdim=True)
    rstd = (x.var(dims, correction=0, keepdim=True) + eps).rsqrt()
    return (x - mean) * rstd, mean, rstd


def _normalized_backward(grad, normal, rstd, dims: list[int]) -> torch.Tensor:
    mean = lambda x: x.mean(dims, keepdim=True)
    return rstd * (grad - mean(grad) - normal * mean(grad * normal))


def _scaled(x: torch.Tensor, gamma, beta, shape) -> torch.Tensor:
    x = x if gamma is None else x * gamma.float().reshape(shape)
    return x if beta is None else x + beta.float().reshape(shape)


@golden("ttnn.moreh_layer_norm")
def moreh_layer_norm(input, normalized_dims, eps, gamma, beta, mean, rstd, out):
    """Over the last normalized_dims dims. mean and rstd are written if they are given."""
    dims = list(range(-normalized_dims, 0))
    normal, *stats = _normalized(input.float(), dims, eps)
    y = _scaled(normal, gamma, beta, input.shape[-normalized_dims:])
    return _present((y, *stats), (True, mean is not None, rstd is not None), out)


@golden("ttnn.moreh_layer_norm_backward")
def moreh_layer_norm_backward(
    output_grad, input, mean, rstd, normalized_dims, gamma, input_grad, gamma_grad, beta_grad, out
):
    """The gradients that have a tensor to go into."""
    rank = input.dim() - normalized_dims
    outer, inner = list(range(rank)), list(range(rank, input.dim()))
    stats = [*input.shape[:rank], *[1] * normalized_dims]
    grad, rstd = output_grad.float(), rstd.float().reshape(stats)
    normal = (input.float() - mean.float().reshape(stats)) * rstd
    dx = _normalized_backward(_scaled(grad, gamma, None, input.shape[rank:]), normal, rstd, inner)
    found = dx, (grad * normal).sum(outer), grad.sum(outer)
    return _present(found, [g is not None for g in (input_grad, gamma_grad, beta_grad)], out)


def _grouped(x: torch.Tensor, groups: int) -> torch.Tensor:
    """[N, C, H, W] -> [N, groups, C / groups * H * W]"""
    return x.float().reshape(len(x), groups, -1)


@golden("ttnn.moreh_group_norm")
def moreh_group_norm(input, num_groups, eps, gamma, beta, are_required_outputs, mean, rstd, out):
    """[N, C, H, W], normalized over groups of channels. gamma and beta have C elements."""
    normal, *stats = _normalized(_grouped(input, num_groups), [-1], eps)
    y = _scaled(normal.reshape(input.shape), gamma, beta, (-1, 1, 1))
    wanted = [r or t is not None for r, t in zip(are_required_outputs[1:], (mean, rstd))]
    return _present((y, *stats), (True, *wanted), out)


@golden("ttnn.moreh_group_norm_backward")
def moreh_group_norm_backward(
    output_grad, input, mean, rstd, num_groups, are_required_outputs, gamma, input_grad, gamma_grad, beta_grad, out
):
    grad, stats = output_grad.float(), (len(input), num_groups, 1)
    rstd = rstd.float().reshape(stats)
    normal = (_grouped(input, num_groups) - mean.float().reshape(stats)) * rstd
    scaled = _grouped(_scaled(grad, gamma, None, (-1, 1, 1)), num_groups)
    dx = _normalized_backward(scaled, normal, rstd, [-1])
    found = dx, (grad * normal.reshape(grad.shape)).sum((0, 2, 3)), grad.sum((0, 2, 3))
    given = [g is not None for g in (input_grad, gamma_grad, beta_grad)]
    return _present(found, [r or g for r, g in zip(are_required_outputs, given)], out)


@golden("ttnn.moreh_getitem")
def moreh_getitem(input, index_tensors, index_dims, out):
    """input[:, i, j, ...] with an index tensor for each of index_dims."""
    at = [slice(None)] * input.dim()
    for index, dim in zip(index_tensors, index_dims, strict=True):
        at[dim] = index.flatten().long()
    return input[tuple(at)].reshape(out.shape)


@golden("ttnn.moreh_sgd", ignores="param_out momentum_buffer_out")
def moreh_sgd(
    param_in, grad, momentum_buffer_in, lr, momentum, dampening, weight_decay, nesterov, momentum_initialized
):
    """One step of stochastic gradient descent: the parameter, and with momentum its buffer."""
    step = grad.float() + weight_decay * param_in.float()
    if not momentum:
        return param_in.float() - lr * step
    buffer = step
    if momentum_initialized:
        buffer = momentum * momentum_buffer_in.float() + (1 - dampening) * step
    step = step + momentum * buffer if nesterov else buffer
    return param_in.float() - lr * step, buffer


_PRODUCTS = {
    "ttnn.moreh_bmm": lambda input, mat2, **how: moreh_matmul(input, mat2, **how),
    # [..., M, K] @ [N, K]^T + bias [1, N] or [1, 1]
    "ttnn.moreh_linear": lambda input, weight, **how: moreh_matmul(input, weight, transpose_other=True, **how),
}
golden_table(_PRODUCTS, passes=moreh_matmul)
golden("ttnn.moreh_bmm_backward", passes=moreh_matmul_backward)(
    lambda output_grad, input, mat2, **how: moreh_matmul_backward(output_grad, input, mat2, **how)
)
golden("ttnn.moreh_softmin_backward", passes=moreh_softmax_backward)(lambda **how: -moreh_softmax_backward(**how))
_ROWS = {
    "ttnn.moreh_abs_pow": lambda input, p: (
        power_in_steps(input, p) if input.dtype == torch.bfloat16 else input.float().abs() ** p
    ),
    "ttnn.moreh_arange": lambda start, step, out: start + step * torch.arange(out.shape[-1], dtype=torch.float64),
    "ttnn.moreh_cumsum": lambda input, dim: cumsum(input, dim),
    "ttnn.moreh_cumsum_backward": lambda output_grad, dim: cumsum(output_grad, dim, reverse_order=True),
    "ttnn.moreh_dot": lambda input_tensor_a, input_tensor_b: (input_tensor_a.float() * input_tensor_b.float()).sum(),
    # [N, C * kernel size, places] -> [N, C, H, W]: sums of overlapping patches
    "ttnn.moreh_fold": lambda input, output_size, kernel_size, dilation, padding, stride: F.fold(
        input.float(), *map(tuple, (output_size, kernel_size, dilation, padding, stride))
    ),
    "ttnn.moreh_full ttnn.moreh_full_like": lambda fill_value, out: constant(fill_value, out),
    "ttnn.moreh_sum_backward": lambda output_grad, dim, out: _spread(output_grad, dim, out.shape).expand(out.shape),
}
golden_table(_ROWS, ignores="end untilize_out shape input keepdim")
