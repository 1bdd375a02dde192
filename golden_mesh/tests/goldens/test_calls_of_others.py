"""Calls in other people's programs: each was refused or crashed once, though a chip computes it."""

import pytest
import torch
import ttnn

from golden_mesh.arithmetic import engine
from golden_mesh.errors import GoldenError, UnknownMemory
from goldens.support import EXACT, assert_close, assert_near, assert_same, cores, examples, ints, sharded


def test_programs_run_with_sub_devices_loaded(chips):
    x = chips.put(torch.ones(32, 32))
    first, second = (ttnn.SubDevice([cores(8, start)]) for start in (0, 8))
    manager = chips.device.create_sub_device_manager([first, second], 3200)
    chips.device.load_sub_device_manager(manager)
    chips.device.set_sub_device_stall_group([ttnn.SubDeviceId(1)])
    assert_same(ttnn.sum(x, dim=0, keepdim=True), torch.ones(1, 32) * 32)
    ttnn.synchronize_device(chips.device, sub_device_ids=[ttnn.SubDeviceId(1)])
    assert_same(ttnn.matmul(x, x, sub_device_id=ttnn.SubDeviceId(1)), torch.full((32, 32), 32.0))
    chips.device.reset_sub_device_stall_group()
    chips.device.clear_loaded_sub_device_manager()
    chips.device.remove_sub_device_manager(manager)


@pytest.mark.parametrize(
    "call",
    (
        "sum(x, -1, scalar=N)", "mean(x, scalar=N)", "max(x, -1, scalar=N)", "std(x, -1, scalar=N)",
        "remainder(x, N)", "fmod(x, N)", "pow(x, N)", "rpow(x, N)", "div(N, x)", "div(x, N)", "rdiv(x, N)",
        "lerp(x, x, N)", "addcmul(x, x, x, value=N)", "leaky_relu(x, N)", "rms_norm(x, epsilon=N)",
        "pad(x, [(0, 0), (0, 32)], N)", "scale_mask_softmax_in_place(ttnn.clone(x), N, mask)",
    ),
)  # fmt: skip
def test_a_whole_number_is_an_int_or_a_float(chips, call):
    names = {"ttnn": ttnn, "x": chips.put(torch.randn(1, 1, 64, 64)), "mask": chips.put(torch.randn(1, 1, 1, 64))}
    of_int, of_float = (eval(f"ttnn.{call}", names | {"N": number}) for number in (3, 3.0))
    assert_same(of_int, chips.get(of_float))


PLANE, BATCH_OF_ONE, HOW = (2, 33, 45), (1, 2, 33, 45), dict(compute_kernel_config=EXACT)
TABLES = (1, 1, 64, 64), (1, 1, 64, 64), {"steps": 3}  # of a rotary embedding


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


