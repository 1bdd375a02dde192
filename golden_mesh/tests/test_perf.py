"""golden-mesh perf: the device operations of a program, their bytes and prices. Figures are computed by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import ttnn

from golden_mesh import captured
from golden_mesh.mesh import dispatch
from golden_mesh.perf import sections
from golden_mesh.perf.collective_prices import collective_seconds
from golden_mesh.perf.constants import Price, price
from golden_mesh.perf.device_ops import Op, Tensor, programs_in_graph
from golden_mesh.perf.l1 import l1_uses
from golden_mesh.perf.laws import GAP, LAWS, Case
from golden_mesh.perf.op_costs import DRAM, Bound, Work, chips_of, work_of
from golden_mesh.perf.prices import Row
from golden_mesh.perf.published import STEPS, layer_cases
from golden_mesh.perf.recorder import Recorder, recording
from golden_mesh.perf.report import Section, report
from golden_mesh.perf.rows import case_of, judge, table

ROOT = Path(__file__).resolve().parents[1]
TILE = 2048  # bytes in bfloat16


@pytest.fixture
def recorder(golden, monkeypatch):
    """Records the calls of the test's own process."""
    recorder = Recorder()
    monkeypatch.setattr(dispatch, "REAL_CALL", recording(dispatch.REAL_CALL, recorder))
    yield recorder
    sections.times.clear()


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
def test_a_collective_has_the_measured_time_of_its_chips(launch, golden, name):
    if golden.chips == 1:
        pytest.skip("a collective needs several chips")
    x = golden.full(1, 1, 1, 64, 1024)
    op = launch(lambda: getattr(ttnn, name)(x, 3))
    assert chips_of(op, 32) == golden.chips
    row = Row.make(op, 3, links=1, chips=golden.chips, grid_cores=64)
    whole = 64 * 1024 * 2 * (golden.chips if name == "all_gather" else 1)
    alone = collective_seconds(name, golden.chips, "line", whole)
    step = row.bound.kernel - alone  # what a call in a model's step takes more
    assert 0 < step < 20e-6
    assert row.seconds == pytest.approx(3 * (alone + step + 1e-6 * GAP))


def test_a_collective_without_a_measured_time_is_named():
    """There are times of two, four and eight chips."""
    x = Tensor((1, 1, 32, 64), "bfloat16", True, "L1", "interleaved")
    op = Op("AllGather", "all_gather", "", None, (x,), (replace(x, shape=(1, 1, 32, 32 * 64)),))
    row = Row.make(op, 1, links=1, chips=chips_of(op, 32), grid_cores=64)
    text = report([Section("step", 1, 32, (row,))], links=1, position=None)
    assert "Without a price of the links: all_gather." in text and row.bound.ethernet == 0
    empty = report([Section("step", 1, 1, ())], links=1, position=None)
    assert empty == "step: no device operation"


def test_a_price_is_a_kernel_and_a_gap(launch, golden):
    x = golden.full(1, 64, 256)
    row = Row.make(launch(lambda: ttnn.relu(x)), 2, links=1, chips=1, grid_cores=64)
    moved = 2 * 64 * 256 * 2
    assert row.dram_bytes == 2 * moved
    assert row.bound.price.kind == "unary"
    assert row.seconds == pytest.approx(2e-6 * (row.bound.price.us + GAP))
    assert row.floor == pytest.approx(2 * moved / DRAM)


def test_an_operation_of_no_kind_has_no_row(launch, golden):
    op = launch(lambda: ttnn.cumsum(golden.full(1, 64, 256), dim=1))
    row = Row.make(op, 1, links=1, chips=1, grid_cores=64)
    assert row.bound.price is None and row.bound.source == "no rows"
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
    block = (ROOT / "README.md").read_text().split("$ golden-mesh perf ")[1].split("\n```")[0]
    words, stated = block.split("\n", 1)
    done = python("-m", "golden_mesh", "perf", *words.split(), cwd=ROOT.parent)
    assert done.stdout.rstrip() == stated, done.stderr


def test_the_command_ends_with_the_programs_status(python):
    done = python("-m", "golden_mesh", "perf", "-c", "import ttnn; raise SystemExit(7)")
    assert done.returncode == 7 and "no device operation" in done.stdout


