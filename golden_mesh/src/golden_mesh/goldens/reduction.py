"""Reductions, the largest values and their places, running sums, and sampling of tokens."""

import math
from functools import lru_cache, partial, reduce
from typing import Callable

import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic import engine, packer, special
from golden_mesh.arithmetic.kernel import PHASES, Kernel, finest
from golden_mesh.arithmetic.product import FACE, TILE, multiply, sums_of_columns, sums_of_rows
from golden_mesh.goldens.activations import wide
from golden_mesh.hazards import meet
from golden_mesh.registry import golden, golden_table
from golden_mesh.rounding import BLOCK


def axes(dim, rank: int) -> list[int]:
    """The dims of a reduction, as numbers from 0. None and an empty list are all dims."""
    dims = [dim] if isinstance(dim, int) else list(dim or range(rank))
    return [d % rank for d in dims]


def _as_unpacked(x: torch.Tensor, config) -> torch.Tensor:
    """x as the kernel unpacks it: a bfloat16 dest takes bfloat16, cut."""
    narrow = x.dtype == torch.float32 and not Kernel.of(config, "HiFi4", wide=True).wide
    return engine.keep(x, engine.BFLOAT16).bfloat16() if narrow else x


@lru_cache(64)
def _factor(number: float, dtype: torch.dtype) -> float:
    """A factor of a reduction as the kernel has it: it cuts it to bfloat16 beside bfloat16."""
    return engine.cut_number(number) if dtype == torch.bfloat16 else torch.tensor(float(number)).item()


def _extreme(function, opposite) -> Callable:
    """A negative scalar turns max into min and min into max: the library scales before it compares."""

    def op(input_tensor, dim, keepdim, scalar, compute_kernel_config):
        x = _as_unpacked(input_tensor, compute_kernel_config)
        found = (function if scalar >= 0 else opposite)(x, axes(dim, x.dim()), keepdim)
        return found if scalar == 1 else wide(found) * _factor(scalar, x.dtype)

    return op


def _sum(x: torch.Tensor, dims: list[int], keepdim: bool, scalar: float, config, dtype, mean: bool):
    """The sum of x * scalar, of integers or floats, or their mean: that of x * scalar / width.

    The factor is cut, so a mean is up to 0.8 % too small.
    """
    x = _as_unpacked(x, config)
    if mean:
        scalar /= torch.Size([x.shape[dim] for dim in dims]).numel()
    factor = _factor(scalar, x.dtype)
    if not x.is_floating_point():
        total = x.long().sum(dims, keepdim)
        if factor != 1:  # the kernel's integer goes through a float32
            integer = ttnn.int32 if x.dtype == torch.int32 else ttnn.uint32
            total = packer.typecast(packer.pack(total, integer).float() * factor, integer)
        return total
    if x.dtype != torch.bfloat16:
        total = wide(x).sum(dims, keepdim)
        return total if factor == 1 else total * factor
    reduced = sorted((dim - x.dim() for dim in dims), reverse=True)
    x = _sum_in_steps(x, reduced, scalar, config, dtype, mean)
    return x if keepdim else x.squeeze(reduced)


def _sum_in_steps(x: torch.Tensor, dims: list[int], scalar: float, config, dtype, mean: bool) -> torch.Tensor:
    """The library adds rows, columns, then outer dims, and scales at the first. A sum without a factor begins with the
    outer dims. Rows and columns alone are one step. Between steps lies float32, or the tensor's dtype: of block floats,
    and where all dims of more than a matrix go.
    """
    kernel = Kernel.of(config, "HiFi4" if special.on_blackhole() else "HiFi3", wide=True)
    outer, is_block = [dim for dim in dims if dim < -2], dtype in packer.BLOCK_FLOATS
    between = dtype if is_block or outer and len(dims) == x.dim() else ttnn.float32
    if outer and scalar == 1 and not mean and dtype != ttnn.float32:
        for dim in outer:
            x = packer.pack(sum_of_outer(x, dim, kernel), between)
        dims = [dim for dim in dims if dim >= -2]
    if dims == [-1, -2] and x.dtype == torch.bfloat16:
        return _sum_of_matrix(x, scalar, kernel, dtype if is_block or mean or not kernel.wide else ttnn.float32)
    for dim in dims:
        x = packer.pack(_sum_over(x, dim, scalar, kernel), between if dim != dims[-1] else ttnn.float32)
        scalar = 1.0
    return x


def _sum_of_matrix(x: torch.Tensor, scalar: float, kernel: Kernel, between: ttnn.DataType) -> torch.Tensor:
    """Rows, then columns, scaled at the second. One tile is summed at once, and scaled at the end."""
    if x.shape[:-2].numel() == 1 and max(x.shape[-2:]) <= TILE and kernel.wide:
        return _sum_of_tile(x) * scalar
    rows = packer.pack(sums_of_rows(x, kernel), between)
    return sums_of_columns(rows, kernel, _factor(scalar, rows.dtype))


