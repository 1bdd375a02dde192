"""Reductions, softmax, the largest values and where they are, and counting up."""

import torch

from models.common.golden_mesh.arithmetic import engine, flash
from models.common.golden_mesh.arithmetic.kernel import Kernel
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


@golden("ttnn.softmax")
def softmax(input_tensor, dim=-1, *, numeric_stable=True, compute_kernel_config=None):
    """A float32 tensor, too, is unpacked to eleven bits: a value of 30 is off by up to 1/64, and its exp by 1.6 %.

    ttnn's default takes the approximate exp, but for a float32 tensor.
    """
    approximate = input_tensor.dtype == torch.bfloat16
    kernel = Kernel.of(compute_kernel_config, "HiFi3", wide=True, approximate=approximate)
    scores = engine.keep(input_tensor.float(), engine.SRC_B)
    weights = flash.weights(scores, scores.amax(dim, keepdim=True), 1.0, kernel, kernel.approximate)
    if kernel.approximate or not kernel.wide:
        weights = engine.to_bfloat16(weights)
    total = engine.source_b(weights, kernel).sum(dim, keepdim=True)
    return engine.multiply(weights, 1 / total, kernel)


@golden("ttnn.softmax_in_place", writes="input_tensor")
def softmax_in_place(
    input_tensor, dim=-1, *, program_config=None, numeric_stable=True, compute_kernel_config=None, store
):
    input_tensor.copy_(store(softmax(input_tensor, dim, compute_kernel_config=compute_kernel_config)))


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
