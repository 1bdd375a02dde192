"""golden-mesh perf: the device operations of a program, their bytes and prices. Expected figures are computed by hand."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import ttnn

from golden_mesh import captured, dispatch
from golden_mesh.__main__ import environment, split
from golden_mesh.errors import GoldenMeshError
from golden_mesh.perf import sections
from golden_mesh.perf.collective_prices import collective_seconds
from golden_mesh.perf.device_ops import Op, Tensor
from golden_mesh.perf.op_costs import DRAM, Rates, Work, chips_of, work_of
from golden_mesh.perf.prices import Row

SOURCE = Path(__file__).resolve().parents[1] / "src"
RATES = Rates(streamed=0.5, scattered=0.25, launch=2e-6)


@pytest.fixture
def recorder(golden, monkeypatch):
    """Records the calls of the test's own process."""
    from golden_mesh.perf.recorder import Recorder, recording

    recorder = Recorder()
    monkeypatch.setattr(dispatch, "REAL_CALL", recording(dispatch.REAL_CALL, recorder))
    yield recorder
    sections.times.clear()


def launches(counter) -> dict[str, int]:
    """Launches by the name of the device operation."""
    return {launch.op.name: count for launch, count in counter.items()}


@pytest.fixture
def work(recorder, golden):
    """work(call): the work of the one device operation that call() launches, on 64 cores."""

    def run(call, **how) -> Work:
        recorder.whole.clear()
        call()
        ((launch, count),) = recorder.whole.items()
        assert count == 1
        return work_of(
            launch.op, chips=chips_of(launch.op, golden.chips), grid_cores=64, **how
        )  # fmt: skip

    return run


def test_inputs_and_results_in_dram_are_counted_and_l1_is_not(work, golden):
    x, narrow = golden.full(1, 64, 256), golden.full(1, 64, 256, dtype=ttnn.bfloat8_b)
    inside = golden.full(1, 64, 256, memory_config=ttnn.L1_MEMORY_CONFIG)
    tiles = 2 * 8
    assert work(lambda: ttnn.relu(x)).scattered == 2 * tiles * 2048
    assert work(lambda: ttnn.relu(x, output_tensor=x)).scattered == 2 * tiles * 2048
    assert work(lambda: ttnn.add(x, inside)).scattered == 2 * tiles * 2048
    assert work(lambda: ttnn.add_(inside, inside)).scattered == 0
    assert work(lambda: ttnn.typecast(narrow, ttnn.bfloat16)).scattered == tiles * (1088 + 2048)
    assert work(lambda: x[:32, :64]).scattered == 2 * 2 * 2048  # a slice is not read whole


def test_a_matmul_counts_its_bytes_and_products_also_with_transposed_operands(work, golden):
    x, w = golden.full(1, 64, 256), golden.full(1, 256, 512)
    moved = (64 * 256 + 256 * 512 + 64 * 512) * 2
    plain = work(lambda: ttnn.matmul(x, w))
    turned = golden.full(1, 256, 64), golden.full(1, 512, 256)
    both = work(lambda: ttnn.matmul(*turned, transpose_a=True, transpose_b=True))
    for each in (plain, both):
        assert (each.scattered, each.flops) == (moved, 2 * 64 * 256 * 512)
        assert each.fidelity == "HiFi2" and each.operand_bytes == 2 * 2048
    several = work(lambda: ttnn.matmul(golden.full(1, 4, 64, 256), golden.full(1, 4, 256, 512)))
    assert several.flops == 4 * plain.flops


def test_prefill_attention_reads_keys_and_values_for_each_chunk_of_rows(work, golden):
    """Causal rows attend to their own chunk and those before it."""
    q = golden.full(1, 2, 4, 256, 64)  # users, heads, rows, head_dim
    grid = dict(compute_with_storage_grid_size=(8, 8), k_chunk_size=64)
    program = ttnn.SDPAProgramConfig(q_chunk_size=128, **grid)
    sdpa = ttnn.transformer.scaled_dot_product_attention
    row, beside = 64 * 2, 2 * (2 * 4 * 256 * 64 * 2)  # bytes of a token and head; q and the result
    for causal, attended in ((True, 128 + 256), (False, 256 + 256)):
        each = work(lambda: sdpa(q, q, q, is_causal=causal, program_config=program))
        assert each.scattered == beside + 2 * (2 * 4) * attended * row
        assert each.flops == 4 * (2 * 4) * 64 * 128 * attended
    assert work(lambda: sdpa(q, q, q, is_causal=True)).scattered == (
        beside + 2 * (2 * 4) * sum(range(32, 257, 32)) * row
    )