COUNT = torch.arange(64.0).reshape(1, 64)
RANKS = {  # vectors, and ranks that differ by leading dims of 1
    "ttnn.linear(x, y, bias=z, **HOW)": ("x[None] @ y + z", (96,), (96, 45), (1, 45), {"steps": 2}),
    "ttnn.linear(x, y, bias=z, **HOW)  # of one number": ("x @ y + z", (33, 96), (96,), (1, 1), {"steps": 2}),
    "ttnn.matmul(x, y, **HOW)": ("x @ y", (33, 96), (96,)),
    "ttnn.matmul(x, y, **HOW)  # vectors": ("x @ y", (96,), (96,)),
    "E.minimal_matmul(x, y, **HOW)": ("x @ y[0, 0]", (64, 96), (1, 1, 96, 128)),
    "ttnn.add_(ttnn.clone(x), y)": ("x + y[0]", PLANE, BATCH_OF_ONE),
    "ttnn.add(x, x, output_tensor=ttnn.clone(y))": ("(x + x)[None]", PLANE, BATCH_OF_ONE),
    "ttnn.exp_bw(x, y)[0]  # of more dims": ("x[None] * y.exp()", PLANE, BATCH_OF_ONE, {"steps": 2}),
    "E.rotary_embedding_hf(x, y, z)": ("rotated(x, y[0, :, :32], z[0, :, :32])", (4, 32, 64), *TABLES),
    "ttnn.exp_bw(x, y)[0]": ("x[0] * y.exp()", BATCH_OF_ONE, PLANE, {"steps": 2}),
    "ttnn.repeat(x, (3, 1))": ("x.repeat(1, 3, 1)", (2, 32, 64)),
    "ttnn.linear(x, y, bias=z, **HOW)  # of rank 4": ("x @ y + z", (32, 32), (32, 32), (1, 1, 1, 32), {"steps": 2}),
    # The kernel of five dims is that of other dims than the last, with the exact exp (test_softmax_program_cache.py).
    "ttnn.softmax(x, dim=-1)": ("x.softmax(-1)", (1, 1, 1, 32, 64), {"steps": 3}),
    "ttnn.typecast(x, ttnn.uint16)": ("x", ints(lambda: torch.randint(0, 256, (1, 5)), ttnn.uint8)),
    "ttnn.typecast(x, ttnn.uint16)  # saturates": ("x.clamp(0, 65535)", torch.tensor([[-5, 7, 65535, 70000]])),
    "ttnn.isclose(x, y)  # a float and an integer": ("x == y", COUNT, COUNT.int() // 2 * 2),
    "E.intimg(x)": ("x.cumsum(1).cumsum(2).bfloat16()", lambda: torch.randint(-2, 3, (1, 32, 32, 32)).float()),
}
test_ranks = examples(RANKS, globals())


X = (1, 1, 64, 64)
BY_NAME = {  # names that an op has in one of its overloads
    "ttnn.assign(input_a=x, input_b=ttnn.clone(y))": ("x", X, X),
    "ttnn.mac(x, y, value=3)": ("x * y + 3", X, X),
    "ttnn.mac(x, value=3, input_tensor_c=y)": ("x * 3 + y", X, X),
    "ttnn.mac(x, value1=3, value2=2)": ("x * 3 + 2", X),
    "ttnn.pad(x, (1, 1, 96, 96), input_tensor_start=(0, 0, 0, 0), value=3)": ("F.pad(x, (0, 32, 0, 32), value=3)", X),
    "ttnn.add_bw(x, y, scalar=3)[0]": ("x", X, X),
    "T.flash_mla_prefill(x, y, input_tensor_v=x, **HOW) - T.flash_mla_prefill(x, y, x, **HOW)": ("x * 0", X, X),
}
test_names_of_an_overload = examples(BY_NAME, globals() | {"T": ttnn.transformer})


def tiles_of(cache: torch.Tensor) -> torch.Tensor:
    """The tiles of each block in the order of their memory, [blocks, tiles, 32, 32]."""
    tiles = cache.unflatten(2, (-1, 32)).unflatten(4, (-1, 32)).transpose(3, 4)
    return tiles.flatten(1, 3)


@pytest.mark.parametrize("heads, length, dim", ((1, 32, 128), (1, 128, 32), (2, 32, 64), (4, 32, 32)))
def test_a_call_sees_blocks_of_another_geometry(chips, heads, length, dim):
    """As vLLM's layers of one buffer do: the cache's blocks are [1, 64, 64], the call's [heads, length, dim]."""
    cache, seen = chips.put(torch.zeros(4, 1, 64, 64)), torch.zeros(4, heads, length, dim)
    rows = torch.randn(1, 1, heads, dim).bfloat16().float()
    put = chips.put(rows, memory_config=sharded("HEIGHT", (32, dim), 1))
    table = chips.put_ints(torch.tensor([[3, 2, 1, 0]]))
    position = length + 5
    ttnn.experimental.paged_update_cache(
        cache, put, update_idxs_tensor=chips.put_ints(torch.tensor([position])), page_table=table,
        block_size=length, num_kv_heads=heads, share_cache=False,
    )  # fmt: skip
    seen[2, :, 5] = rows[0, 0]
    assert_same([tiles_of(values) for values in chips.get(cache)], tiles_of(seen))
    prompt = torch.randn(1, heads, length, dim).bfloat16().float()
    ttnn.experimental.paged_fill_cache(cache, chips.put(prompt), table, batch_idx=0, block_size=length)
    seen[3] = prompt[0]
    assert_same([tiles_of(values) for values in chips.get(cache)], tiles_of(seen))


@pytest.mark.parametrize("given", (False, True))
def test_one_chip_sends_its_tensor_to_another(chips, several_chips, given):
    x, old = chips.draw(1, 1, 32, 64), chips.draw(1, 1, 32, 64)
    first, last = ttnn.MeshCoordinate(0, 0), ttnn.MeshCoordinate(0, chips.device.shape[1] - 1)
    into = {"output_tensor": chips.put(old)} if given else {}
    got = ttnn.point_to_point(chips.put(x), first, last, topology=ttnn.Topology.Linear, **into)
    shards = ttnn.get_device_tensors(got)
    receiver = chips.device.shape[1] - 1
    assert torch.equal(ttnn.to_torch(shards[receiver]).float(), x[0])
    if given:
        assert torch.equal(ttnn.to_torch(shards[0]).float(), old[0])
    else:
        with pytest.raises(UnknownMemory, match="never written"):
            ttnn.to_torch(shards[0])


def test_a_golden_that_fails_names_its_op(chips, monkeypatch):
    monkeypatch.setattr(torch, "cumsum", None)
    with pytest.raises(GoldenError, match=r"golden of ttnn.cumsum .*\[1, 1, 32, 32\] BFLOAT16"):
        ttnn.cumsum(chips.put(torch.ones(1, 1, 32, 32)), 2)


@pytest.mark.parametrize("dtype, error", ((ttnn.float32, 1e-3), (ttnn.bfloat16, 2e-2)))
def test_batch_norm_in_training_moves_the_running_values(chips, dtype, error):
    x, old = torch.randn(3, 4, 32, 64) + 0.5, torch.rand(1, 4, 1, 1) + 1
    mean, variance = chips.put(old, dtype), chips.put(2 * old, dtype)
    got = ttnn.batch_norm(chips.put(x, dtype), running_mean=mean, running_var=variance, training=True, momentum=0.25)
    assert_near(got, torch.nn.functional.batch_norm(x, None, None, training=True), error)
    over = dict(dim=(0, 2, 3), keepdim=True)
    assert_near(mean, 0.75 * old + 0.25 * x.mean(**over), error)
    assert_near(variance, 1.5 * old + 0.25 * x.var(correction=0, **over), error)


def test_a_router_chooses_experts(chips):
    x, weight, bias = chips.draw(32, 256), chips.draw(256, 128, scale=0.1), chips.draw(32, 128)
    experts, scores = ttnn.experimental.topk_router_gpt(
        chips.put(x), weight_tensor=chips.put(weight), bias_tensor=chips.put(bias), k=4
    )
    logits = [(a @ w + b).bfloat16().float() for a, w, b in zip(x, weight, bias)]
    assert_same(chips.get(experts), [each.topk(4).indices for each in logits])
    assert_close(chips.get(scores), [each.topk(4).values.double().softmax(-1) for each in logits])


LARGE = 2.0**40
# What the kernels of ttnn's ckernel_sfpu_typecast.h make of floats. from_torch gives other integers beyond the range.
CASTS = {
    ttnn.uint8: ((-2.0, 254), (-1.5, 255), (3.75, 3), (256, 0), (-258, 254), (LARGE, 0), (torch.inf, 0)),
    ttnn.uint16: ((-2.0, 0), (2.5, 3), (LARGE, 65535), (torch.inf, 65535), (-torch.inf, 0)),
    ttnn.uint32: ((-2.0, 0), (2.5, 2), (3 * 2.0**30, 3 * 2**30), (LARGE, 2**32 - 1), (torch.nan, 2**32 - 1)),
    ttnn.int32: ((-2.5, -2), (LARGE, 2**31 - 1), (-LARGE, -(2**31)), (torch.inf, 2**31 - 1)),
}


@pytest.mark.parametrize("to", CASTS)
@pytest.mark.parametrize("dtype", (ttnn.float32, ttnn.bfloat16))
def test_a_typecast_of_floats_to_integers(chips, to, dtype):
    x = torch.tensor([[value for value, _ in CASTS[to]]])
    want = torch.tensor([[integer for _, integer in CASTS[to]]], dtype=torch.float64)
    got = chips.get(ttnn.typecast(chips.put(x, dtype), to))
    assert_same([values.long() & 2**32 - 1 if to == ttnn.uint32 else values for values in got], want)


def test_the_weight_of_expert_zero(chips):
    x, among, first = chips.draw(1, 1, 32, 64), torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 1, 32)
    among[..., 8:], first[..., 2:] = -torch.inf, -torch.inf
    got = ttnn.moe(chips.put(x), chips.put(among), chips.put(first), 32)
    for values, part in zip(chips.get(got), x):
        best, experts = part[..., :8].topk(2)
        want = (best.softmax(-1) * (experts == 0)).sum(-1, keepdim=True)
        assert_close([values[..., :1]], [want])