# Published microseconds on Wormhole chips, and the most that a price may miss them by.
MATMUL = dict(kind="dram_sharded", arch="wormhole", k=128, n=448, w="bfp4", phases=1, width=4)
ATTENTION = dict(kind="sdpa_decode", arch="wormhole", users=32, heads=32, kv_heads=8, keys=31, cores=64)
PUBLISHED = {
    "blocks of 1": (Case(**MATMUL | dict(width=1)), 311.2, 0.1),
    "blocks of 2": (Case(**MATMUL | dict(width=2)), 183.4, 0.1),
    "blocks of 4": (Case(**MATMUL), 139.5, 0.1),
    "float32 dest": (Case(**MATMUL | dict(n=192, w="bfp8", phases=2, fp32=True)), 111.2, 0.1),
    "interleaved": (Case("rows_matmul", "wormhole", k=128, n=448, w="bfp4", width=32, cores=64), 189.2, 0.15),
    "a weight for each of 32 rows": (
        Case("rows_matmul", "wormhole", k=128, n=192, batch=32, w="bfp8", width=2, cores=64), 4250.0, 0.15),
    "norm": (Case("norm", "wormhole", tiles=128, cores=32, sharded=True), 11.1, 0.2),
    "two readers a bank": (
        Case("dram_sharded", "blackhole", k=64, n=160, w="bfp8", phases=1, width=8, readers=2), 27.8, 0.15),
    "attention, q on cores": (Case(**ATTENTION | dict(x_dram=False)), 31.1, 0.25),
    "attention, q in DRAM": (Case(**ATTENTION | dict(cores=32, traced=False)), 118.6, 0.25),
    "a cache of one user": (Case("cache_update", "wormhole", kv_heads=8, x="bfp8"), 13.5, 0.2),
    "a cache of 32 users": (Case("cache_update", "wormhole", users=32, kv_heads=8), 25.7, 0.2),
    "rotary of a prompt": (Case("rotary", "wormhole", tiles=1024, cores=64, prefill=True), 106.7, 0.2),
    "an LM head in a ring of cores": (Case("ring_matmul", "wormhole", k=64, n=501, w="bfp8"), 196.5, 0.2),
    "all-gather of a step": (
        Case("collective", "wormhole", "all_gather", chips=2, bytes=16777216, workers=4), 1012.0, 0.3),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_law_has_the_published_times(name):
    case, us, miss = PUBLISHED[name]
    assert price(case).us == pytest.approx(us, rel=miss)


def test_the_sum_of_the_prices_is_a_published_step():
    """No constant but the host's is fitted to them."""
    ratios = sorted(step.ratio for step in STEPS)
    assert 0.9 < ratios[len(ratios) // 2] < 1.05
    assert sum(0.8 <= ratio <= 1.25 for ratio in ratios) >= 0.8 * len(ratios)
    assert 0.68 < ratios[0] and ratios[-1] < 1.35


@pytest.mark.parametrize("step", STEPS, ids=lambda s: f"{s.dims.name}-{s.machine}-{s.users}")
def test_every_operation_of_a_published_step_has_a_price(step):
    cases = [case for case, _ in layer_cases(step.dims, step.chips, step.users, 100)]
    assert all(price(case).us > 0 for case in cases)
    assert sum(case.kind == "dram_sharded" for case in cases) == 4


FULL = dict(
    source="a report", arch="wormhole", machine="N150", phase="decode", users_rows="32", op="matmul", M="32", K="4096",
    N="14336",
    in0_dtype="bf16", in1_dtype="bfp4", fidelity="LoFi", program="dram_sharded", in0_block_w="4", cores="12",
    mem_in0="l1_width", mem_in1="dram_width", device_us="139.5", traced="yes",
)  # fmt: skip
# What differs from FULL, and whether the row has a price.
FILES = {
    "a matmul": ({}, True),
    "no such dtype": (dict(in1_dtype="bfp2"), True),
    "ttnn's names": (dict(in0_dtype="bfloat16", in1_dtype="BFLOAT4_B", arch="wormhole_b0", op="ttnn.matmul"), True),
    "words for numbers": (dict(in0_block_w="four", cores="many"), True),
    "no size": (dict(K=""), False),
    "no architecture": (dict(arch=""), False),
    "another architecture": (dict(arch="grayskull"), False),
    "an unknown operation": (dict(op="FancyNewDeviceOperation"), False),
    "no operation": (dict(op=""), False),
    "a fused collective": (dict(op="AllGatherMatmulAsyncDeviceOperation"), False),
    "said to be doubtful": (dict(comment="doubtful: four times slower"), False),
    "a norm": (dict(op="LayerNormDeviceOperation", shape="32x4096"), True),
    "a norm without a shape": (dict(op="rms_norm"), False),
    "an odd shape": (dict(op="add", shape="1x1x? > 3"), True),
    "a gather of a step": (dict(op="all_gather_async", shape="32x1024>32x4096", comment="4 chips ring, 2 links"), True),
    "a gather over three chips": (dict(op="all_gather", shape="32x1024>32x3072", comment="3 chips"), False),
}


def written(file: Path, rows: list[dict]) -> Path:
    lines = (rows[0], *(row.values() for row in rows))
    file.write_text("\n".join(",".join(f'"{cell}"' for cell in line) for line in lines))
    return file


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("columns", ["all", "those that are used"])
def test_a_row_of_a_file_has_a_price_or_says_so(tmp_path, name, columns):
    """An absent column counts as empty."""
    changed, priced = FILES[name]
    row = FULL | changed
    row = row if columns == "all" else {column: value for column, value in row.items() if value}
    row.setdefault("op", "")
    file = written(tmp_path / "rows.csv", [row])
    (judged,) = judge(file)
    assert judged.us == 139.5 and bool(judged.price) == priced
    last = table(file).splitlines()[-1]
    assert last.startswith(f"priced {int(priced)} of 1, {'median' if priced else 'no error'}")


def test_a_row_without_heads_has_those_of_its_source(tmp_path):
    """32 heads of q and 4 of k: by the columns that the source's heads are made of and become."""
    beside = [dict(op="create_qkv_heads_decode", shape="32x5120"), dict(op="nlp_concat_heads_decode", shape="32x4096")]
    rows = [FULL | dict(shape="") | row for row in (dict(op="paged_update_cache"), *beside)]
    case = case_of(rows[0])
    for kept, kv_heads in ((rows[:1], 8), (rows, 4)):
        first = judge(written(tmp_path / "rows.csv", kept))[0]
        assert first.price == price(replace(case, kv_heads=kv_heads)).us


def test_every_kind_of_row_has_a_law():
    cases = (
        case_of(FULL | dict(op=op, shape="32x4096")) for op in ("add", "topk", "Embeddings", "reshard", "slice", "SDPA")
    )
    assert all(case.kind in LAWS for case in cases)


@pytest.mark.parametrize(
    "text, message", [("a,b\n1,2\n", "needs rows with the columns op and device_us"), ("", "needs rows")]
)
def test_a_file_of_no_rows_is_one_line(python, tmp_path, text, message):
    (tmp_path / "rows.csv").write_text(text)
    done = python("-m", "golden_mesh", "perf", "rows", tmp_path / "rows.csv")
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_constants_are_fitted_again_by_a_command(python, tmp_path):
    """To a file of a few rows: those of one kind on one architecture."""
    rows = [FULL | dict(source=source, in0_block_w=width, device_us=us) for source, width, us in
            (("a", "1", "311"), ("a", "2", "183"), ("b", "4", "139.5"))]  # fmt: skip
    file, to = written(tmp_path / "rows.csv", rows), tmp_path / "constants.csv"
    done = python("-m", "golden_mesh", "perf", "fit", "--to", to, file)
    assert "dram_sharded  wormhole     3       2" in done.stdout, done.stderr
    assert to.read_text().splitlines()[1].startswith("dram_sharded,wormhole,3,2,")


def test_the_l1_of_each_operation_in_a_scope(golden):
    """Tensors in L1 count. Those in DRAM do not, nor operations outside the scope."""
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
    x = golden.full(1, 32, 32 * 64)
    ttnn.graph.track_function_start("layer")
    first = ttnn.relu(x, memory_config=ttnn.L1_MEMORY_CONFIG)  # 64 tiles, one a core
    ttnn.add(first, first, memory_config=ttnn.L1_MEMORY_CONFIG)
    ttnn.graph.track_function_end()
    ttnn.neg(x)
    uses = list(l1_uses(ttnn.graph.end_graph_capture(), "layer"))
    assert [(use.op, use.tensors) for use in uses] == [("Unary", TILE), ("BinaryNg", 2 * TILE)]
