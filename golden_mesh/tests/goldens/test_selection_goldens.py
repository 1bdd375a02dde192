"""Further reductions, elements selected by an index, and ops that move or fill."""

import itertools

import pytest
import torch
import ttnn

from goldens.support import assert_same, assert_values

ROW_MAJOR = ttnn.ROW_MAJOR_LAYOUT


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16().float()


def moving_average(x: torch.Tensor) -> torch.Tensor:
    want = x.double().clone()
    for t in range(1, x.shape[-1]):
        want[..., t] = 0.75 * want[..., t - 1] + 0.25 * x[..., t]
    return want


WHOLE, ROW = (1, 2, 32, 64), (1, 1, 1, 64)
# Shapes of the inputs, the call, torch's result, how the inputs are put.
CALLS = {
    "roll rows": ([WHOLE], lambda x: ttnn.roll(x, 3, 2), lambda x: torch.roll(x, 3, 2)),
    "roll back": ([WHOLE], lambda x: ttnn.roll(x, -5, 3), lambda x: torch.roll(x, -5, 3)),
    "roll two": (
        [WHOLE],
        lambda x: ttnn.roll(x, [3, 1], [2, 3]),
        lambda x: torch.roll(x, [3, 1], [2, 3]),
    ),
    "roll all": ([WHOLE], lambda x: ttnn.roll(x, 7), lambda x: torch.roll(x, 7)),
    "stack": (
        [(2, 32, 64)] * 2,
        lambda a, b: ttnn.stack([a, b], 1),
        lambda a, b: torch.stack([a, b], 1),
    ),
    "broadcast_to": (
        [ROW],
        lambda x: ttnn.experimental.broadcast_to(x, ttnn.Shape([1, 2, 32, 64])),
        lambda x: x.expand(WHOLE),
    ),
    "transpose_rm": ([WHOLE], lambda x: ttnn.experimental.transpose_rm(x), lambda x: x.mT, ROW_MAJOR),
    "ema": ([WHOLE], lambda x: ttnn.ema(x, 0.75), moving_average),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(chips, name):
    shapes, call, want, layout = (*CALLS[name], None)[:4]
    assert_values(*chips.run(call, want, *shapes, layout=layout))


@pytest.mark.parametrize("descending", (False, True))
@pytest.mark.parametrize("dim", (-1, 2))
def test_sort(chips, dim, descending):
    x = draw(1, 2, 64, 64)
    values, indices = ttnn.sort(chips.put(x), dim, descending)
    want = x.sort(dim, descending).values
    assert_same(values, want)
    assert_same([x.gather(dim, i.long()) for i in chips.get(indices)], want)


@pytest.mark.parametrize("keepdim", (False, True))
@pytest.mark.parametrize("dim", (-1, 2, 1, (2, 3), None), ids=str)
@pytest.mark.parametrize("correction", (True, False))
def test_std_and_var(chips, dim, keepdim, correction):
    x = draw(1, 3, 40, 50)
    dims = tuple(range(4)) if dim is None else dim
    count = x.numel() if dim is None else x.mean(dims).numel() and x.numel() // x.mean(dims).numel()
    centered = x.double() - x.double().mean(dims, keepdim=True)
    want = (centered**2).sum(dims, keepdim=keepdim) / (count - correction)
    for name, wanted in (("var", want), ("std", want.sqrt())):
        got = getattr(ttnn, name)(chips.put(x, ttnn.float32), dim, keepdim, correction=correction)
        assert_values(got, wanted, ttnn.float32)


def test_a_scalar_scales_the_input(chips):
    x = draw(1, 1, 32, 64)
    got = ttnn.std(chips.put(x, ttnn.float32), -1, scalar=-2.0)
    assert_values(got, (x.double() * -2).std(-1), ttnn.float32)
    got = ttnn.var(chips.put(x, ttnn.float32), -1, scalar=-2.0)
    assert_values(got, (x.double() * -2).var(-1), ttnn.float32)


@pytest.mark.parametrize("rows, columns", ((64, 32), (40, 50)))
def test_statistics_of_matrices_are_divided_by_whole_tiles(chips, rows, columns):
    x = draw(1, 2, rows, columns)
    tiles = 64 * (-(-columns // 32) * 32)
    want = ((x - x.mean((2, 3), keepdim=True)) ** 2).sum((2, 3), keepdim=True).double() / tiles
    assert_values(ttnn.var_hw(chips.put(x)), want)
    assert_values(ttnn.std_hw(chips.put(x)), want.sqrt())


@pytest.mark.parametrize("dim, keepdim", ((-1, False), (2, True), (1, False)))
def test_prod(chips, dim, keepdim):
    """Products of powers of two are exact. Others are rounded at every factor (test_families.py)."""
    x = 2.0 ** torch.randint(-1, 2, (1, 2, 40, 50)) * (2 * torch.randint(0, 2, (1, 2, 40, 50)) - 1)
    got = ttnn.prod(chips.put(x), dim, keepdim)
    assert_values(got, x.double().prod(dim, keepdim))


@pytest.mark.parametrize("reverse", (False, True))
def test_cumprod(chips, reverse):
    x = (1 + draw(1, 2, 32, 40) / 16).bfloat16().float()
    got = ttnn.cumprod(chips.put(x, ttnn.float32), 3, reverse_order=reverse)
    flip = (lambda t: t.flip(3)) if reverse else lambda t: t
    assert_values(got, flip(flip(x.double()).cumprod(3)), ttnn.float32)


@pytest.mark.parametrize("dims", ([0], [1], [0, 1]), ids=str)
def test_fast_reduce_nc(chips, dims):
    """Sums of small integers are exact. Others are rounded at every summand (test_families.py)."""
    x = torch.randint(-8, 9, (2, 4, 32, 64)).float()
    got = ttnn.experimental.fast_reduce_nc(chips.put(x), dims=dims)
    assert_values(got, x.double().sum(dims, keepdim=True))


def test_scatter_and_scatter_add(chips):
    x, src = draw(1, 2, 32, 64), draw(1, 2, 32, 20)
    index = torch.rand(1, 2, 32, 64).argsort(-1)[..., :20]
    place = chips.put(index.int(), ttnn.int32, ROW_MAJOR)
    put = lambda t: chips.put(t, layout=ROW_MAJOR)  # noqa: E731
    want, summed = x.clone(), x.clone()
    for c in range(2):
        for r in range(32):
            want[0, c, r, index[0, c, r]] = src[0, c, r]
            summed[0, c, r, index[0, c, r]] += src[0, c, r]
    assert_same(ttnn.scatter(put(x), -1, place, put(src)), want)
    assert_values(ttnn.scatter_add(put(x), -1, place, put(src)), summed)


def test_tosa_gather_and_scatter(chips):
    x, src, index = draw(2, 10, 64), draw(2, 4, 64), torch.tensor([[3, 0, 9, 1], [5, 6, 2, 8]])
    put = lambda t: chips.put(t, layout=ROW_MAJOR)  # noqa: E731
    got = ttnn.tosa_gather(put(x), chips.put(index.int(), ttnn.uint32, ROW_MAJOR))
    assert_same(got, torch.stack([x[n, index[n]] for n in range(2)]))
    got = ttnn.tosa_scatter(put(x), chips.put(index.int(), ttnn.int32, ROW_MAJOR), put(src))
    want = x.clone()
    for n in range(2):
        want[n, index[n]] = src[n]
    assert_same(got, want)


def test_indexed_fill(chips):
    a, b = draw(4, 1, 32, 64), draw(2, 1, 32, 64)
    ids = chips.put(torch.tensor([[[[3, 1]]]]).int(), ttnn.uint32, ROW_MAJOR)
    put = lambda t: chips.put(t, layout=ROW_MAJOR)  # noqa: E731
    want = torch.stack((a[0], b[1], a[2], b[0]))
    assert_same(ttnn.indexed_fill(ids, put(a), put(b)), want)


@pytest.mark.parametrize("invert", (False, True))
def test_isin(chips, invert):
    x, tested = torch.randint(0, 20, (1, 1, 32, 64)), torch.tensor([3, 7, 11]).expand(1, 1, 1, 3)
    put = lambda t: chips.put(t.int(), ttnn.int32, ROW_MAJOR)  # noqa: E731
    got = chips.get(ttnn.experimental.isin(put(x), put(tested.contiguous()), invert=invert))
    want = ((x == 3) | (x == 7) | (x == 11)) != invert
    assert_same([(g != 0).float() for g in got], want.float())


def test_copies_in_another_dtype_or_place(chips):
    x = draw(1, 1, 32, 64)
    given = chips.put(x)
    copy = ttnn.assign(given, memory_config=ttnn.L1_MEMORY_CONFIG, dtype=ttnn.float32)
    cast = ttnn.experimental.typecast(given, ttnn.float32)
    for tensor in (copy, cast, ttnn.fill_implicit_tile_padding(chips.put(x), 3.0)):
        assert_same(tensor, x)
    assert (copy.dtype, cast.dtype) == (ttnn.float32, ttnn.float32)


def test_fills_of_a_corner(chips):
    like = chips.put(draw(1, 1, 32, 64), layout=ROW_MAJOR)
    want = torch.full((1, 2, 32, 64), 0.5)
    want[..., :20, :30] = 2
    assert_same(ttnn.fill_rm(1, 2, 32, 64, 20, 30, like, 2.0, 0.5), want)
    assert_same(ttnn.fill_ones_rm(1, 2, 32, 64, 20, 30, like), (want == 2).float())


@pytest.mark.parametrize("layout", (ttnn.TILE_LAYOUT, ROW_MAJOR), ids=str)
def test_nonzero_counts_and_names_the_places(chips, layout):
    x = draw(2, 1, 5, 40).masked_fill(torch.rand(2, 1, 5, 40) < 0.7, -0.0)
    count, places = ttnn.nonzero(chips.put(x, layout=layout))
    want = torch.tensor([at for at in itertools.product(*map(range, x.shape)) if x[at] != 0])
    assert_same([c[..., 0] for c in chips.get(count)], torch.tensor([[[len(want)]]]))
    found = [p.flatten()[: want.numel()].view(-1, 4) for p in chips.get(places)]
    assert_same(found, want)