@pytest.mark.parametrize("layout", (ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT))
def test_a_constant_is_rounded_to_even(chips, layout):
    x = chips.put(torch.zeros(32, 32), layout=layout)
    how = dict(dtype=ttnn.bfloat16, layout=layout, device=chips.device)
    for value, want in ((2.0078125, 2.0), (2.0234375, 2.03125), (-3.9921875, -4.0)):
        for got in (ttnn.full((32, 32), value, **how), ttnn.moreh_full_like(x, value)):
            assert_same(chips.get(got), torch.full((32, 32), want))
        cut = engine.keep(torch.tensor(value), engine.BFLOAT16).item()  # as a simulated N150
        filled = chips.get(ttnn.full_like(x, value))
        assert_same(filled, torch.full((32, 32), cut if layout == ttnn.TILE_LAYOUT else want))


@pytest.mark.parametrize("shape", ((97, 96), (2, 1, 3, 17, 64)))
def test_padding_of_whole_blocks_is_read_back(chips, shape):
    x = chips.put(torch.ones(shape), ttnn.bfloat8_b)
    filled = ttnn.get_device_tensors(ttnn.fill_implicit_tile_padding(x, 1.5))[0]
    values = filled.cpu().to_torch_with_padded_shape()
    assert values[..., shape[-2] :, :].unique().tolist() == [1.5]
    assert values[..., : shape[-2], :].unique().tolist() == [1.0]


