"""Reductions, softmax, the largest values, and counting up."""

import numpy as np
import pytest
import torch
import ttnn

from golden_mesh.arithmetic.engine import keep
from goldens.support import EXACT, assert_close, assert_near, assert_same


@pytest.mark.parametrize(("name", "want"), (("max", -3.0), ("min", -12.0)))
def test_a_negative_scalar_turns_max_into_min(chips, name, want):
    x = torch.arange(1.0, 5).expand(1, 1, 32, 4)
    got = getattr(ttnn, name)(chips.put(x), dim=-1, scalar=-3.0)
    assert all((value == want).all() for value in chips.get(got))


def test_softmax_over_another_dim_than_the_last_always_subtracts_the_maximum(chips):
    x = chips.draw(1, 1, 32, 64)
    x = [v + 200 for v in x]
    got = ttnn.softmax(chips.put(x), dim=-2, numeric_stable=False)
    assert_near(got, [torch.softmax(v.bfloat16().float(), -2) for v in x], 5e-3)


@pytest.mark.parametrize("name", ("sum", "mean", "max", "min"))
@pytest.mark.parametrize("dim", (-1, 2, (2, 3), None), ids=str)
@pytest.mark.parametrize("keepdim", (True, False))
def test_reductions(chips, name, dim, keepdim):
    x = chips.draw(1, 2, 33, 45)
    reference = {"max": torch.amax, "min": torch.amin}.get(name) or getattr(torch, name)
    dims = tuple(range(4)) if dim is None else dim
    got = getattr(ttnn, name)(chips.put(x), dim=dim, keepdim=keepdim)
    want = [reference(v.double(), dims, keepdim) for v in x]
    if name == "mean":  # the chip's factor is cut to bfloat16
        count = x[0].numel() // want[0].numel()
        want = [w * count * keep(torch.tensor(1 / count), 8).double() for w in want]
    assert_close(got, want, steps=2)


@pytest.mark.parametrize("name", ("sum", "mean", "max", "min"))
def test_a_reductions_result_may_be_scaled(chips, name):
    x = chips.draw(1, 2, 33, 45)
    plain = getattr(ttnn, name)(chips.put(x), dim=-1)
    scaled = getattr(ttnn, name)(chips.put(x), dim=-1, scalar=0.5)
    assert_same(scaled, [v * 0.5 for v in chips.get(plain)])


@pytest.mark.parametrize("dim, keepdim", ((1, True), ([2, 3], False)), ids=str)
def test_moreh_norm(chips, dim, keepdim):
    x = chips.draw(2, 3, 33, 45)
    got = ttnn.operations.moreh.norm(chips.put(x), p=3.0, dim=dim, keepdim=keepdim)
    norms = [torch.linalg.vector_norm(v.double(), 3, dim) for v in x]
    assert_close(got, [norm.reshape(tuple(got.shape)) for norm in norms])


@pytest.mark.parametrize("dim", (-1, 2))
def test_softmax(chips, dim):
    x = chips.draw(1, 2, 33, 45, scale=3)
    got = ttnn.softmax(chips.put(x), dim=dim, compute_kernel_config=EXACT)
    assert_close(got, [softmax_of(v, dim) for v in x], steps=2)


def softmax_of(x: torch.Tensor, dim: int) -> torch.Tensor:
    return (x.double().exp() / x.double().exp().sum(dim, keepdim=True)).float()


def test_softmax_in_place(chips):
    x = chips.draw(1, 2, 64, 64)
    placed = chips.put(x)
    ttnn.softmax_in_place(placed, compute_kernel_config=EXACT)
    assert_close(placed, [softmax_of(v, -1) for v in x], steps=2)


def test_softmax_of_bfloat16_takes_the_approximate_exp_unless_told_otherwise(chips):
    """The approximate exp has errors of up to 6 %. A float32 tensor takes the exact exp."""
    x = chips.draw(1, 1, 32, 64, scale=3)
    want = [softmax_of(v, -1) for v in x]
    error = [
        ((g - w).abs() / w).max()
        for g, w in zip(chips.get(ttnn.softmax(chips.put(x), dim=-1)), want)
    ]
    assert all(0.03 < e < 0.07 for e in error)
    got = ttnn.softmax(chips.put(x, ttnn.float32), dim=-1)
    assert_close(got, want, steps=2)


def test_softmax_of_float32_sees_eleven_bits(chips):
    """64 and 64 + 1/64 give equal results."""
    x = torch.full((1, 1, 32, 32), 64.0)
    x[..., ::2] += 1 / 64
    got = ttnn.softmax(chips.put(x, ttnn.float32), dim=-1)
    assert all(bool((v == v[0, 0, 0, 0]).all()) for v in chips.get(got))


def test_softmax_of_large_block_floats_is_that_of_what_they_hold(chips):
    """A block with a largest value of 512 to 1000 has a step of 8: values round to multiples of 8."""
    x = [torch.randint(-124, 125, (1, 1, 32, 256)) * 8.0 for _ in range(chips.count)]
    for v in x:
        v[..., ::16] = torch.randint(64, 125, (1, 1, 32, 16)) * 8.0
    want = [torch.softmax(v.double(), -1) for v in x]
    for between in (0, 3):
        placed = chips.put([v + between for v in x], ttnn.bfloat8_b)
        got = ttnn.softmax(placed, dim=-1, numeric_stable=True, compute_kernel_config=EXACT)
        assert_near(got, want, 5e-3)


