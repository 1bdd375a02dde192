"""The captured operations of a step or a prompt are the launched ones, with the planned bytes and modeled times."""

import json
from collections import Counter
from functools import partial

import pytest
from qwen25_7b_lab.perf.capture import capture_batch, capture_prefill, layer_kinds, one_layer_of_each_kind
from qwen25_7b_lab.perf.commands import read_measured, small_vocabulary
from qwen25_7b_lab.perf.plan_tables import StepBytes, hops, step_bytes
from qwen25_7b_lab.perf.plan_tables import sent as sent_by
from qwen25_7b_lab.perf.report import LABEL, op_table, step_report
from qwen25_7b_lab.perf.step_model import model_step
from qwen25_7b_lab.prices.device_ops import Op
from qwen25_7b_lab.prices.op_costs import DRAM
from qwen25_7b_lab.prices.prices import ranged

from models.demos.qwen25_7b.config import BFP8, PERFORMANCE, QWEN25_7B
from models.demos.qwen25_7b.engine.prefill_batch import PrefillBatch, PrefillChunk, Prompt
from models.demos.qwen25_7b.engine.trace import AROUND_BYTES, LAYER_BYTES
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.all_reduce_plan import AllReducePlan
from models.demos.qwen25_7b.plans.model_table import ModelTable
from models.demos.qwen25_7b.tt.placement import chip_of, row_topology
from tests.families import table_of
from tests.perf.conftest import USERS

pytestmark = pytest.mark.usefixtures("without_values")

POSITION = 100


@pytest.fixture(scope="module")
def table(mesh_device, config) -> ModelTable:
    return table_of(config, mesh_device.shape[1], chip=chip_of(mesh_device))


@pytest.fixture(scope="module")
def planned(table) -> StepBytes:
    return step_bytes(table, USERS, POSITION)


@pytest.fixture(scope="module")
def modeled(step, table, planned):
    """modeled(**options): a StepModel of the step."""
    how = dict(chips=table.parallel.tp, grid_cores=64, links=1, users=USERS, position=POSITION)
    return partial(model_step, step, weights=planned.weights - planned.padding, **how)


def matmuls(ops: tuple[Op, ...]) -> list[Op]:
    return [op for op in ops if op.name == "Matmul"]


def test_centered_keys_are_a_look_up_and_an_addition_in_two_layers(config, step):
    (centered, layers), (plain, others) = step.kinds
    more = Counter(op.name for op in centered) - Counter(op.name for op in plain)
    assert more == {"Embeddings": 1, "BinaryNg": 1} and len(centered) == len(plain) + 2
    assert (layers, others) == (2, config.num_hidden_layers - 2)


def test_the_table_has_a_row_an_operation_with_cores_and_dtype(step):
    _, _, *rows = (line.strip("| ").split(" | ") for line in op_table(step.layer).splitlines())
    assert len(rows) == len(step.layer)
    for row, op in zip(rows, step.layer):
        assert row[0].startswith(op.call)
        for result in op.results:
            assert result.dtype in row[2] and result.memory in row[3], row
            assert not result.shard or str(result.cores) in row[4], row


def test_each_matmul_has_its_hops(table, step):
    plans = table.decode_matmuls
    rows = op_table(step.layer, plans.values()).splitlines()[2:]
    found = [row.strip("| ").split(" | ")[-1] for row, op in zip(rows, step.layer) if op.name == "Matmul"]
    assert found == [hops(plans[name]) for name in ("QKV", "O", "gate + up", "gate", "up", "down") if name in plans]


def test_results_are_bfloat16_on_cores_but_for_attentions(step):
    """SDPA refuses a sharded result. No result lies in DRAM but what a reduce-scatter keeps between chips."""
    others = [op for op in step.layer if op.name != "ReduceScatter"]
    interleaved = [op.name for op in others for t in op.results if not t.shard]
    assert interleaved == ["SdpaDecode"]
    assert {t.dtype for op in step.layer for t in op.results} == {"bfloat16"}
    assert not [op.name for op in others for t in op.results if t.in_dram]


def test_matmuls_stream_the_bytes_that_are_planned(config, planned, step):
    ops = [*matmuls(step.layer) * config.num_hidden_layers, *matmuls(step.after)]
    weights = [op.inputs[1] for op in ops]
    assert all(op.dram_sharded and op.inputs[1].in_dram for op in ops)
    assert sum(weight.allocated for weight in weights) == planned.weights
    assert sum(weight.bytes for weight in weights) >= planned.weights - planned.padding  # the rest: columns of zeros


def test_attention_reads_and_all_reduces_send_the_bytes_that_are_planned(mesh_device, config, planned, modeled):
    all_reduce = AllReducePlan.make(mesh_device.shape[1], row_topology(mesh_device), config.hidden_size)
    model = modeled()
    assert sum(row.count * row.work.needed for row in model.rows if row.op.name == "SdpaDecode") == planned.cache
    sent = sum(row.count * row.work.sent for row in model.in_layer)
    assert sent == 2 * sent_by(all_reduce) * config.num_hidden_layers


def test_a_step_is_never_below_its_weights_and_its_parts_add_up(modeled):
    model = modeled()
    assert model.weights <= sum(row.count * row.work.needed for row in model.rows if row.work.streamed)
    assert model.floor == pytest.approx(model.weights / DRAM) and model.seconds > model.floor
    assert sum(model.parts().values()) == pytest.approx(model.seconds)


