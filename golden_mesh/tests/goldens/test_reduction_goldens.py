"""Reductions, running sums, statistics, the largest values, and counting up."""

import numpy as np
import pytest
import torch
import ttnn

from golden_mesh.arithmetic.engine import keep
from golden_mesh.hazards import HazardError
from goldens.support import ROW_MAJOR, assert_same, bf16, examples, ints

X, WIDE, SMALL, STATISTICS = (1, 2, 33, 45), (1, 1, 32, 64), (1, 2, 40, 50), (1, 3, 40, 50)
EACH = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("dim", (-1, 2, (2, 3), None), ids=str)
@pytest.mark.parametrize("keepdim", (True, False))
def test_reductions(chips, name, dim, keepdim):
    def want(x):
        result = EACH[name](x, tuple(range(4)) if dim is None else dim, keepdim)
        if name == "mean":  # the chip's factor is cut to bfloat16
            count = x.numel() // result.numel()
            result = result * count * keep(torch.tensor(1 / count), 8).double()
        return result

    # Around 1: columns of sums are cut to eleven bits, and a sum near 0 would keep what the terms lose.
    x = [each + 1 for each in chips.draw(*X)]
    chips.check(lambda x: getattr(ttnn, name)(x, dim=dim, keepdim=keepdim), want, x, steps=2)


# A negative scalar turns max into min.
UP = torch.arange(1.0, 5).expand(1, 1, 32, 4)
EXAMPLES = {
    "ttnn.max(x, dim=-1, scalar=-3.0)": ("x.amin(-1) * -3", UP, {"error": 0}),
    "ttnn.min(x, dim=-1, scalar=-3.0)": ("x.amax(-1) * -3", UP, {"error": 0}),
    "ttnn.var_hw(x)": ("variance_in_tiles(x)", SMALL),
    "ttnn.std_hw(x)": ("variance_in_tiles(x).sqrt()", SMALL),
    "ttnn.normalize_hw(x)":
        ("(x - x.mean((2, 3), keepdim=True)) / variance_in_tiles(x).sqrt()", SMALL, {"error": 1e-2}),
    "ttnn.normalize_global(x)": ("(x - x.mean()) / x.std(correction=0)", (1, 2, 32, 64), {"error": 1e-2}),
    "ttnn.ema(x, 0.75)": ("moving_average(x)", SMALL),
    "E.fast_reduce_nc_split(x, dim=1, split_output_width=96, compute_kernel_config=EXACT)":
        ("x.sum(1, keepdim=True).split([96, 32], -1)", (1, 8, 32, 128)),
}  # fmt: skip
for how in ("-1, False", "2, True", "1, False"):  # exact products of powers of two
    EXAMPLES[f"ttnn.prod(x, {how})"] = f"x.prod({how})", lambda: powers_of_two(), {"error": 0}


def powers_of_two():
    return 2.0 ** torch.randint(-1, 2, SMALL) * (2 * torch.randint(0, 2, SMALL) - 1)


def moving_average(x: torch.Tensor) -> torch.Tensor:
    """It begins at zero: ema_clear_previous_output of ttnn's kernel. ttnn's page says y[0] = x[0]."""
    want = 0.25 * x
    for t in range(1, x.shape[-1]):
        want[..., t] += 0.75 * want[..., t - 1]
    return want


