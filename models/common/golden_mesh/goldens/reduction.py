"""Reductions, the largest values and where they are, and counting up."""

import torch
import ttnn

from models.common.golden_mesh.registry import golden


def _dims(x: torch.Tensor, dim) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(x.dim()))
    return (dim,) if isinstance(dim, int) else tuple(dim)


def _reduction(function) -> callable:
    def op(input_tensor, dim=None, keepdim=False, *, scalar=1.0, fast_and_approximate_mode=False, output_layout=None):
        x = input_tensor.float() if input_tensor.is_floating_point() else input_tensor
        result = function(x, _dims(x, dim), keepdim)
        return result if scalar == 1.0 else result * scalar

    return op


golden("ttnn.sum")(_reduction(torch.sum))
golden("ttnn.mean")(_reduction(torch.mean))
golden("ttnn.max")(_reduction(torch.amax))
golden("ttnn.min")(_reduction(torch.amin))


def _of_matrix(name: str) -> callable:
    function = ttnn.get_golden_function(getattr(ttnn, name))
    return lambda input_tensor: function(input_tensor.float())


def _spread(function, power: int) -> callable:
    def op(input_tensor, dim=None, keepdim=False, *, scalar=1.0, correction=True, compute_kernel_config=None):
        """Divided by the number of elements, less one if `correction`. A scalar counts as if it had scaled x."""
        spread = function(input_tensor.float(), _dims(input_tensor, dim), correction=int(correction), keepdim=keepdim)
        return spread * abs(scalar) ** power

    return op


golden("ttnn.std")(_spread(torch.std, 1))
golden("ttnn.var")(_spread(torch.var, 2))
for _name in ("std_hw", "var_hw"):  # of each matrix; divided by its size in whole tiles, as ttnn's own golden knows
    golden(f"ttnn.{_name}")(_of_matrix(_name))


@golden("ttnn.prod")
def prod(input_tensor, dim=None, keepdim=False, *, out):
    """Along dim, or of the whole tensor."""
    if dim is None:
        return input_tensor.double().prod().float().reshape(out.shape)
    return input_tensor.float().prod(dim, keepdim)


@golden("ttnn.argmax")
def argmax(input_tensor, dim=None, keepdim=False, *, enable_secondary_dm=None):
    """Where the largest value is; of equal ones, the first."""
    return torch.argmax(input_tensor, dim, keepdim)


@golden("ttnn.topk")
def topk(input_tensor, k=32, dim=-1, largest=True, sorted=True, *, indices_tensor=None, stable=False):
    """The k largest values and where they are, or the labels that indices_tensor has there.

    Equals: the first come first if `stable`, else in any order.
    """
    if stable:
        ordered = torch.sort(input_tensor, dim=dim, descending=largest, stable=True)
        values, indices = (x.narrow(dim, 0, k) for x in ordered)
    else:
        values, indices = torch.topk(input_tensor, k, dim, largest, True)
    return values, indices if indices_tensor is None else indices_tensor.gather(dim, indices)


@golden("ttnn.cumsum")
def cumsum(input, dim, *, dtype=None, reverse_order=False, disable_compensated_sum=None):
    x = input.float()
    return x.flip(dim).cumsum(dim).flip(dim) if reverse_order else x.cumsum(dim)


@golden("ttnn.cumprod")
def cumprod(input_tensor, dim, *, dtype=None, reverse_order=False):
    x = input_tensor.float()
    return x.flip(dim).cumprod(dim).flip(dim) if reverse_order else x.cumprod(dim)


@golden("ttnn.ema")
def ema(input_tensor, alpha):
    """alpha * before + (1 - alpha) * x along the last dimension, from its first element on."""
    x = input_tensor.float()
    means = [x[..., 0]]
    for column in x[..., 1:].unbind(-1):
        means.append(alpha * means[-1] + (1 - alpha) * column)
    return torch.stack(means, -1)


@golden("ttnn.experimental.fast_reduce_nc")
def fast_reduce_nc(input, *, dims):
    """Sums over some of the dimensions before the last two."""
    return input.float().sum(tuple(dims), keepdim=True)


@golden("ttnn.gather")
def gather(input, dim, index, *, sparse_grad=False):
    """input's elements at `index` along dim."""
    return input.gather(dim, index.long())


@golden("ttnn.plus_one", writes="input_tensor")
def plus_one(input_tensor, sub_core_grids=None, skip_negative_entries=False):
    """In place. Skipping also leaves the largest int32 alone, which would become negative."""
    if skip_negative_entries:
        input_tensor += (input_tensor >= 0) & (input_tensor < 2**31 - 1)
    else:
        input_tensor += 1