@pytest.mark.parametrize("layout", (ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT), ids=str)
@pytest.mark.parametrize("keepdim", (True, False))
def test_argmax_is_the_first_of_the_largest(chips, layout, keepdim):
    x = chips.draw(1, 1, 33, 200)
    for v in x:
        v[0, 0, 7, [30, 150]] = 100
    got = ttnn.argmax(chips.put(x, layout=layout), dim=-1, keepdim=keepdim)
    assert_same(got, [v.argmax(-1, keepdim) for v in x])
    assert chips.get(got)[0].flatten()[7] == 30


def test_topk_may_give_labels_instead_of_places(chips):
    x = [
        torch.stack([torch.randperm(256) for _ in range(32)])[None, None].bfloat16()
        for _ in range(chips.count)
    ]
    labels = torch.stack([torch.randperm(1024)[:256] for _ in range(32)])[None, None]
    _, got = ttnn.topk(
        chips.put(x), k=32, dim=-1, indices_tensor=chips.put(labels.int(), ttnn.uint16)
    )
    assert_same(got, [labels.gather(-1, v.argsort(-1, descending=True)[..., :32]) for v in x])


@pytest.mark.parametrize("k", (32, 64))
@pytest.mark.parametrize("largest", (True, False))
def test_topk(chips, largest, k):
    x = [
        torch.stack([torch.randperm(256) for _ in range(32)])[None, None].bfloat16()
        for _ in range(chips.count)
    ]
    values, indices = ttnn.topk(chips.put(x), k=k, dim=-1, largest=largest)
    order = [v.argsort(-1, descending=largest)[..., :k] for v in x]
    assert_same(values, [v.gather(-1, o) for v, o in zip(x, order)])
    assert_same(indices, order)


@pytest.mark.parametrize("width", (64, 8192))
def test_stable_topk_gives_the_first_of_equal_values_first(chips, width):
    """More than k values are equal: the choice of the k matters."""
    x = [v.round().clamp(-2, 2) for v in chips.draw(1, 1, 32, width)]
    values, indices = ttnn.topk(chips.put(x), k=32, dim=-1, stable=True)
    expected = [
        sorted(range(width), key=lambda i, row=row: (-row[i], i))[:32]
        for v in x
        for row in v[0, 0].tolist()
    ]
    expected = list(torch.tensor(expected).view(chips.count, 1, 1, 32, 32))
    assert_same(indices, expected)
    assert_same(values, [v.gather(-1, e) for v, e in zip(x, expected)])


@pytest.mark.parametrize("dim", (-1, 2))
@pytest.mark.parametrize("reverse", (False, True))
def test_cumsum(chips, dim, reverse):
    x = [
        v.round() for v in chips.draw(1, 1, 32, 64, scale=4)
    ]  # whole numbers: their sums are exact
    got = ttnn.cumsum(chips.put(x, ttnn.float32), dim, reverse_order=reverse)
    flips = [dim] if reverse else []
    assert_same(
        got, [torch.from_numpy(np.cumsum(v.flip(flips).numpy(), dim)).flip(flips) for v in x]
    )


def test_gather_picks_along_the_last_dim(chips):
    x = [torch.randint(1 << 20, (1, 1, 32, 96)) for _ in range(chips.count)]
    index = [torch.randint(96, (1, 1, 32, 32)) for _ in range(chips.count)]
    got = ttnn.gather(
        chips.put([v.int() for v in x], ttnn.uint32),
        -1,
        chips.put([i.int() for i in index], ttnn.uint16),
    )
    expected = [
        torch.stack([row[i] for row, i in zip(v[0, 0], at[0, 0])])[None, None]
        for v, at in zip(x, index)
    ]
    assert_same(got, expected)


def test_plus_one_counts_up_in_place(chips):
    positions = chips.put_ints(torch.tensor([0, 5, -1, 127]))
    replica = ttnn.clone(positions)
    ttnn.plus_one(positions)
    assert_same(positions, torch.tensor([1, 6, 0, 128]))
    assert_same(replica, torch.tensor([0, 5, -1, 127]))


def test_plus_one_may_leave_negative_entries_alone(chips):
    positions = chips.put_ints(torch.tensor([0, 5, -1, 2**31 - 1]))
    ttnn.plus_one(positions, skip_negative_entries=True)
    assert_same(positions, torch.tensor([1, 6, -1, 2**31 - 1]))


@pytest.mark.parametrize("op", ("softmax_in_place", "attention_softmax_"))
def test_softmax_in_place_subtracts_the_maximum(chips, op):
    """Scores of 200 overflow exp unless the row's maximum is subtracted first, as these kernels do."""
    x = chips.put(torch.full((1, 1, 32, 32), 200.0))
    if op == "softmax_in_place":
        ttnn.softmax_in_place(x)
    else:
        mask = chips.put(torch.zeros(1, 1, 32, 32))
        ttnn.transformer.attention_softmax_(x, head_size=1, attention_mask=mask)
    assert_same(x, torch.full((1, 1, 32, 32), 1 / 32))


def test_a_sum_over_chips_of_experts_is_cut(chips):
    x = chips.draw(1, 8, 32, 128)
    got = ttnn.experimental.fast_reduce_nc_split(
        chips.put(x), dim=1, split_output_width=96, compute_kernel_config=EXACT
    )
    for tensor, columns in zip(got, (slice(96), slice(96, None))):
        want = [v.double().sum(1, keepdim=True)[..., columns] for v in x]
        assert_close(tensor, want)
