"""Large tensors a part at a time: a part, and what is computed from it, stays in the processor's cache."""

import math
from functools import partial
from typing import Callable

import torch

PART, WHOLE = 1 << 17, 1 << 19  # elements of a part, and of a tensor that is not divided


def constant(number: float | int) -> torch.Tensor:
    """Return the number as float32 or int32. torch takes longer to make a tensor of a number than for a small op."""
    return torch.tensor(number, dtype=torch.int32 if isinstance(number, int) else torch.float32)


def common_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that all broadcast to. torch.broadcast_shapes takes longer than a small product."""
    rank = max(map(len, shapes))
    return tuple(map(max, zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes))))


def in_parts(function: Callable[..., torch.Tensor], *operands: torch.Tensor, rows: bool = False) -> torch.Tensor:
    """Return function(*operands): elementwise over their broadcast shape, or of each row alone."""
    sizes = [x.numel() for x in operands]
    if math.prod(sizes) <= WHOLE or max(sizes) <= WHOLE and len({x.shape for x in operands}) == 1:
        return function(*operands)
    shape = common_shape(*(x.shape for x in operands))
    size, outer = math.prod(shape), shape[:-1] if rows else shape
    dim = next((dim for dim, extent in enumerate(outer) if extent > 1), None)
    if size <= WHOLE or dim is None:
        return function(*operands)
    count = PART * shape[dim] // size
    if count < 2 and math.prod(outer[dim + 1 :]) > 1:
        count, function = 1, partial(in_parts, function, rows=rows)
    elif count < 2:
        count = 2  # torch sums a row alone in another order
    from_end = dim - len(shape)
    split = [x.split(count, from_end) if x.dim() >= -from_end and x.shape[from_end] > 1 else None for x in operands]
    parts = zip(*(of_x or [x] * -(-shape[dim] // count) for x, of_x in zip(operands, split)))
    result = None
    for index, part in enumerate(parts):
        found = function(*part)
        if result is None:
            result = found.new_empty(*found.shape[:dim], shape[dim], *found.shape[dim + 1 :])
        result.narrow(dim, index * count, found.shape[dim]).copy_(found)
        del found  # its memory, still in the cache, is the next part's
    return result