def variance_in_tiles(x):
    """Divided by the sizes of matrices in whole tiles."""
    rows, columns = (-(-n // 32) * 32 for n in x.shape[-2:])
    centered = x - x.mean((2, 3), keepdim=True)
    return (centered**2).sum((2, 3), keepdim=True) / (rows * columns)


test_examples = examples(EXAMPLES, globals())


@pytest.mark.parametrize("name", ("std", "var"))
@pytest.mark.parametrize("keepdim", (False, True))
@pytest.mark.parametrize("dim", (-1, 2, 1, (2, 3), None), ids=str)
@pytest.mark.parametrize("correction, scalar", ((True, 1.0), (False, 1.0), (True, -2.0)))
def test_std_and_var(chips, name, dim, keepdim, correction, scalar):
    """The scalar scales the input."""
    dims = tuple(range(4)) if dim is None else dim
    how = dict(correction=correction, scalar=scalar)
    chips.check(
        lambda x: getattr(ttnn, name)(x, dim, keepdim, **how),
        lambda x: getattr(torch, name)(x * scalar, dims, correction=correction, keepdim=keepdim),
        STATISTICS, dtype=ttnn.float32, special=True,
    )  # fmt: skip


def whole():
    return bf16(*WIDE).mul(4).round()


def near_one():
    return (1 + bf16(*SMALL) / 16).bfloat16().float()


def flipped(x, function, dim):
    return function(x.flip(dim), dim).flip(dim)


def cumsum(x, dim):
    return torch.from_numpy(np.cumsum(x.numpy(), dim))


RUNNING = {}
for dim in (-1, 2):  # of whole numbers: exact
    exact, call = {"error": 0}, f"ttnn.cumsum(x, {dim}, reverse_order="
    RUNNING[f"{call}False)"] = f"cumsum(x, {dim})", whole, exact
    RUNNING[f"{call}True)"] = f"flipped(x, cumsum, {dim})", whole, exact
RUNNING["ttnn.cumprod(x, 3, reverse_order=False)"] = "x.cumprod(3)", near_one
RUNNING["ttnn.cumprod(x, 3, reverse_order=True)"] = "flipped(x, torch.cumprod, 3)", near_one
RUNNING["ttnn.cumsum(y, 2, out=x)"] = "y.cumsum(2)", torch.zeros(WIDE), WIDE, {"in_place": True}
test_running = examples(RUNNING, globals(), dtype=ttnn.float32, special=True)


@pytest.mark.parametrize("layout", (ttnn.TILE_LAYOUT, ROW_MAJOR), ids=str)
@pytest.mark.parametrize("keepdim", (True, False))
def test_argmax_is_the_first_of_the_largest(chips, layout, keepdim):
    x = chips.draw(1, 1, 33, 200)
    for v in x:
        v[0, 0, 7, [30, 150]] = 100
    got = ttnn.argmax(chips.put(x, layout=layout), dim=-1, keepdim=keepdim)
    assert_same(got, [v.argmax(-1, keepdim) for v in x])
    assert chips.get(got)[0].flatten()[7] == 30


def shuffled(chips, width: int = 256) -> list[torch.Tensor]:
    """Rows of different whole numbers."""
    return [torch.stack([torch.randperm(width) for _ in range(32)])[None, None].bfloat16() for _ in range(chips.count)]


@pytest.mark.parametrize("k", (32, 64))
@pytest.mark.parametrize("largest", (True, False))
def test_topk(chips, largest, k):
    x = shuffled(chips)
    values, indices = ttnn.topk(chips.put(x), k=k, dim=-1, largest=largest)
    order = [v.argsort(-1, descending=largest)[..., :k] for v in x]
    assert_same(values, [v.gather(-1, o) for v, o in zip(x, order)])
    assert_same(indices, order)


def test_topk_of_a_partial_block_is_refused(chips):
    """A chip's padding of infinities takes the block's exponent."""
    x = torch.randn(1, 1, 32, 48)
    ttnn.topk(chips.put(x, ttnn.bfloat8_b), k=4)
    with pytest.raises(HazardError, match="partial block"):
        ttnn.topk(chips.put(x[..., :40], ttnn.bfloat8_b), k=4)


def test_topk_may_give_labels_instead_of_places(chips):
    x = shuffled(chips)
    labels = torch.stack([torch.randperm(1024)[:256] for _ in range(32)])[None, None]
    _, got = ttnn.topk(chips.put(x), k=32, dim=-1, indices_tensor=chips.put(labels, ttnn.uint16))
    assert_same(got, [labels.gather(-1, v.argsort(-1, descending=True)[..., :32]) for v in x])


@pytest.mark.parametrize("largest", (True, False))
@pytest.mark.parametrize("width", (64, 8192))
def test_stable_topk_gives_the_first_of_equal_values_first(chips, width, largest):
    """More than k values are equal: the choice of the k matters."""
    x = [v.round().clamp(-2, 2) for v in chips.draw(1, 1, 32, width)]
    values, indices = ttnn.topk(chips.put(x), k=32, dim=-1, largest=largest, stable=True)
    first = lambda row: sorted(range(width), key=lambda i: (-row[i] if largest else row[i], i))[:32]
    expected = [torch.tensor([first(row) for row in v[0, 0].tolist()])[None, None] for v in x]
    assert_same(indices, expected)
    assert_same(values, [v.gather(-1, e) for v, e in zip(x, expected)])


LAST = 2**31 - 1
COUNTS = {
    "ttnn.plus_one(x)": ("x + 1", ints([0, 5, -1, 127])),
    "ttnn.plus_one(x, skip_negative_entries=True)": ("torch.tensor([1, 6, -1, LAST])", ints([0, 5, -1, LAST])),
}
test_plus_one_counts_up = examples(COUNTS, globals(), error=0, in_place=True)
