"""RMS norm and layer norm, plain and distributed over chips, and norms over images."""

import pytest
import torch
import torch.nn.functional as F
import ttnn

from goldens.support import EXACT, ROW_MAJOR, Put, assert_close, assert_near, bf16, block_sharded, examples, sharded

X, W, RESIDUAL = (1, 1, 33, 192), (1, 192), (1, 1, 33, 192)
HOW = dict(epsilon=1e-3, compute_kernel_config=EXACT)
PROGRAM = ttnn.LayerNormShardedMultiCoreProgramConfig(
    compute_with_storage_grid_size=(4, 1), subblock_w=2, block_h=1, block_w=2, inplace=False
)
IN_COLUMNS = sharded("WIDTH", (32, 64), 4)
RELU = ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)
NORMS = ("rms_norm", "layer_norm")


def rms(x, weight=1.0, epsilon=1e-3):
    x = x.double()
    weight = weight.flatten() if isinstance(weight, torch.Tensor) else weight
    return x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * weight


def layer(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight.flatten(), bias.flatten(), eps=1e-3)


def in_rows(*shape: int) -> Put:
    return Put(shape, layout=ROW_MAJOR)


EXAMPLES = {
    "ttnn.rms_norm(x, weight=y, **HOW)": ("rms(x, y)", X, in_rows(1, 1, 6, 32)),
    "ttnn.rms_norm(x, weight=y, residual_input_tensor=z, **HOW)":
        ("rms(x + z, y)", X, in_rows(1, 1, 6, 32), RESIDUAL),
    "ttnn.rms_norm(x, weight=y, bias=z, **HOW)": ("rms(x, y) + z", X, W, W),
    "ttnn.rms_norm(x, epsilon=0.5, compute_kernel_config=EXACT)": ("rms(x, 1.0, 0.5)", (1, 1, 33, 70), {"steps": 1}),
    "ttnn.layer_norm(x, weight=y, bias=z, **HOW)": ("layer(x, y, z)", X, W, W),
    "ttnn.layer_norm(x, weight=y, bias=z, residual_input_tensor=u, **HOW)": ("layer(x + u, y, z)", X, W, W, RESIDUAL),
}  # fmt: skip
for activation, want in (("None", "{}"), ("'silu'", "F.silu({})"), ("RELU", "{}.relu()")):
    call = f"E.dit_rms_norm_unary_fused(x, weight=y, activation={activation}, **HOW)"
    EXAMPLES[call] = want.format("rms(x, y)"), (1, 1, 32, 64), (1, 1, 1, 64), {"error": 4e-3}
test_examples = examples(EXAMPLES, globals(), steps=2)


@pytest.mark.parametrize("op", [ttnn.rms_norm, ttnn.layer_norm], ids=lambda op: op.__name__)
def test_a_weight_in_whole_tiles_counts_by_its_first_row(chips, op):
    x, weight, bias = (chips.put(bf16(1, 1, 32, 128)) for _ in range(3))
    rows = [chips.put([t[:, :, :1].float() for t in chips.get(tiles)]) for tiles in (weight, bias)]
    assert chips.holds(op(x, weight=weight, bias=bias), chips.get(op(x, weight=rows[0], bias=rows[1])))


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("affine", (False, True))
def test_the_halves_of_a_distributed_norm_make_a_whole_one(chips, name, affine):
    """The statistics of each half of the columns are gathered before the norm."""
    x = (bf16(1, 1, 32, 256) + 0.5).bfloat16().float()
    given = {"weight": bf16(256), "bias": bf16(256)} if affine else {}
    if name == "rms_norm":
        given.pop("bias", None)
    first, second = (getattr(ttnn, f"{name}_{half}_all_gather") for half in ("pre", "post"))
    halves = [chips.put(half.contiguous()) for half in x.chunk(2, -1)]
    stats = [first(half, dtype=ttnn.float32, compute_kernel_config=EXACT) for half in halves]
    for got, half in zip(stats, x.chunk(2, -1)):  # squares are cut to 11 bits
        torch.testing.assert_close(chips.get(got)[0][..., 0], half.pow(2).sum(-1), rtol=5e-4, atol=0)
    wanted = getattr(F, name)(x, (256,), **given, eps=1e-3).chunk(2, -1)
    for at, (half, want) in enumerate(zip(halves, wanted)):
        parts = {n: chips.put(t.chunk(2)[at].reshape(1, 1, 4, 32), layout=ROW_MAJOR) for n, t in given.items()}
        assert_near(second(half, ttnn.concat(stats, dim=3), **parts, **HOW), want, 6e-3)


