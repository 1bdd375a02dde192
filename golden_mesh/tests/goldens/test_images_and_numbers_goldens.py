"""Norms by halves and over images, addmm, quantized numbers, and writes into a part of a tensor."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from goldens.support import EXACT, assert_close, assert_near, assert_same, assert_values

ROW_MAJOR = ttnn.ROW_MAJOR_LAYOUT


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16().float()


@pytest.mark.parametrize("affine", (False, True))
def test_the_halves_of_a_layer_norm_make_one(chips, affine):
    """The statistics of each half of the columns are gathered before the norm."""
    x, weight, bias = draw(1, 1, 32, 256) + 0.5, draw(256), draw(256)
    x = x.bfloat16().float()
    stats = [
        ttnn.layer_norm_pre_all_gather(
            chips.put(half.contiguous()), dtype=ttnn.float32, compute_kernel_config=EXACT
        )
        for half in x.chunk(2, -1)
    ]
    gathered = ttnn.concat(stats, dim=3)
    assert list(gathered.shape) == [1, 1, 32, 128]
    rows = lambda t: chips.put(t.reshape(1, 1, 4, 32), layout=ROW_MAJOR)  # noqa: E731
    wanted = F.layer_norm(x, (256,), *((weight, bias) if affine else (None, None)), eps=1e-5).chunk(
        2, -1
    )
    for half, w, b, want in zip(x.chunk(2, -1), weight.chunk(2), bias.chunk(2), wanted):
        options = {"weight": rows(w), "bias": rows(b)} if affine else {}
        got = ttnn.layer_norm_post_all_gather(
            chips.put(half.contiguous()),
            gathered,
            epsilon=1e-5,
            compute_kernel_config=EXACT,
            **options,
        )
        assert_near(got, want, 6e-3)


def test_the_sum_of_a_residual_is_what_is_normed(chips):
    x, residual = draw(1, 1, 32, 64), draw(1, 1, 32, 64)
    got = ttnn.layer_norm_pre_all_gather(
        chips.put(x),
        residual_input_tensor=chips.put(residual),
        dtype=ttnn.float32,
        compute_kernel_config=EXACT,
    )
    total = x + residual
    for g in chips.get(got):
        torch.testing.assert_close(g[..., 0], (total**2).sum(-1), rtol=0.01, atol=0)
        torch.testing.assert_close(g[..., 32], total.sum(-1), rtol=0.01, atol=0.2)


@pytest.mark.parametrize("affine", (False, True))
def test_group_norm(chips, affine):
    x, weight, bias = draw(2, 1, 64, 128) * 2 + 1, draw(128), draw(128)
    x = x.bfloat16().float()
    rows = lambda t: chips.put(t.reshape(1, 1, 4, 32), layout=ROW_MAJOR)  # noqa: E731
    options = {"weight": rows(weight), "bias": rows(bias)} if affine else {}
    got = ttnn.group_norm(
        chips.put(x), num_groups=4, epsilon=1e-5, input_mask=chips.put(torch.ones(1, 4, 32, 32)), inplace=False,
        core_grid=ttnn.CoreGrid(y=1, x=1), **options,
    )  # fmt: skip
    image = x[:, 0].transpose(1, 2).double()
    want = F.group_norm(image, 4, *((weight.double(), bias.double()) if affine else ()), eps=1e-5)
    assert_values(got, want.transpose(1, 2).unsqueeze(1))


def test_group_norm_with_weights_padded_for_each_core(chips):
    """Each of two columns of cores has 48 channels, and the weight has 64 values for each."""
    x, weight, bias = draw(1, 1, 64, 96), draw(96), draw(96)
    shard = ttnn.ShardSpec(
        ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 1))}),
        (32, 48),
        ttnn.ShardOrientation.COL_MAJOR,
    )
    place = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.BLOCK_SHARDED, ttnn.BufferType.L1, shard)
    rows = lambda t: chips.put(ttnn.create_group_norm_weight_bias_rm(t, 96, 2), layout=ROW_MAJOR)  # noqa: E731
    got = ttnn.group_norm(
        chips.put(x, layout=ROW_MAJOR, memory_config=place), num_groups=4, epsilon=1e-5, memory_config=place,
        input_mask=chips.put(torch.ones(1, 4, 32, 64)), core_grid=ttnn.CoreGrid(y=2, x=2), weight=rows(weight),
        bias=rows(bias),
    )  # fmt: skip
    want = F.group_norm(
        x[:, 0].transpose(1, 2).double(), 4, weight.double(), bias.double(), eps=1e-5
    )
    assert_values(got, want.transpose(1, 2).unsqueeze(1))


def test_batch_norm(chips):
    x, mean, weight, bias = draw(2, 4, 32, 64), draw(1, 4, 1, 1), draw(1, 4, 1, 1), draw(1, 4, 1, 1)
    variance = draw(1, 4, 1, 1).abs() + 0.5
    variance = variance.bfloat16().float()
    put = lambda t: chips.put(t, ttnn.float32)  # noqa: E731
    how = dict(running_mean=put(mean), running_var=put(variance), eps=1e-3)
    got = ttnn.batch_norm(put(x), weight=put(weight), bias=put(bias), **how)
    one = lambda t: t.flatten().double()  # noqa: E731
    want = F.batch_norm(x.double(), one(mean), one(variance), one(weight), one(bias), eps=1e-3)
    assert_near(got, want, 1e-6)


def test_addmm(chips):
    x, a, b = draw(32, 96), draw(32, 64), draw(64, 96)
    got = ttnn.addmm(*map(chips.put, (x, a, b)), alpha=0.5, beta=-2.0, compute_kernel_config=EXACT)
    want = torch.addmm(x.double(), a.double(), b.double(), alpha=0.5, beta=-2)
    assert_near(got, want, 4e-3)


@pytest.mark.parametrize("by_channel", (False, True))
def test_quantized_numbers(chips, by_channel):
    x = draw(1, 2, 32, 64) * 4
    scale, zero = (
        (torch.rand(64) + 0.05, torch.randint(-9, 9, (64,)))
        if by_channel
        else (torch.tensor(0.05), 3)
    )
    put = lambda t, dtype=ttnn.float32: chips.put(t, dtype)  # noqa: E731
    given = (put(scale), put(zero.int(), ttnn.int32)) if by_channel else (scale.item(), zero)
    how = {"axis": 3} if by_channel else {}
    quantized = ttnn.quantize(put(x), *given, **how)
    want = torch.round(x / scale + zero)
    assert_same(quantized, want)
    got = ttnn.dequantize(quantized, *given, dtype=ttnn.float32, **how)
    assert_near(got, (want - zero) * scale, 1e-6)
    if not by_channel:
        again = ttnn.requantize(quantized, *given, 0.125, -1)
        assert_same(again, torch.round((want - zero) * (scale / 0.125) - 1))


def test_a_part_of_a_tensor_is_written(chips):
    x, part = draw(1, 1, 32, 64), draw(1, 1, 8, 64)
    target = chips.put(x, layout=ROW_MAJOR)
    copy = ttnn.clone(target)
    ttnn.experimental.slice_write(
        chips.put(part, layout=ROW_MAJOR), target, [0, 0, 4, 0], [1, 1, 12, 64], [1, 1, 1, 1]
    )
    want = torch.cat((x[:, :, :4], part, x[:, :, 12:]), 2)
    assert_same(target, want)
    assert_same(copy, x)


def test_rows_of_a_prompt_go_to_places_in_the_caches(chips):
    """One place is outside of the cache: it is skipped."""
    k, v, rows, more = (
        draw(4, 2, 32, 64),
        draw(4, 2, 32, 64),
        draw(1, 2, 32, 64),
        draw(1, 2, 32, 64),
    )
    places = torch.randperm(4 * 32)[:32]
    places[5] = -1
    caches = chips.put(k), chips.put(v)
    ttnn.experimental.indexed_fused_update_cache(
        caches[0], chips.put(rows), caches[1], chips.put(more), chips.put_ints(places.view(1, 32))
    )
    for cache, new, tensor in ((k, rows, caches[0]), (v, more, caches[1])):
        want = cache.clone()
        for row, place in enumerate(places.tolist()):
            if place >= 0:
                want[place // 32, :, place % 32] = new[0, :, row]
        assert_same(tensor, want)


def test_mambas_products_and_sums(chips):
    a, b = draw(1, 1, 32, 32), draw(1, 1, 32, 5120)
    got = ttnn.experimental.repeat_and_interleave_eltwise_mul(chips.put(a), chips.put(b))
    want = (b.unsqueeze(-1) * a.unsqueeze(-2)).flatten(-2)
    # A bfloat16 dest rounds after each fidelity phase that adds bits.
    assert_close(got, want.double(), steps=3)
    got = ttnn.experimental.repeat_and_interleave_eltwise_mul(
        chips.put(a), chips.put(b), math_fidelity=ttnn.MathFidelity.LoFi
    )
    ratio = torch.cat(chips.get(got)).double().norm() / (want.double().norm() * chips.count**0.5)
    assert 0.97 < ratio < 0.99  # LoFi cuts both operands, which makes every product smaller
    x = draw(1, 1, 32, 5120 * 32)
    got = ttnn.experimental.hc_sum_reduce(chips.put(x))
    assert_near(got, x.unflatten(-1, (5120, 32)).sum(-1), 3e-3)