@pytest.mark.parametrize("paged", [True, False])
def test_decode_attention_reads_the_caches_up_to_a_position(work, golden, paged):
    """Two key heads of 64 elements are four tiles a block of 32 tokens and cache. Eight query heads pad to one tile."""
    q, position = golden.full(1, 1, 4, 8, 64), torch.tensor([5, 9, 40, 90], dtype=torch.int32)
    row_major = dict(dtype=ttnn.int32, layout=ttnn.ROW_MAJOR_LAYOUT)
    where = dict(cur_pos_tensor=golden.put(position, **row_major))
    if paged:
        cache = golden.full(1, 16, 2, 32, 64)
        where["page_table_tensor"] = golden.put(
            torch.arange(16, dtype=torch.int32).reshape(4, 4), **row_major
        )
        decode = ttnn.transformer.paged_scaled_dot_product_attention_decode
    else:
        cache = golden.full(1, 4, 2, 128, 64)
        decode = ttnn.transformer.scaled_dot_product_attention_decode
    beside = 2 * 4 * 2 * 2048  # q and the result, of four users
    block = 4 * 2048
    attend = lambda: decode(q, cache, cache, **where)  # noqa: E731
    assert work(attend).scattered == beside + 2 * 4 * 4 * block  # 128 tokens
    assert work(attend, position=40).scattered == beside + 2 * 4 * 2 * block
    assert work(attend, position=31, users=1).scattered == beside + 2 * block


def test_a_cache_update_touches_one_tile_row_of_each_user(work, golden):
    cache, token, prompt = (
        golden.full(1, *shape) for shape in ((4, 2, 128, 64), (1, 2, 4, 64), (1, 2, 32, 64))
    )
    row = 2 * 2 * 2048  # of both heads; the new token of four users is as large, in DRAM
    update = work(lambda: ttnn.kv_cache.update_cache_for_token_(cache, token, 3, 0))
    assert update.scattered == 4 * 2 * row + row  # read and written
    fill = work(lambda: ttnn.kv_cache.fill_cache_for_user_(cache, prompt, 0))
    assert fill.scattered == 2 * row


def test_a_collective_has_the_measured_time_of_its_chips(recorder, golden):
    if golden.chips == 1:
        pytest.skip("a collective needs several chips")
    x = golden.full(1, 1, 1, 64, 1024)
    whole = 64 * 1024 * 2
    for call, name, size in (
        (lambda: ttnn.all_gather(x, 3), "all_gather", golden.chips * whole),
        (lambda: ttnn.reduce_scatter(x, 3), "reduce_scatter", whole),
    ):
        recorder.whole.clear()
        call()
        ((launch, _),) = recorder.whole.items()
        chips = chips_of(launch.op, 32)
        assert chips == golden.chips
        row = Row.make(launch.op, 3, RATES, links=1, chips=chips, grid_cores=64)
        ethernet = collective_seconds(name, chips, "line", size)
        assert row.bound.ethernet == ethernet
        assert row.seconds == pytest.approx(3 * (max(ethernet, row.bound.dram) + 2e-6))


def test_a_collective_without_a_measured_time_is_named():
    """The report has two, four and eight chips."""
    from golden_mesh.perf.calibration import calibrate
    from golden_mesh.perf.report import Section, report

    x = Tensor((1, 1, 32, 64), "bfloat16", True, "L1", "interleaved")
    op = Op("AllGather", "all_gather", "", None, (x,), (replace(x, shape=(1, 1, 32, 32 * 64)),))
    row = Row.make(op, 1, RATES, links=1, chips=chips_of(op, 32), grid_cores=64)
    text = report([Section("step", 1, 32, (row,))], calibrate(), links=1, position=None)
    assert "Without a price of the links: all_gather." in text and row.bound.ethernet == 0
    empty = report([Section("step", 1, 1, ())], calibrate(), links=1, position=None)
    assert empty == "step: no device operation"


def test_a_price_is_the_longest_part_and_a_launch(recorder, golden):
    x = golden.full(1, 64, 256)
    ttnn.relu(x)
    ((launch, _),) = recorder.whole.items()
    row = Row.make(launch.op, 2, RATES, links=1, chips=1, grid_cores=64)
    moved = 2 * 64 * 256 * 2
    assert row.dram_bytes == 2 * moved
    assert row.seconds == pytest.approx(2 * (moved / (0.25 * DRAM) + 2e-6))
    assert row.floor == pytest.approx(2 * moved / DRAM)


def test_the_whole_program_counts_without_blocks_and_traces(recorder, golden):
    x = golden.full(1, 32, 32)
    for _ in range(3):
        ttnn.relu(x)
    ttnn.to_torch(ttnn.get_device_tensors(x + x)[0])
    ((name, runs, counted),) = recorder.captured()
    assert (name, runs) == ("the whole program", 1)
    assert launches(counted) == {"Unary": 3, "BinaryNg": 1}


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


