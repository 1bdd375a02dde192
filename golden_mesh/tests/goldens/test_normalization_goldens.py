"""RMS norm and layer norm, plain and distributed over chips."""

import pytest
import torch
import ttnn

from goldens.support import EXACT, assert_close, assert_near, assert_same, sharded


def rms(x, weight, epsilon):
    return x / (x.double().pow(2).mean(-1, keepdim=True) + epsilon).sqrt().float() * weight


@pytest.mark.parametrize("weight_shape", ((1, 1, 6, 32), (1, 1, 1, 192)), ids=("row-major", "tile"))
@pytest.mark.parametrize("with_residual", (False, True))
def test_rms_norm(chips, weight_shape, with_residual):
    x, residual = chips.draw(1, 1, 33, 192), chips.draw(1, 1, 33, 192)
    weight = torch.randn(192).bfloat16().float()
    layout = ttnn.ROW_MAJOR_LAYOUT if weight_shape[2] > 1 else ttnn.TILE_LAYOUT
    got = ttnn.rms_norm(
        chips.put(x),
        weight=chips.put(weight.reshape(weight_shape), layout=layout),
        epsilon=1e-3,
        residual_input_tensor=chips.put(residual) if with_residual else None,
        compute_kernel_config=EXACT,
    )
    total = [a + b for a, b in zip(x, residual)] if with_residual else x
    assert_close(got, [rms(v, weight, 1e-3) for v in total], steps=2)


def test_rms_norm_with_a_bias(chips):
    x, bias = chips.draw(1, 1, 33, 192), torch.randn(1, 192).bfloat16().float()
    weight = chips.put(torch.full((1, 192), 2.0))
    got = ttnn.rms_norm(
        chips.put(x), epsilon=1e-3, bias=chips.put(bias), weight=weight, compute_kernel_config=EXACT
    )
    assert_close(got, [rms(v, 2, 1e-3) + bias for v in x], steps=2)


@pytest.mark.parametrize("op", (ttnn.rms_norm, ttnn.layer_norm))
def test_a_weight_in_whole_tiles_counts_by_its_first_row(chips, op):
    x, weight, bias = (chips.put(chips.draw(1, 1, 32, 128)) for _ in range(3))
    first_rows = [
        chips.put([t[:, :, :1].float() for t in chips.get(tiles)]) for tiles in (weight, bias)
    ]
    want = chips.get(op(x, weight=first_rows[0], bias=first_rows[1]))
    assert_same(op(x, weight=weight, bias=bias), want)


def test_rms_norm_over_an_odd_width(chips):
    x = chips.draw(1, 1, 33, 70)
    assert_close(
        ttnn.rms_norm(chips.put(x), epsilon=1e-6, compute_kernel_config=EXACT),
        [rms(v, 1, 1e-6) for v in x],
    )


def test_sharded_rms_norm_with_an_outlying_channel(chips):
    """The decode norm of a residual with one channel thousands of times larger than the others."""
    x, weight = chips.draw(1, 1, 32, 256), torch.randn(256).bfloat16().float()
    for v in x:
        v[..., 17] = 3008
    config = sharded("WIDTH", (32, 64), 4)
    program = ttnn.LayerNormShardedMultiCoreProgramConfig(
        compute_with_storage_grid_size=(4, 1), subblock_w=2, block_h=1, block_w=2, inplace=False
    )
    got = ttnn.rms_norm(
        chips.put(x, memory_config=config),
        weight=chips.put(weight.reshape(1, 1, 8, 32), layout=ttnn.ROW_MAJOR_LAYOUT),
        epsilon=1e-6,
        program_config=program,
        memory_config=config,
        compute_kernel_config=EXACT,
    )
    assert_close(got, [rms(v, weight, 1e-6) for v in x], steps=2)


