"""`perf run`: the device operations of a program, their bytes and prices. Figures are computed by hand."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import ttnn
from qwen25_7b_lab.prices.constants import Price
from qwen25_7b_lab.prices.device_ops import Op, Tensor, operations, programs_in_graph
from qwen25_7b_lab.prices.op_costs import Bound, Work, chips_of, work_of
from qwen25_7b_lab.prices.prices import Row
from qwen25_7b_lab.prices.report import Section, report

from golden_mesh import captured

ROOT = Path(__file__).resolve().parents[2]
TILE = 2048  # bytes in bfloat16


def launches(counter) -> dict[str, int]:
    """Launches by the name of the device operation."""
    return {launch.op.name: count for launch, count in counter.items()}


@pytest.fixture
def launch(recorder):
    """launch(call): the one device operation that call() launches."""

    def launch(call) -> Op:
        recorder.whole.clear()
        call()
        ((launch, count),) = recorder.whole.items()
        assert count == 1
        return launch.op

    return launch


@pytest.fixture
def work(launch, golden):
    """work(call): the work of the one device operation that call() launches, on 64 cores."""

    def work(call, **how) -> Work:
        op = launch(call)
        return work_of(op, chips=chips_of(op, golden.chips), grid_cores=64, **how)

    return work


# Of x, a [64, 256] of 16 tiles in DRAM; l1, the same in L1; and narrow, the same in bfloat8_b. Bytes from or to DRAM.
MOVED = {
    "relu": (lambda x, l1, narrow: ttnn.relu(x), 2 * 16 * TILE),
    "relu in place": (lambda x, l1, narrow: ttnn.relu(x, output_tensor=x), 2 * 16 * TILE),
    "add of L1": (lambda x, l1, narrow: ttnn.add(x, l1), 2 * 16 * TILE),
    "add in place in L1": (lambda x, l1, narrow: ttnn.add_(l1, l1), 0),
    "typecast": (lambda x, l1, narrow: ttnn.typecast(narrow, ttnn.bfloat16), 16 * (1088 + TILE)),
    "a slice is not read whole": (lambda x, l1, narrow: x[:32, :64], 2 * 2 * TILE),
}


@pytest.mark.parametrize("name", MOVED)
def test_inputs_and_results_in_dram_are_counted_and_l1_is_not(work, golden, name):
    call, moved = MOVED[name]
    x, narrow = golden.full(1, 64, 256), golden.full(1, 64, 256, dtype=ttnn.bfloat8_b)
    l1 = golden.full(1, 64, 256, memory_config=ttnn.L1_MEMORY_CONFIG)
    assert work(lambda: call(x, l1, narrow)).scattered == moved


@pytest.mark.parametrize("batch, transposed", [((), False), ((), True), ((1, 4), False)])
def test_a_matmul_counts_its_bytes_and_products(work, golden, batch, transposed):
    x, w = ((256, 64), (512, 256)) if transposed else ((64, 256), (256, 512))
    operands = golden.full(1, *batch, *x), golden.full(1, *batch, *w)
    each = work(lambda: ttnn.matmul(*operands, transpose_a=transposed, transpose_b=transposed))
    count = batch[-1] if batch else 1
    assert each.scattered == count * 2 * (64 * 256 + 256 * 512 + 64 * 512)
    assert each.flops == count * 2 * 64 * 256 * 512
    assert each.fidelity == "HiFi2"


# Keyword arguments, and the rows that the chunks of rows attend to. Causal rows attend to their own chunk and those
# before.
CHUNKED = dict(compute_with_storage_grid_size=(8, 8), q_chunk_size=128, k_chunk_size=64)
PREFILL = {
    "causal": (dict(is_causal=True), CHUNKED, 128, 128 + 256),
    "not causal": (dict(is_causal=False), CHUNKED, 128, 256 + 256),
    "default chunks of 32 rows": (dict(is_causal=True), None, 32, sum(range(32, 257, 32))),
}


@pytest.mark.parametrize("name", PREFILL)
def test_prefill_attention_reads_keys_and_values_for_each_chunk_of_rows(work, golden, name):
    how, chunks, rows, attended = PREFILL[name]
    if chunks:
        how = how | {"program_config": ttnn.SDPAProgramConfig(**chunks)}
    q = golden.full(1, 2, 4, 256, 64)  # users, heads, rows, head_dim
    each = work(lambda: ttnn.transformer.scaled_dot_product_attention(q, q, q, **how))
    beside, row = 2 * (2 * 4 * 256 * 64 * 2), 64 * 2  # q and the result; a token of a head
    assert each.scattered == beside + 2 * (2 * 4) * attended * row
    assert each.flops == 4 * (2 * 4) * 64 * rows * attended


@pytest.mark.parametrize("paged", [True, False])
def test_decode_attention_reads_the_caches_up_to_a_position(work, golden, paged):
    """Two key heads of 64 elements are four tiles a block of 32 tokens and cache. Eight query heads pad to one tile."""
    q, where = (golden.full(1, 1, 4, 8, 64), dict(cur_pos_tensor=golden.put_ints([5, 9, 40, 90])))
    if paged:
        cache = golden.full(1, 16, 2, 32, 64)
        where["page_table_tensor"] = golden.put_ints(torch.arange(16).reshape(4, 4))
        decode = ttnn.transformer.paged_scaled_dot_product_attention_decode
    else:
        cache = golden.full(1, 4, 2, 128, 64)
        decode = ttnn.transformer.scaled_dot_product_attention_decode
    beside, block = 2 * 4 * 2 * TILE, 4 * TILE  # q and the result, of four users
    attend = lambda: decode(q, cache, cache, **where)  # noqa: E731
    assert work(attend).scattered == beside + 2 * 4 * 4 * block  # 128 tokens
    assert work(attend, position=40).scattered == beside + 2 * 4 * 2 * block
    assert work(attend, position=31, users=1).scattered == beside + 2 * block


def test_a_cache_update_touches_one_tile_row_of_each_user(work, golden):
    cache, token, prompt = (golden.full(1, *shape) for shape in ((4, 2, 128, 64), (1, 2, 4, 64), (1, 2, 32, 64)))
    row = 2 * 2 * TILE  # of both heads; the new token of four users is as large, in DRAM
    update = work(lambda: ttnn.kv_cache.update_cache_for_token_(cache, token, 3, 0))
    assert update.scattered == 4 * 2 * row + row  # read and written
    fill = work(lambda: ttnn.kv_cache.fill_cache_for_user_(cache, prompt, 0))
    assert fill.scattered == 2 * row


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_the_chips_of_a_collective_are_seen_in_its_shapes(launch, golden, name):
    if golden.chips > 1:
        op = launch(lambda: getattr(ttnn, name)(golden.full(1, 1, 1, 64, 1024), 3))
        assert chips_of(op, 32) == golden.chips


def test_a_collective_without_a_measured_time_is_named():
    """There are times of two, four and eight chips."""
    x = Tensor((1, 1, 32, 64), "bfloat16", True, "L1", "interleaved")
    op = Op("AllGather", "all_gather", "", None, (x,), (replace(x, shape=(1, 1, 32, 32 * 64)),))
    row = Row.make(op, 1, links=1, chips=chips_of(op, 32), grid_cores=64)
    text = report([Section("step", 1, 32, (row,))], links=1, position=None)
    assert "Without a price of the links: all_gather." in text and row.bound.ethernet == 0
    empty = report([Section("step", 1, 1, ())], links=1, position=None)
    assert empty == "step: no device operation"


def test_an_operation_of_no_kind_has_no_row(launch, golden):
    op = launch(lambda: ttnn.cumsum(golden.full(1, 64, 256), dim=1))
    row = Row.make(op, 3, links=1, chips=1, grid_cores=64)
    assert row.bound.price is None and row.bound.source == "no rows" and row.dram_bytes == 3 * 2 * 16 * TILE
    assert row.bound.kernel > row.floor
    text = report([Section("step", 1, 1, (row,))], links=1, position=None)
    assert "Without a measured row: cumsum." in text and "with an error above" not in text


def test_a_report_names_what_is_priced_with_a_large_error():
    """Here an operation of half of the time."""
    known = Bound(0.0, 0.0, 0.0, 5e-6, Price(5.0, "unary", 7, 0.2))
    op = Op("Unary", "relu", "", None, (), ())
    rows = tuple(
        Row(replace(op, call=call), 1, Work(), replace(known, price=replace(known.price, error=error)))
        for call, error in (("relu", 0.5), ("topk", 0.51))
    )
    text = report([Section("step", 1, 1, rows)], links=1, position=None)
    assert "50% of the time is priced with an error above 50%: topk." in text


@pytest.mark.parametrize("width, block", ((2, 4), (4, 4), (8, 2)))
def test_the_program_of_a_matmul_is_in_the_graph(golden, recorder, width, block):
    """ttnn's graph has no program: a scope around the call names it, in a program's capture and the recorder's."""
    x, w = golden.full(1, 64, 256), golden.full(1, 256, 512)
    program = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=(4, 2), in0_block_w=width, out_subblock_h=1, out_subblock_w=block, per_core_M=1,
        per_core_N=4, out_block_w=block, transpose_mcast=False, fused_activation=None,
    )  # fmt: skip
    with programs_in_graph():
        ttnn.matmul(x, w, program_config=program)
    ((launched, _),) = recorder.whole.items()
    assert (launched.op.in0_block_w, launched.op.passes, launched.op.marks) == (width, 4 // block, ())


def test_the_whole_program_counts_without_blocks_and_traces(recorder, golden):
    """A program's own graph capture stays whole."""
    x = golden.full(1, 32, 32)
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
    ttnn.relu(x)
    ttnn.to_torch(ttnn.get_device_tensors(x + x)[0])
    nodes = ttnn.graph.end_graph_capture()
    names = [n["params"]["name"] for n in nodes if n["node_type"] == "function_start"]
    assert {"UnaryDeviceOperation", "BinaryNgDeviceOperation"} <= set(names)
    ((name, runs, counted),) = recorder.captured()
    assert (name, runs) == ("the whole program", 1)
    assert launches(counted) == {"Unary": 1, "BinaryNg": 1}


def test_a_trace_counts_instead_of_the_whole_program(recorder, golden):
    """Its compilation before and its executions after the capture do not count."""
    x = golden.full(1, 32, 32)
    ttnn.relu(x)
    trace = ttnn.begin_trace_capture(golden.device, cq_id=0)
    ttnn.relu(x)
    ttnn.end_trace_capture(golden.device, trace, cq_id=0)
    ttnn.execute_trace(golden.device, trace, cq_id=0, blocking=True)
    ttnn.release_trace(golden.device, trace)
    ((name, _, counted),) = recorder.captured()
    assert name == f"trace {int(trace)}" and launches(counted) == {"Unary": 1}


def test_named_blocks_count_instead_of_all_else_and_an_outer_one_has_the_inner_ones(recorder, golden):
    x = golden.full(1, 32, 32)
    ttnn.exp(x)
    with captured("step"):
        for _ in range(2):
            with captured("layer"):
                ttnn.relu(x)
        ttnn.add(x, x)
    found = {name: (runs, launches(counted)) for name, runs, counted in recorder.captured()}
    assert found == {"step": (1, {"Unary": 2, "BinaryNg": 1}), "layer": (2, {"Unary": 2})}


def test_the_readmes_example_prints_what_the_readme_states(python):
    """The operations, their times and the bytes of a chip."""
    block = (ROOT / "lab/README.md").read_text().split("$ python -m qwen25_7b_lab.perf run ")[1].split("\n```")[0]
    words, stated = block.split("\n", 1)
    done = python("-m", "qwen25_7b_lab.perf", "run", *words.split(), cwd=ROOT)
    assert done.stdout.rstrip() == stated, done.stderr


def test_the_command_ends_with_the_programs_status(python):
    done = python("-m", "qwen25_7b_lab.perf", "run", "-c", "import ttnn; raise SystemExit(7)")
    assert done.returncode == 7 and "no device operation" in done.stdout


def test_the_table_for_tt_perf_report(tmp_path, python):
    options = "--system", "N150", "--csv", "out"
    done = python("-m", "qwen25_7b_lab.perf", "run", *options, ROOT / "golden_mesh/examples/perceptron.py")
    assert done.returncode == 0, done.stderr[-2000:]
    with (tmp_path / "out/ops_perf_results_modeled.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["OP CODE"] for row in rows][::2] == 2 * ["MatmulDeviceOperation"]
    assert rows[0]["INPUT_1_X_PAD[LOGICAL]"] == "2048[2048]"
    total = sum(int(r["DEVICE FW DURATION [ns]"]) + int(r["OP TO OP LATENCY [ns]"]) for r in rows)
    assert f"All of it takes {total / 1e6:.3f}, " in done.stdout


def test_a_convolution_has_compute(work, golden):
    """256 windows of 3 x 3 x 32 values times 64 filters."""
    x, weight = (golden.put(torch.ones(1, 1, 256, 32), layout=ttnn.ROW_MAJOR_LAYOUT), torch.ones(64, 32, 3, 3))
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
    ttnn.conv2d(
        input_tensor=x, weight_tensor=ttnn.from_torch(weight, ttnn.bfloat16), device=golden.device,
        in_channels=32, out_channels=64, batch_size=1, input_height=16, input_width=16,
        kernel_size=(3, 3), stride=(1, 1), padding=(1, 1),
        conv_config=ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16),
    )  # fmt: skip
    ops = operations(ttnn.graph.end_graph_capture())
    works = [work_of(op, chips=1, grid_cores=64) for op in ops if op.name == "Conv2d"]
    assert [work.flops for work in works] == [2 * 256 * 3 * 3 * 32 * 64]