def _sum_of_tile(x: torch.Tensor) -> torch.Tensor:
    """The sum of one tile, [..., 1, 1]: of 16 lanes, each the sum of two columns, cut to bfloat16."""
    lanes = F.pad(x.float(), (0, -x.shape[-1] % FACE)).unflatten(-1, (-1, FACE)).sum((-2, -3))
    return engine.keep(lanes, engine.BFLOAT16).sum(-1)[..., None, None]


def _added(x: torch.Tensor, dim: int) -> torch.Tensor:
    total = x.float().sum(dim, True)
    return total if math.isfinite(total.sum()) else special.running_sum(x, dim)


def _sum_over(x: torch.Tensor, dim: int, scalar: float, kernel: Kernel) -> torch.Tensor:
    """A float32 dest adds float32 without the engine. The library makes columns of an outer dimension."""
    if kernel.wide and x.dtype == torch.float32:
        return _added(x, dim) * scalar
    factor = _factor(scalar, torch.bfloat16)
    if dim == -1:
        return sums_of_rows(x, kernel, factor)
    return sums_of_columns(x.movedim(dim, -2), kernel, factor).movedim(-2, dim)


def _reduction(mean: bool) -> Callable:
    def op(input_tensor, dim, keepdim, scalar, compute_kernel_config, dtypes):
        dims, dtype = axes(dim, input_tensor.dim()), dtypes["input_tensor"]
        return _sum(input_tensor, dims, keepdim, scalar, compute_kernel_config, dtype, mean)

    return op


def _smallest(x: torch.Tensor, dims: list[int], keepdim: bool) -> torch.Tensor:
    """The largest of -x: a NaN is then the smallest."""
    return -special.largest(-x, dims, keepdim) if x.is_floating_point() else torch.amin(x, dims, keepdim)


def _spread(function, power: int) -> Callable:
    def op(input_tensor, dim, keepdim, scalar, correction):
        """Divide by the number of elements, less one if `correction`. The scalar scales x."""
        dims = axes(dim, input_tensor.dim())
        spread = torch.var(input_tensor.float(), dims, correction=int(correction), keepdim=keepdim)
        return function(spread) * abs(scalar) ** power

    return op


_ROWS = {
    "ttnn.max": _extreme(special.largest, _smallest),
    "ttnn.mean": _reduction(mean=True),
    "ttnn.min": _extreme(_smallest, special.largest),
    "ttnn.std": _spread(torch.sqrt, 1),
    "ttnn.sum": _reduction(mean=False),
    "ttnn.var": _spread(torch.clone, 2),
}
golden_table(_ROWS)