@pytest.mark.parametrize("with_residual", (False, True))
def test_layer_norm_with_weight_and_bias(chips, with_residual):
    x, residual = chips.draw(1, 1, 33, 192), chips.draw(1, 1, 33, 192)
    weight, bias = torch.randn(2, 1, 192).bfloat16().float()
    got = ttnn.layer_norm(
        chips.put(x),
        epsilon=1e-3,
        weight=chips.put(weight),
        bias=chips.put(bias),
        residual_input_tensor=chips.put(residual) if with_residual else None,
        compute_kernel_config=EXACT,
    )

    def norm(v):
        centered = v - v.mean(-1, keepdim=True)
        return centered / (centered.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * weight + bias

    total = [a + b for a, b in zip(x, residual)] if with_residual else x
    assert_close(got, [norm(v) for v in total], steps=2)


def test_the_halves_of_a_distributed_rms_norm_make_a_whole_one(chips):
    """Every chip has some columns. Their statistics are gathered between the halves."""
    x, weight = chips.draw(1, 1, 64, 96), chips.draw(1, 1, 3, 32)
    stats = ttnn.rms_norm_pre_all_gather(
        chips.put(x), dtype=ttnn.float32, compute_kernel_config=EXACT
    )
    for got, v in zip(chips.get(stats), x):
        torch.testing.assert_close(
            got[..., 0], v.pow(2).sum(-1), rtol=5e-4, atol=0
        )  # squares are cut to 11 bits
    gathered = torch.cat(chips.get(stats), -1)
    weights = chips.put(weight, layout=ttnn.ROW_MAJOR_LAYOUT)
    got = ttnn.rms_norm_post_all_gather(
        chips.put(x),
        chips.put(gathered, ttnn.float32),
        epsilon=1e-3,
        weight=weights,
        compute_kernel_config=EXACT,
    )
    want = rms(torch.cat(x, -1), torch.cat([w.flatten() for w in weight]), 1e-3).chunk(
        chips.count, -1
    )
    assert_close(got, list(want), steps=2)


@pytest.mark.parametrize("name", ("rms_norm", "layer_norm"))
def test_the_halves_of_a_sharded_distributed_norm_exchange_means(chips, name):
    """Unsharded statistics are sums, squares first. Sharded statistics are means, squares last."""
    width, cores = 256, 4
    x, weight = chips.draw(1, 1, 32, width), chips.draw(1, 1, 1, width)
    x = [(v + 0.5).bfloat16().float() for v in x]
    config = ttnn.LayerNormShardedMultiCoreProgramConfig(
        compute_with_storage_grid_size=(cores, 1), subblock_w=2, block_h=1, block_w=2, inplace=False
    )
    place = sharded("WIDTH", (32, width // cores), cores)
    stats = getattr(ttnn, f"{name}_pre_all_gather")(
        chips.put(x, memory_config=place), program_config=config
    )
    means = {"rms_norm": [[v.pow(2)] for v in x], "layer_norm": [[v, v.pow(2)] for v in x]}[name]
    for got, parts in zip(chips.get(stats), means):
        for at, part in enumerate(parts):
            torch.testing.assert_close(
                got[..., 32 * at].float(), part.mean(-1), rtol=0.02, atol=0.02
            )
    gathered = torch.cat(chips.get(stats), -1)
    got = getattr(ttnn, f"{name}_post_all_gather")(
        chips.put(x, memory_config=place),
        chips.put(gathered, memory_config=sharded("WIDTH", (32, gathered.shape[-1]), 1)),
        epsilon=1e-3,
        weight=chips.put(weight),
        program_config=config,
        memory_config=place,
    )
    whole, factor = torch.cat(x, -1), torch.cat(weight, -1).flatten()
    wholly = torch.nn.functional.layer_norm(whole, factor.shape, factor, eps=1e-3)
    want = wholly if name == "layer_norm" else rms(whole, factor, 1e-3)
    assert_near(got, list(want.chunk(chips.count, -1)), 0.01)


@pytest.mark.parametrize("name", ("rms_norm", "layer_norm"))
@pytest.mark.parametrize("is_sharded", (True, False))
def test_the_first_half_of_a_sharded_distributed_norm_adds_its_residual_in_place(
    chips, name, is_sharded
):
    x, residual = chips.draw(1, 1, 32, 256), chips.draw(1, 1, 32, 256)
    config = ttnn.LayerNormShardedMultiCoreProgramConfig(
        compute_with_storage_grid_size=(4, 1), subblock_w=2, block_h=1, block_w=2, inplace=False
    )
    place = sharded("WIDTH", (32, 64), 4) if is_sharded else None
    put = chips.put(x, memory_config=place)
    getattr(ttnn, f"{name}_pre_all_gather")(
        put,
        residual_input_tensor=chips.put(residual, memory_config=place),
        program_config=config if is_sharded else None,
    )
    want = [a + b for a, b in zip(x, residual)] if is_sharded else x
    assert_close(put, want)


@pytest.mark.parametrize("activation", (None, "silu", ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)))
def test_rms_norm_with_a_fused_activation(chips, activation):
    x, weight = chips.draw(1, 1, 32, 64), chips.draw(1, 1, 1, 64)
    put, options = chips.put(x), {"weight": chips.put(weight), "compute_kernel_config": EXACT}
    got = ttnn.experimental.dit_rms_norm_unary_fused(put, 1e-5, activation=activation, **options)
    function = {None: lambda v: v, "silu": torch.nn.functional.silu}.get(activation, torch.relu)
    normed = [
        v / (v.double() ** 2).mean(-1, keepdim=True).add(1e-5).sqrt() * w for v, w in zip(x, weight)
    ]
    assert_near(got, [function(v) for v in normed], 4e-3)
