"""Calls in other people's programs: each was refused or crashed once, though a chip computes it."""

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError, UnknownMemory
from golden_mesh.perf import device_ops, op_costs
from goldens.support import EXACT, assert_close, assert_near, assert_same, cores, sharded


def test_programs_run_with_sub_devices_loaded(chips):
    x, ones = chips.put(torch.ones(32, 32)), [torch.ones(1, 32) * 32] * chips.count
    first, second = (ttnn.SubDevice([cores(8, start)]) for start in (0, 8))
    manager = chips.device.create_sub_device_manager([first, second], 3200)
    chips.device.load_sub_device_manager(manager)
    chips.device.set_sub_device_stall_group([ttnn.SubDeviceId(1)])
    assert_same(chips.get(ttnn.sum(x, dim=0, keepdim=True)), ones)
    ttnn.synchronize_device(chips.device, sub_device_ids=[ttnn.SubDeviceId(1)])
    doubled = ttnn.matmul(x, x, sub_device_id=ttnn.SubDeviceId(1))
    assert_same(chips.get(doubled), [torch.full((32, 32), 32.0)] * chips.count)
    chips.device.reset_sub_device_stall_group()
    chips.device.clear_loaded_sub_device_manager()
    chips.device.remove_sub_device_manager(manager)


def test_an_all_gather_by_broadcasts_needs_no_ring(chips, several_chips):
    """Of rows, or along a dim that tiles pad. Others wait forever on a line's fabric (test_hazards.py)."""
    rows, padded = chips.draw(1, 1, 8, 64), chips.draw(1, 1, 32, 40)
    line = [ttnn.create_global_semaphore(chips.device, cores(64), 0) for _ in range(2)]
    for values, layout in ((rows, ttnn.ROW_MAJOR_LAYOUT), (padded, ttnn.TILE_LAYOUT)):
        got = ttnn.experimental.all_gather_async(
            chips.put(values, layout=layout), 3, multi_device_global_semaphore=line,
            topology=ttnn.Topology.Ring,
        )  # fmt: skip
        assert_same(chips.get(got), [torch.cat(values, 3)] * chips.count)