@pytest.mark.parametrize("mode", ("nearest", "bilinear"))
def test_an_image_is_turned(chips, mode):
    """By quarters exactly. Elsewhere torch's sampling of the same places, which begins outside with zeros."""
    x = chips.draw(1, 16, 16, 32)
    put = chips.put(x, layout=ttnn.ROW_MAJOR_LAYOUT)
    for quarters in (1, -1, 2):
        got = ttnn.rotate(put, 90.0 * quarters, interpolation_mode=mode)
        assert_same(chips.get(got), [torch.rot90(part, quarters, (1, 2)) for part in x])
    got = ttnn.rotate(put, 30.0, interpolation_mode=mode)
    turn = torch.tensor([[3**0.5, -1, 0], [1, 3**0.5, 0]]) / 2
    grid = torch.nn.functional.affine_grid(turn[None], (1, 1, 16, 16), align_corners=False)
    sample = lambda part: torch.nn.functional.grid_sample(  # noqa: E731
        part.permute(0, 3, 1, 2), grid, mode, align_corners=False
    )
    assert_near(got, [sample(part).permute(0, 2, 3, 1) for part in x], 4e-3)
    assert_same(ttnn.rotate(put, 30.0, center=(8.0, 8.0), interpolation_mode=mode), chips.get(got))
    assert chips.get(ttnn.rotate(put, 45.0, fill=7.0, interpolation_mode=mode))[0][0, 0, 0, 0] == 7


def test_rows_with_padding_between_are_read_back(chips):
    """A convolution's rows are sharded unevenly, and its channels padded (tt-metal's test_conv_features)."""
    image, weight = torch.ones(1, 1, 2 * 256 * 256, 16), torch.ones(16, 16, 3, 3)
    got = ttnn.conv2d(
        input_tensor=ttnn.from_torch(image, ttnn.bfloat16), device=chips.device,
        weight_tensor=ttnn.from_torch(weight, ttnn.bfloat16), in_channels=16, out_channels=16,
        batch_size=2, input_height=256, input_width=256, kernel_size=(3, 3), stride=(2, 2),
        padding=(1, 2, 2, 3), slice_config=ttnn.Conv2dL1FullSliceConfig,
        conv_config=ttnn.Conv2dConfig(
            weights_dtype=ttnn.bfloat16, output_layout=ttnn.ROW_MAJOR_LAYOUT, act_block_h_override=32,
            shard_layout=ttnn.TensorMemoryLayout.HEIGHT_SHARDED,
        ),
    )  # fmt: skip
    assert got.padded_shape[-1] == 32
    values = chips.get(got)[0].reshape(2, 129, 130, 16)
    assert values[:, 1:-1, 1:-2].unique().tolist() == [9 * 16]