def test_named_blocks_count_instead_of_all_else_and_an_outer_one_has_the_inner_ones(
    recorder, golden
):
    x = golden.full(1, 32, 32)
    ttnn.exp(x)
    with captured("step"):
        for _ in range(2):
            with captured("layer"):
                ttnn.relu(x)
        ttnn.add(x, x)
    found = {name: (runs, launches(counted)) for name, runs, counted in recorder.captured()}
    assert found == {"step": (1, {"Unary": 2, "BinaryNg": 1}), "layer": (2, {"Unary": 2})}


def test_a_programs_own_graph_capture_stays_whole(recorder, golden):
    x = golden.full(1, 32, 32)
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
    ttnn.relu(x)
    ttnn.add(x, x)
    nodes = ttnn.graph.end_graph_capture()
    names = [n["params"]["name"] for n in nodes if n["node_type"] == "function_start"]
    assert {"UnaryDeviceOperation", "BinaryNgDeviceOperation"} <= set(names)
    assert launches(recorder.whole) == {"Unary": 1, "BinaryNg": 1}


PROGRAM = """
import torch, ttnn
device = ttnn.open_device(device_id=0)
def put(*shape, dtype=ttnn.bfloat16):
    return ttnn.from_torch(torch.randn(shape), dtype=dtype, layout=ttnn.TILE_LAYOUT, device=device)
x, up, down = put(64, 512), put(512, 2048, dtype=ttnn.bfloat8_b), put(2048, 512)
hidden = ttnn.relu(ttnn.linear(x, up))
y = ttnn.add(ttnn.linear(hidden, down), x)
q = put(1, 8, 256, 64)
ttnn.transformer.scaled_dot_product_attention(q, q, q, is_causal=False)
ttnn.close_device(device)
raise SystemExit(7)
"""


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, SOURCE / "golden_mesh", *words],
        cwd=cwd, env=os.environ | {"PYTHONPATH": f"{SOURCE}"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_the_command_prints_every_operation_and_the_bytes_of_a_chip(tmp_path):
    """The exit status stays the program's."""
    (tmp_path / "mlp.py").write_text(PROGRAM)
    done = run("perf", "--system", "n150", "mlp.py", cwd=tmp_path)
    assert done.returncode == 7, done.stderr[-3000:]
    title, _, header, *lines = done.stdout.splitlines()
    assert title == "the whole program, 1 chip (modeled, not measured)"
    counts = {line[: header.index("result")].strip(): line for line in lines[:6]}
    assert list(counts)[-1] == "total" and counts["total"].split()[1] == "5"
    assert set(counts) - {"total"} == {
        "scaled_dot_product_attention (SDPA)", "linear (Matmul) x [512, 2048]",
        "linear (Matmul) x [2048, 512]", "relu (Unary)", "add (BinaryNg)",
    }  # fmt: skip
    x, hidden = 64 * 512 * 2, 64 * 2048 * 2
    moved = {
        "up": x + 16 * 64 * 1088 + hidden,
        "relu": 2 * hidden,
        "down": hidden + 2048 * 512 * 2 + x,
        "add": 3 * x,
        "attention": 2 * (8 * 256 * 64 * 2) + 2 * 8 * 8 * 256 * 64 * 2,  # eight chunks of 32 rows
    }
    assert f"A chip moves {sum(moved.values()) / 1e6:.2f} MB from and to DRAM." in done.stdout
    assert "not measured" in done.stdout and "tech_reports/CCLs" in done.stdout


def test_the_readmes_example_prints_what_the_readme_states():
    root = SOURCE.parent
    block = (root / "README.md").read_text().split("$ golden-mesh perf ")[1].split("\n```")[0]
    words, stated = block.split("\n", 1)
    done = run("perf", *words.split(), cwd=root.parent)
    assert done.stdout.rstrip() == stated, done.stderr


@pytest.mark.parametrize(
    "words, said",
    [
        (["perf", "--system", "P150", "-c", "0"], "there are none of a P150's"),
        (["perf", "--position", "-1", "-c", "0"], "--position knows a number of tokens; got '-1'"),
        (["perf", "--links", "3", "-c", "0"], "--links knows 1, 2; got '3'"),
        (["perf"], "nothing to run"),
        (["--links", "1", "-c", "0"], "--links is no option"),
    ],
)
def test_a_bad_command_line_is_refused(words, said):
    with pytest.raises(GoldenMeshError, match=said):
        split(words)


def test_options_of_perf_reach_the_program():
    choice, program = split(["perf", "--links", "2", "--position", "1024", "-c", "0"])
    assert program == ["-c", "0"]
    assert environment(choice, {})["GOLDEN_MESH_PERF"] == "[2, 1024]"
    assert environment(split(["perf", "-c", "0"])[0], {})["GOLDEN_MESH_PERF"] == "[1, null]"
    assert "GOLDEN_MESH_PERF" not in environment(split(["-c", "0"])[0], {})