@pytest.mark.parametrize("kv_heads", (4, 2))
@pytest.mark.parametrize("transpose_key", (False, True))
def test_heads_of_a_sharded_tensor_lie_side_by_side(chips, kv_heads, transpose_key):
    """Each kv head: its queries, its key, its value, as ViT and BERT order their weights."""
    q, k, v = (chips.draw(2, count, 32, 32) for count in (4, kv_heads, kv_heads))
    by_group = lambda x: x.unflatten(1, (kv_heads, -1))  # noqa: E731
    fused = [
        torch.cat([by_group(part) for part in parts], 2).flatten(1, 2).transpose(1, 2).flatten(2)
        for parts in zip(q, k, v)
    ]
    grid = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 1))})
    spec = ttnn.ShardSpec(grid, (32, fused[0].shape[-1] // 2), ttnn.ShardOrientation.ROW_MAJOR)
    block = ttnn.TensorMemoryLayout.BLOCK_SHARDED
    x = chips.put(fused, memory_config=ttnn.MemoryConfig(block, ttnn.BufferType.L1, spec))
    got = ttnn.transformer.split_query_key_value_and_split_heads(
        x, num_heads=4, num_kv_heads=kv_heads, transpose_key=transpose_key,
        memory_config=ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG,
    )  # fmt: skip
    k = [part.transpose(-1, -2) for part in k] if transpose_key else k
    for tensor, want in zip(got, (q, k, v)):
        assert_same(chips.get(tensor), want)


def test_bert_large_heads(run_as):
    """The library takes this op's grid on a Blackhole only."""
    program = """
import torch, ttnn
device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
x = torch.randn(8, 1, 384, 3072).bfloat16()
tensor = ttnn.from_torch(x, layout=ttnn.TILE_LAYOUT, device=device)
grid = ttnn.CoreCoord(12, 8)
got = ttnn.experimental.split_query_key_value_and_split_heads(tensor, grid, num_heads=16)
q, k, v = map(ttnn.to_torch, got)
heads = x.reshape(8, 384, 3, 16, 64).permute(2, 0, 3, 1, 4)
print(*map(torch.equal, (q, k.transpose(-1, -2), v), heads))
"""
    assert run_as("P150", program) == "True True True\n"


def test_queries_alone(chips):
    """num_kv_heads=0, as in Whisper's cross attention."""
    x = chips.draw(1, 1, 64, 128)
    q, k, v = ttnn.experimental.nlp_create_qkv_heads(
        chips.put(x), num_heads=4, num_kv_heads=0, transpose_k_heads=False
    )
    assert_same(chips.get(q), [part.unflatten(-1, (4, 32))[:, 0].transpose(1, 2) for part in x])
    assert k.shape[1] == v.shape[1] == 0


def test_results_go_into_the_tensors_that_out_names(chips):
    x = chips.draw(1, 1, 32, 64)
    last = torch.full((1, 1, 32, 32), 5)
    out, index = chips.put(torch.zeros(1, 1, 32, 32)), chips.put(last, ttnn.uint32)
    ttnn.gather(chips.put(x), 3, index, out=out)
    assert_same(chips.get(out), [part.gather(3, last) for part in x])
    total = chips.put(torch.zeros(1, 1, 32, 64))
    ttnn.cumsum(chips.put(x), 2, out=total)
    assert_close(chips.get(total), [part.cumsum(2) for part in x], steps=2)


def tiles_of(cache: torch.Tensor) -> torch.Tensor:
    """The tiles of each block in the order of their memory, [blocks, tiles, 32, 32]."""
    tiles = cache.unflatten(2, (-1, 32)).unflatten(4, (-1, 32)).transpose(3, 4)
    return tiles.flatten(1, 3)


@pytest.mark.parametrize(
    "heads, length, dim", ((1, 32, 128), (1, 128, 32), (2, 32, 64), (4, 32, 32))
)
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
    ttnn.experimental.paged_fill_cache(
        cache, chips.put(prompt), table, batch_idx=0, block_size=length
    )
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


def test_a_convolution_has_compute(chips):
    """In golden-mesh perf: 256 windows of 3 x 3 x 32 values times 64 filters."""
    x, weight = (
        chips.put(torch.ones(1, 1, 256, 32), layout=ttnn.ROW_MAJOR_LAYOUT),
        torch.ones(64, 32, 3, 3),
    )
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
    ttnn.conv2d(
        input_tensor=x, weight_tensor=ttnn.from_torch(weight, ttnn.bfloat16), device=chips.device,
        in_channels=32, out_channels=64, batch_size=1, input_height=16, input_width=16,
        kernel_size=(3, 3), stride=(1, 1), padding=(1, 1),
        conv_config=ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16),
    )  # fmt: skip
    ops = device_ops.operations(ttnn.graph.end_graph_capture())
    works = [op_costs.work_of(op, chips=1, grid_cores=64) for op in ops if op.name == "Conv2d"]
    assert [work.flops for work in works] == [2 * 256 * 3 * 3 * 32 * 64]


ACTIVATIONS = {
    ("RELU6",): lambda x: x.clamp(0, 6),
    ("SELU", 1.0, 1.5): lambda x: torch.where(x > 0, x, 1.5 * x.expm1()),
    ("SOFTPLUS", 2.0, 20.0): lambda x: (2 * x).exp().log1p() / 2,
    ("HARDTANH", -1.0, 2.0): lambda x: x.clamp(-1, 2),
    ("CLAMP_TSS", -0.5, 0.5): lambda x: x.clamp(-0.5, 0.5),
    ("LEAKY_RELU", 0.25): lambda x: torch.where(x > 0, x, x / 4),
    ("ELU", 2.0): lambda x: torch.where(x > 0, x, 2 * x.expm1()),
    ("THRESHOLD", 1.0, -3.0): lambda x: torch.where(x > 1, x, -3.0),
    ("RSUB", 1.0): lambda x: 1 - x,
}


@pytest.mark.parametrize("name, numbers", [(name, numbers) for name, *numbers in ACTIVATIONS])
def test_an_activation_with_numbers_is_fused(chips, name, numbers):
    x = chips.draw(32, 64, scale=4.0)
    activation = ttnn.UnaryWithParam(getattr(ttnn.UnaryOpType, name), *numbers)
    got = ttnn.add(
        chips.put(x, ttnn.float32), chips.put(torch.zeros(32, 64), ttnn.float32),
        activations=[activation],
    )  # fmt: skip
    assert_close(
        chips.get(got), [ACTIVATIONS[(name, *numbers)](v) for v in x], ttnn.float32, steps=8
    )


@pytest.mark.parametrize(
    "shape, dim, start, length, memory",
    (
        ((24, 1, 32, 64), 0, 12, 6, None),
        ((24, 1, 30, 60), 0, 12, 12, None),
        ((1, 1, 768, 32), 2, 384, 384, None),
        ((1, 1, 64, 256), 3, 64, 128, "BLOCK"),
    ),
)  # fmt: skip
def test_a_narrowed_tensor_is_read_back(chips, shape, dim, start, length, memory):
    x = chips.draw(*shape)
    grid = ttnn.CoreGrid(x=4, y=2)
    config = memory and ttnn.create_sharded_memory_config(shape, grid, ttnn.ShardStrategy.BLOCK)
    view = ttnn.narrow(chips.put(x, memory_config=config), dim, start, length)
    want = [part.narrow(dim, start, length) for part in x]
    got = ttnn.to_torch(view, mesh_composer=ttnn.ConcatMeshToTensor(chips.device, dim=0))
    assert_same([got], [torch.cat(want)])
    assert_same(chips.get(ttnn.neg(view)), [-part for part in want])


def test_a_result_of_a_trace_that_was_not_executed_names_the_trace(chips):
    x = chips.put(torch.ones(32, 32))
    ttnn.neg(x)
    trace = ttnn.begin_trace_capture(chips.device, cq_id=0)
    result = ttnn.neg(x)
    ttnn.end_trace_capture(chips.device, trace, cq_id=0)
    with pytest.raises(UnknownMemory, match=rf"result of trace {int(trace)}, .*execute_trace"):
        chips.get(result)
    ttnn.execute_trace(chips.device, trace, cq_id=0)
    assert_same(chips.get(result), [-torch.ones(32, 32)] * chips.count)
    ttnn.release_trace(chips.device, trace)


@pytest.mark.parametrize("fill, value", ((ttnn.zeros, 0.0), (ttnn.ones, 1.0)))
def test_constants_of_four_bits(chips, fill, value):
    got = fill((32, 64), dtype=ttnn.bfloat4_b, layout=ttnn.TILE_LAYOUT, device=chips.device)
    assert_same(chips.get(got), [torch.full((32, 64), value)] * chips.count)


def test_a_golden_that_fails_names_its_op(chips, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cumsum", None)
    with pytest.raises(GoldenError, match=r"golden of ttnn.cumsum .*\[1, 1, 32, 32\] BFLOAT16"):
        ttnn.cumsum(chips.put(torch.ones(1, 1, 32, 32)), 2)


def test_softmax_of_five_dims_has_the_exact_exp(chips):
    """Its kernel is that of other dims than the last (tt-metal's test_softmax_program_cache.py)."""
    got, want = chips.run(
        lambda x: ttnn.softmax(x, dim=-1),
        lambda x: torch.softmax(x.double(), -1),
        (1, 1, 1, 32, 64),
    )
    assert_close(got, want, steps=3)


@pytest.mark.parametrize("dtype, error", ((ttnn.float32, 1e-3), (ttnn.bfloat16, 2e-2)))
def test_batch_norm_in_training_moves_the_running_values(chips, dtype, error):
    x, old = torch.randn(3, 4, 32, 64) + 0.5, torch.rand(1, 4, 1, 1) + 1
    mean, variance = chips.put(old, dtype), chips.put(2 * old, dtype)
    got = ttnn.batch_norm(
        chips.put(x, dtype), running_mean=mean, running_var=variance, training=True, momentum=0.25
    )
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
    ttnn.uint8: (
        (-2.0, 254),
        (-1.5, 255),
        (3.75, 3),
        (256, 0),
        (-258, 254),
        (LARGE, 0),
        (torch.inf, 0),
    ),
    ttnn.uint16: ((-2.0, 0), (2.5, 3), (LARGE, 65535), (torch.inf, 65535), (-torch.inf, 0)),
    ttnn.uint32: (
        (-2.0, 0),
        (2.5, 2),
        (3 * 2.0**30, 3 * 2**30),
        (LARGE, 2**32 - 1),
        (torch.nan, 2**32 - 1),
    ),
    ttnn.int32: ((-2.5, -2), (LARGE, 2**31 - 1), (-LARGE, -(2**31)), (torch.inf, 2**31 - 1)),
}


@pytest.mark.parametrize("to", CASTS)
@pytest.mark.parametrize("dtype", (ttnn.float32, ttnn.bfloat16))
def test_a_typecast_of_floats_to_integers(chips, to, dtype):
    x = torch.tensor([[value for value, _ in CASTS[to]]])
    want = torch.tensor([[integer for _, integer in CASTS[to]]], dtype=torch.float64)
    got = chips.get(ttnn.typecast(chips.put(x, dtype), to))
    assert_same(
        [values.long() & 2**32 - 1 if to == ttnn.uint32 else values for values in got], want
    )


def test_a_typecast_of_integers_to_uint16_saturates(chips):
    x = torch.tensor([[-5, 7, 65535, 70000]], dtype=torch.int32)
    want = torch.tensor([[0, 7, 65535, 65535]])
    assert_same(chips.get(ttnn.typecast(chips.put(x, ttnn.int32), ttnn.uint16)), want)


def test_isclose_of_a_float_and_an_integer(chips):
    x, y = torch.arange(64.0).reshape(1, 64), torch.arange(64).reshape(1, 64)
    got = ttnn.isclose(chips.put(x), chips.put(y.int() // 2 * 2, ttnn.int32))
    assert_same(chips.get(got), (y % 2 == 0).float())


def test_a_moving_average_begins_at_zero(chips):
    """ema_clear_previous_output of ttnn's kernel. ttnn's page says y[0] = x[0]."""
    got = ttnn.ema(chips.put(torch.ones(1, 1, 32, 3)), 0.25)
    assert_same(got, torch.tensor([0.75, 0.9375, 0.984375]).expand(1, 1, 32, 3))


def test_an_integral_image(chips):
    x = torch.randint(-2, 3, (1, 32, 32, 32)).float()
    assert_same(ttnn.experimental.intimg(chips.put(x)), x.cumsum(1).cumsum(2).bfloat16().float())


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
        made = (
            ttnn.full_like(x, value),
            ttnn.full((32, 32), value, **how),
            ttnn.moreh_full_like(x, value),
        )
        for got in made:
            assert_same(chips.get(got), torch.full((32, 32), want))


@pytest.mark.parametrize("shape", ((97, 96), (2, 1, 3, 17, 64)))
def test_padding_of_whole_blocks_is_read_back(chips, shape):
    x = chips.put(torch.ones(shape), ttnn.bfloat8_b)
    filled = ttnn.get_device_tensors(ttnn.fill_implicit_tile_padding(x, 1.5))[0]
    values = filled.cpu().to_torch_with_padded_shape()
    assert values[..., shape[-2] :, :].unique().tolist() == [1.5]
    assert values[..., : shape[-2], :].unique().tolist() == [1.0]


def test_channels_move_to_the_end(chips):
    x = chips.draw(1, 2, 3, 64)
    placed = chips.put(x, layout=ttnn.ROW_MAJOR_LAYOUT, memory_config=sharded("WIDTH", (6, 32), 2))
    got = ttnn.experimental.convert_to_hwc(placed)
    want = [part[0].transpose(1, 2).reshape(1, 1, 128, 3) for part in x]
    assert_same([values[..., :3] for values in chips.get(got)], want)


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


def test_a_bias_of_a_higher_rank_gives_its_rank(chips):
    x, weight, bias = chips.draw(32, 32), chips.draw(32, 32), chips.draw(1, 1, 1, 32)
    got = ttnn.linear(
        chips.put(x), chips.put(weight), bias=chips.put(bias), compute_kernel_config=EXACT
    )
    want = [a.double() @ w.double() + b.double() for a, w, b in zip(x, weight, bias)]
    assert_close(got, want, steps=2)


@pytest.mark.parametrize("groups", (1, 2))
def test_a_transposed_convolution_returns_its_prepared_weight(chips, groups):
    image, weight, bias = (
        chips.draw(*shape)[0] for shape in ((1, 32, 5, 6), (32, 32 // groups, 3, 3), (1, 1, 1, 32))
    )
    x = chips.put(image.permute(0, 2, 3, 1).reshape(1, 1, 30, 32), layout=ttnn.ROW_MAJOR_LAYOUT)
    how = dict(
        input_tensor=x, device=chips.device, in_channels=32, out_channels=32, batch_size=1, input_height=5,
        input_width=6, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), groups=groups,
        return_weights_and_bias=True, compute_config=EXACT,
    )  # fmt: skip
    want = torch.nn.functional.conv_transpose2d(
        image.double(), weight.double(), bias.double().flatten(), 2, 1, groups=groups
    )
    want = want.permute(0, 2, 3, 1).flatten(0, 2)[None, None]
    given = ttnn.from_torch(weight, ttnn.bfloat16), ttnn.from_torch(bias, ttnn.bfloat16)
    first, prepared = ttnn.conv_transpose2d(weight_tensor=given[0], bias_tensor=given[1], **how)
    again, _ = ttnn.conv_transpose2d(weight_tensor=prepared[0], bias_tensor=prepared[1], **how)
    assert_close(first, want, steps=2)
    assert_close(again, want, steps=2)
    beforehand = {name: how[name] for name in how if not name.startswith(("input_tensor", "return"))} | dict(
        input_memory_config=ttnn.DRAM_MEMORY_CONFIG, input_layout=ttnn.ROW_MAJOR_LAYOUT,
        dilation=(1, 1), input_dtype=ttnn.bfloat16, conv_config=ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16),
    )  # fmt: skip
    made = ttnn.prepare_conv_transpose2d_weights(
        weight_tensor=given[0], weights_format="IOHW", has_bias=True, **beforehand
    )
    added = ttnn.prepare_conv_transpose2d_bias(bias_tensor=given[1], **beforehand)
    last, _ = ttnn.conv_transpose2d(weight_tensor=made, bias_tensor=added, **how)
    assert_close(last, want, steps=2)


@pytest.mark.parametrize("prepares", (True, False))
def test_a_convolution_of_videos_has_groups(chips, prepares):
    x, weight, bias = torch.randn(1, 4, 4, 6, 64), torch.randn(32, 32, 1, 3, 3), torch.randn(1, 32)
    x, weight, bias = (values.bfloat16().float() for values in (x, weight, bias))
    given = ttnn.from_torch(weight, ttnn.bfloat16)
    if prepares:
        given = ttnn.experimental.prepare_conv3d_weights(
            weight_tensor=given, groups=2, device=chips.device
        )
    cores = chips.device.compute_with_storage_grid_size()
    got = ttnn.experimental.conv3d(
        input_tensor=chips.put(x, layout=ttnn.ROW_MAJOR_LAYOUT), weight_tensor=given,
        bias_tensor=chips.put(bias), dtype=ttnn.bfloat16, output_channels=32, kernel_size=(1, 3, 3),
        padding=(0, 1, 1), groups=2, device=chips.device, config=ttnn.Conv3dConfig(compute_with_storage_grid_size=cores),
    )  # fmt: skip
    want = torch.nn.functional.conv3d(
        x.permute(0, 4, 1, 2, 3).double(), weight.double(), bias[0].double(), 1, (0, 1, 1), groups=2
    )
    assert_near(got, want.permute(0, 2, 3, 4, 1), 4e-3)
    with pytest.raises(GoldenError, match="input_tensor is a tensor on the host"):
        ttnn.experimental.conv3d(
            input_tensor=ttnn.from_torch(x),
            weight_tensor=given,
            output_channels=32,
            kernel_size=(1, 3, 3),
        )


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