@pytest.mark.parametrize("name", NORMS)
def test_the_halves_of_a_sharded_distributed_norm_exchange_means(chips, name):
    """Unsharded statistics are sums, squares first. Sharded statistics are means, squares last."""
    x, weight = chips.draw(1, 1, 32, 256), chips.draw(1, 1, 1, 256)
    x = [(v + 0.5).bfloat16().float() for v in x]
    given, how = chips.put(x, memory_config=IN_COLUMNS), dict(program_config=PROGRAM)
    stats = chips.get(getattr(ttnn, f"{name}_pre_all_gather")(given, **how))
    for got, v in zip(stats, x):
        for at, part in enumerate([v.pow(2)] if name == "rms_norm" else [v, v.pow(2)]):
            found = got[..., 32 * at].float()
            torch.testing.assert_close(found, part.mean(-1), rtol=0.02, atol=0.02)
    gathered = torch.cat(stats, -1)
    one_core = sharded("WIDTH", (32, gathered.shape[-1]), 1)
    how |= dict(weight=chips.put(weight), epsilon=1e-3, memory_config=IN_COLUMNS)
    second = getattr(ttnn, f"{name}_post_all_gather")
    got = second(given, chips.put(gathered, memory_config=one_core), **how)
    whole, factor = torch.cat(x, -1), torch.cat(weight, -1)
    want = rms(whole, factor) if name == "rms_norm" else layer(whole, factor, factor * 0)
    assert_near(got, list(want.chunk(chips.count, -1)), 0.01)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("place", (IN_COLUMNS, None), ids=("sharded", "interleaved"))
def test_the_first_half_of_a_distributed_norm_adds_its_residual(chips, name, place):
    """In place if it is sharded."""
    x, residual = chips.draw(1, 1, 32, 256), chips.draw(1, 1, 32, 256)
    given, added = (chips.put(v, memory_config=place) for v in (x, residual))
    first, total = getattr(ttnn, f"{name}_pre_all_gather"), [a + b for a, b in zip(x, residual)]
    how = dict(program_config=PROGRAM if place else None)
    stats = first(given, residual_input_tensor=added, **how)
    assert_close(given, total if place else x)
    assert_near(stats, chips.get(first(chips.put(total, memory_config=place), **how)), 1e-2)


def grouped(x, weight=None, bias=None):
    """x [N, 1, H * W, C], in four groups of channels."""
    affine = (None if t is None else t.flatten() for t in (weight, bias))
    return F.group_norm(x[:, 0].transpose(1, 2), 4, *affine, eps=1e-5).transpose(1, 2).unsqueeze(1)


GROUPS, ONES = dict(num_groups=4, epsilon=1e-5), torch.ones(1, 4, 32, 32)
ONE_CORE = GROUPS | dict(inplace=False, core_grid=ttnn.CoreGrid(y=1, x=1))
IMAGE = lambda: 2 * bf16(2, 1, 64, 128) + 1
GROUP_NORMS = {
    "ttnn.group_norm(x, input_mask=y, **ONE_CORE)": ("grouped(x)", IMAGE, ONES),
    "ttnn.group_norm(x, input_mask=y, weight=z, bias=u, **ONE_CORE)":
        ("grouped(x, z, u)", IMAGE, ONES, in_rows(1, 1, 4, 32), in_rows(1, 1, 4, 32)),
}  # fmt: skip
test_group_norm = examples(GROUP_NORMS, globals(), special=True)


def test_group_norm_with_weights_padded_for_each_core(chips):
    """Each of two columns of cores has 48 channels, and the weight has 64 values for each."""
    x, weight, bias = bf16(1, 1, 64, 96), bf16(96), bf16(96)
    place = block_sharded((32, 48), 2, 2, "COL_MAJOR")
    rows = lambda t: chips.put(ttnn.create_group_norm_weight_bias_rm(t, 96, 2), layout=ROW_MAJOR)
    got = ttnn.group_norm(
        chips.put(x, layout=ROW_MAJOR, memory_config=place), memory_config=place, weight=rows(weight),
        input_mask=chips.put(torch.ones(1, 4, 32, 64)), core_grid=ttnn.CoreGrid(y=2, x=2), bias=rows(bias), **GROUPS,
    )  # fmt: skip
    assert_close(got, grouped(x.double(), weight.double(), bias.double()))


CHANNELS, MOMENTS = (1, 4, 1, 1), "running_mean=y, running_var=z, eps=1e-3"
VARIANCE = lambda: bf16(*CHANNELS).abs() + 0.5
BATCH = (2, 4, 32, 64), CHANNELS, Put(VARIANCE, ttnn.float32)
BATCH_NORMS = {
    f"ttnn.batch_norm(x, {MOMENTS})": ("F.batch_norm(x, *map(torch.flatten, (y, z)), eps=1e-3)", *BATCH),
    f"ttnn.batch_norm(x, {MOMENTS}, weight=u, bias=v)": (
        "F.batch_norm(x, *map(torch.flatten, (y, z, u, v)), eps=1e-3)", *BATCH, CHANNELS, CHANNELS,
    ),
}  # fmt: skip
test_batch_norm = examples(BATCH_NORMS, globals(), dtype=ttnn.float32, error=1e-6)