def _centered(x: torch.Tensor, dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x less the mean of each matrix, and its variance: divided by the size in whole tiles.

    The subtraction has a bfloat16 dest. Each step is a tensor.
    """
    size = math.prod(-(-extent // TILE) * TILE for extent in x.shape[-2:])
    rows_and_columns = axes((-2, -1), x.dim())
    mean = packer.pack(_sum(x, rows_and_columns, True, 1.0, None, dtype, mean=True), dtype)
    centered = engine.subtract(*(engine.keep(each.float(), engine.BFLOAT16) for each in (x, mean)))
    squares = packer.pack(centered * centered, dtype)
    return centered, packer.pack(_sum(squares, rows_and_columns, True, 1 / size, None, dtype, mean=False), dtype)


golden("ttnn.var_hw")(lambda input_tensor, dtypes: _centered(input_tensor, dtypes["input_tensor"])[1])
golden("ttnn.std_hw")(lambda input_tensor, dtypes: _centered(input_tensor, dtypes["input_tensor"])[1].sqrt())


@golden("ttnn.normalize_hw")
def normalize_hw(input_tensor, dtypes):
    centered, variance = _centered(input_tensor, dtypes["input_tensor"])
    inverse = torch.rsqrt(variance.float())
    return (centered * inverse.bfloat16()).bfloat16() if input_tensor.dtype == torch.bfloat16 else centered * inverse


@golden("ttnn.normalize_global")
def normalize_global(input_tensor, dtypes, out):
    """All rows are one matrix. The result has the shape of whole tiles, and their padding counts as zeros."""
    missing = [0, out.shape[-1] - input_tensor.shape[-1], 0, out.shape[-2] - input_tensor.shape[-2]]
    rows = F.pad(input_tensor, missing).reshape(1, 1, -1, out.shape[-1])
    return normalize_hw(rows, dtypes).reshape(out.shape)


@golden("ttnn.prod")
def prod(input_tensor, dim, keepdim, dtypes, out):
    """Along dim, tile by tile in dest. Of the whole tensor the host multiplies the elements of one tile of products.

    The padding of block floats is filled with ones, and a product over rows or columns is one over transposed tiles.
    """
    x, dtype = input_tensor, dtypes["input_tensor"]
    dim = None if x.dim() == 1 else dim
    if "INT" in dtype.name or (dim is None and dtype in packer.BLOCK_FLOATS):
        return (x.double().prod() if dim is None else x.double().prod(dim, keepdim)).reshape(out.shape)
    if dim is None:
        x = x.reshape(-1, *(1, 1, *x.shape)[-2:])
        x = F.pad(x, (0, -x.shape[-1] % TILE, 0, -x.shape[-2] % TILE), value=1)
        tiles = x.unflatten(2, (-1, TILE)).unflatten(1, (-1, TILE)).transpose(2, 3).reshape(-1, TILE, TILE)
        return reduce(torch.mul, _product_in_dest(tiles, dtype).to(x.dtype).flatten().unbind()).reshape(out.shape)
    if dtype not in packer.BLOCK_FLOATS:
        return _product_in_dest(x.movedim(dim, 0), dtype).reshape(out.shape)
    dim = dim % x.dim() - x.dim()
    padded = partial(packer.pack_padded, dtype=dtype, padding=1)
    x = padded(x).reshape((1,) * (4 - x.dim()) + x.shape).movedim(dim, 0)
    result = padded(_product_in_dest(padded(x), dtype))
    return (padded(result[..., None]) if dim == -1 else result).reshape(out.shape)


def _product_in_dest(factors: torch.Tensor, dtype) -> torch.Tensor:
    """The product over the first dim. SrcA takes dest back: of block floats, which have a float32 dest, eight bits."""
    fidelity = finest() if dtype == ttnn.float32 else "HiFi4"
    kernel = Kernel(PHASES[fidelity], wide=dtype != ttnn.bfloat16)
    bits = engine.FLOAT32 if dtype == ttnn.float32 else engine.BFLOAT16
    result = torch.ones(())
    for factor in factors.unbind():
        result = multiply(engine.keep(result, bits), factor, kernel)
    return result


# the place of the largest value: the first of equal values
golden("ttnn.argmax")(lambda input_tensor, dim, keepdim: torch.argmax(input_tensor, dim, keepdim))


@golden("ttnn.topk", ignores="sorted")
def topk(input_tensor, k, dim, largest, indices_tensor, stable, dtypes):
    """The k largest values and their places, or the labels of indices_tensor there.

    If `stable`, equal values keep their order.
    """
    dtype = dtypes["input_tensor"]
    if dtype in packer.BLOCK_FLOATS and input_tensor.shape[-1] % BLOCK:
        meet("infinity in a block float's padding", "ttnn.topk", f"{dtype.name} {list(input_tensor.shape)}")
    if not stable:
        values, indices = torch.topk(input_tensor, k, dim, largest, True)
    else:
        ordered = torch.sort(input_tensor, dim=dim, descending=largest, stable=True)
        values, indices = (x.narrow(dim, 0, k) for x in ordered)
    return values, indices if indices_tensor is None else indices_tensor.gather(dim, indices)


@golden("ttnn.experimental.topk_router_gpt")
def topk_router_gpt(input_tensor, weight_tensor, bias_tensor, k, num_experts):
    """The places of the k largest logits [B, k], and their softmax. The logits are rounded to bfloat16 before."""
    logits = input_tensor.float() @ weight_tensor.float() + bias_tensor.float()
    values, experts = logits[:, :num_experts].bfloat16().float().topk(k)
    return experts.int(), values.softmax(-1)


def _accumulated(accumulate: Callable, x: torch.Tensor, dim: int, dtype, reverse: bool) -> torch.Tensor:
    """Of x as `dtype` holds it. The kernels add and multiply integers: torch's int64 wraps round, too."""
    x = wide(x) if dtype is None else packer.typecast(x, dtype)
    x = x.float() if x.is_floating_point() else x.long()
    return accumulate(x.flip(dim), dim).flip(dim) if reverse else accumulate(x, dim)


@golden("ttnn.cumsum")
def cumsum(input, dim, dtype=None, reverse_order=False):
    return _accumulated(torch.cumsum, input, dim, dtype, reverse_order)


golden("ttnn.cumprod")(
    lambda input_tensor, dim, dtype, reverse_order: _accumulated(torch.cumprod, input_tensor, dim, dtype, reverse_order)
)


@golden("ttnn.ema")
def ema(input_tensor, alpha):
    """y[i] = alpha * y[i - 1] + (1 - alpha) * x[i] along the last dimension, from 0 on. ttnn's page has y[0] = x[0]."""
    mean, means = 0, []
    for column in input_tensor.float().unbind(-1):
        mean = alpha * mean + (1 - alpha) * column
        means.append(mean)
    return torch.stack(means, -1)


# the sum over each pixel and all before it in both directions, [1, W, H, C]
golden("ttnn.experimental.intimg")(lambda input_tensor: input_tensor.float().cumsum(1).cumsum(2))


@golden("ttnn.moe")
def moe(input_tensor, expert_mask_tensor, topk_mask_tensor, k):
    """Expert 0's weight [N, C, H, 1]: of the softmax of the k largest masked scores, 0 where it is not among them."""
    values, experts = (input_tensor.float() + expert_mask_tensor.float()).topk(k)
    weights = (values + topk_mask_tensor.float()).softmax(-1)
    return (weights * (experts == 0)).sum(-1, keepdim=True)


@golden("ttnn.experimental.fast_reduce_nc_split")
def fast_reduce_nc_split(input, dim, split_output_width, compute_kernel_config):
    """fast_reduce_nc over one dimension, cut at a column."""
    total = sum_of_outer(input, dim, Kernel.of(compute_kernel_config, "HiFi4"))
    return total[..., :split_output_width], total[..., split_output_width:]


@golden("ttnn.experimental.fast_reduce_nc")
def fast_reduce_nc(input, dims, compute_kernel_config, dtypes, out):
    """Sums over dimensions before the last two, those behind first. The result has whole tiles."""
    for dim in sorted((dim % input.dim() for dim in dims), reverse=True):
        total = sum_of_outer(input, dim, Kernel.of(compute_kernel_config, "HiFi4"))
        input = packer.pack(total, dtypes["input"])
    return F.pad(input, [0, out.shape[-1] - input.shape[-1], 0, out.shape[-2] - input.shape[-2]])


def sum_of_outer(x: torch.Tensor, dim: int, kernel: Kernel) -> torch.Tensor:
    """A bfloat16 dest rounds every sum of two."""
    if kernel.wide:
        return _added(engine.keep(x.float(), engine.SRC_B), dim)
    first, *more = (x if x.dtype == torch.bfloat16 else engine.keep(x, engine.BFLOAT16)).unbind(dim)
    zeros, total = torch.zeros_like(first), first.float()
    for term in more:
        total = engine.add_to_bfloat16_dest(total, term, zeros)
    return total.unsqueeze(dim)


@golden("ttnn.plus_one", writes="input_tensor")
def plus_one(input_tensor, skip_negative_entries):
    """Add one in place. With skip_negative_entries the largest int32 stays, too: its successor is negative."""
    if skip_negative_entries:
        input_tensor += (input_tensor >= 0) & (input_tensor < 2**31 - 1)
    else:
        input_tensor += 1


USERS = 32  # of one sampling op, at most
KEEP = 2**32 - 1  # the seed that keeps the generators as they are


def _seed(generator: torch.Generator, seed: int, user: int) -> None:
    if seed != KEEP:
        # Users with one seed get different numbers. torch reads 32 bits of a seed.
        generator.manual_seed((seed + user * 0x9E3779B9) % 2**32)


_generators = [torch.Generator() for _ in range(USERS)]
for _user, _generator in enumerate(_generators):
    _seed(_generator, 0, _user)


@golden("ttnn.sampling")
def sampling(input_values_tensor, input_indices_tensor, k, p, temp, seed, out):
    """values and their token ids [1, 1, B, W]; k, p and 1/temperature [B] -> a token id for each user.

    The candidates are the fewest of the k largest with probabilities of more than p together.
    """
    k, p, inverse_temperature = (each.reshape(-1).tolist() for each in (k, p, temp))
    tokens = []
    for user, (row, ids) in enumerate(zip(input_values_tensor[0, 0].float(), input_indices_tensor[0, 0])):
        generator = _generators[user]
        if seed is not None:
            _seed(generator, seed, user)
        largest, where = torch.sort(row, descending=True, stable=True)  # of equals the lower index
        largest, where = largest[: k[user]], where[: k[user]]
        probabilities = torch.softmax(largest * inverse_temperature[user], 0)
        before = probabilities.cumsum(0) - probabilities
        probabilities[before > p[user]] = 0
        tokens.append(ids[where[torch.multinomial(probabilities, 1, generator=generator)]])
    return torch.cat(tokens).reshape(out.shape)


@golden("ttnn.manual_seed")
def manual_seed(seeds, user_ids=None, *, out):
    """Seed the random numbers of all users, or of `user_ids`. The tensor that the op returns has no meaning."""
    if user_ids is None:
        users = range(USERS)
    else:
        users = [user_ids] if isinstance(user_ids, int) else user_ids.reshape(-1).tolist()
    seeds = [seeds] * len(users) if isinstance(seeds, int) else seeds.reshape(-1).tolist()
    for user, seed in zip(users, seeds, strict=True):
        _seed(_generators[user], seed, user)
    return torch.zeros(out.shape)