@pytest.mark.parametrize(
    "value, between, text",
    [
        (19.26, (0.776, 1.717), "19, 15 to 33"),
        (131.0, (0.776, 1.717), "130, 100 to 220"),
        (8.51, (0.776, 1.717), "8.5, 6.6 to 15"),
        (0.0509, (1.717, 0.776), "0.051, 0.039 to 0.087"),
        (5321.6, (0.58, 1.29), "5,300, 3,100 to 6,900"),
        (99.7, (0.9, 1.0), "100, 90 to 100"),
    ],
)
def test_a_figure_has_two_digits_and_its_range(value, between, text):
    assert ranged(value, between) == text


def report_file(folder, ops, size="7b", below="silicon"):
    machine = [{"what": "below ttnn", "found": below, "assumed": "silicon"}]
    file = folder / "report.json"
    file.write_text(json.dumps({"size": size, "machine": machine, "ops": ops}))
    return file


def test_measured_operations_count_with_their_own_times(tmp_path, step, modeled):
    linear, attention = matmuls(step.layer)[0], next(op for op in step.layer if op.name == "SdpaDecode")
    row = {"op": "ttnn.linear", "device_op": linear.key, "us": 100.0}
    ignored = [
        row | {"us": 1.0, "setting": "math_fidelity=LoFi"},
        row | {"op": "ttnn.transformer.attention_decode", "device_op": attention.key},
        row | {"device_op": linear.key.replace("bfloat8_b", "bfloat4_b")},
    ]
    measured = read_measured(report_file(tmp_path, [row, *ignored]))
    before, after = (modeled(measured=times) for times in ({}, measured))
    changed = [b for a, b in zip(before.rows, after.rows) if a != b]
    assert {b.op.key for b in changed} == {linear.key}
    assert all(b.seconds == pytest.approx(b.count * 100e-6) for b in changed)
    assert sum(after.parts().values()) == pytest.approx(after.seconds)


@pytest.mark.parametrize("dims, below", [("tiny", "silicon"), ("7b", "golden mesh")])
def test_times_that_are_not_the_7bs_on_silicon_are_refused(tmp_path, dims, below):
    with pytest.raises(UserError, match=f"{dims} dims, below ttnn {below}"):
        read_measured(report_file(tmp_path, [], dims, below))


def test_every_block_says_that_it_is_modeled(config, modeled):
    text = step_report(modeled(), title="a step", users=USERS, replicas=1, layers=config.num_hidden_layers)
    blocks = text.split("\n\n")
    sections = text.split("\n## ")
    assert len(sections) == 3 and all(LABEL in section.splitlines()[0] for section in sections)
    prose = [block for block in blocks if not block.startswith(("|", "#"))]
    assert prose and all("modeled, not measured" in block for block in prose), prose


SENT = {BFP8: "bfloat16", PERFORMANCE: "bfloat8_b"}


@pytest.fixture(scope="module", params=SENT, ids=lambda recipe: recipe.name)
def recipe(request):
    return request.param


@pytest.fixture(scope="module")
def layer(mesh_device, recipe, checkpoint) -> tuple[Op, ...]:
    ((_, step),) = capture_prefill(mesh_device, checkpoint.config, recipe, tokens=64)
    return step.layer


def test_the_all_gather_of_the_performance_recipe_alone_sends_bfloat8_b(mesh_device, recipe, layer):
    """A reduce-scatter of bfloat8_b would round the sum on every chip. The residual stays bfloat16."""
    chips = mesh_device.shape[1]
    sent = [(op.name, op.inputs[0].dtype) for op in layer if op.name.endswith(("Scatter", "Gather"))]
    assert sent == (2 * [("ReduceScatter", "bfloat16"), ("AllGather", SENT[recipe])] if chips > 1 else [])
    rounded = 2 * (chips > 1 and SENT[recipe] == "bfloat8_b") + 2 * (recipe.kv_cache == "bfloat8_b")  # sums, k and v
    assert [op.result.dtype for op in layer if op.name == "Typecast"] == ["bfloat8_b"] * rounded
    adds = [op for op in layer if op.call == "add"]
    assert [(op.inputs[0].dtype, op.result.dtype) for op in adds] == 2 * [("bfloat16", "bfloat16")]


OPERATION_BYTES = 7_700  # of a trace, at most: see engine/trace.py
START, ROWS, SEQUENCES = 1024, 256, 8


def test_a_trace_of_the_recipe_with_the_most_operations_fits_its_share(mesh_device):
    config = small_vocabulary(QWEN25_7B)
    counts = list(layer_kinds(config, PERFORMANCE).values())
    with one_layer_of_each_kind(mesh_device, config, PERFORMANCE, 1, 2048) as replica:
        end = START + ROWS // SEQUENCES
        chunk = PrefillChunk(Prompt(0, range(end), START, range(end // 32)), START, START, end)
        batch = PrefillBatch(ROWS, (chunk,) * SEQUENCES, chunked=True, sequences=SEQUENCES)
        step = capture_batch(replica, batch, counts)
    layers = sum(len(ops) * count for ops, count in step.kinds)
    assert layers * OPERATION_BYTES <= LAYER_BYTES * step.layers
    assert len(step.before + step.after) * OPERATION_BYTES <= AROUND_BYTES
