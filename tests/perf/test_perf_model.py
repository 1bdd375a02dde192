"""The performance model of steps and prompts: bounds of ops, sums, calibration."""

import json
from dataclasses import replace

import pytest
from golden_mesh.graph.device_ops import Op, Tensor
from qwen25_7b_lab.perf.capture import Step
from qwen25_7b_lab.perf.commands import read_measured
from qwen25_7b_lab.perf.report import LABEL, step_report
from qwen25_7b_lab.perf.step_model import model_step
from qwen25_7b_lab.prices.op_costs import DRAM
from qwen25_7b_lab.prices.prices import ranged

from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan

PLAN = ParallelPlan.make(QWEN25_7B, 2)
HERE = dict(chips=2, grid_cores=64, users=32, position=1024)

ROW = Tensor((1, 1, 32, 3584), "bfloat16", True, "L1", "width-sharded", (32, 128), 28)


def streaming(rows: int, columns: int, dtype: str = "bfloat8_b", fidelity: str = "HiFi2") -> Op:
    """Return a decode matmul as ttnn reports it.

    Columns are whole tiles, equally many for each of the twelve banks.
    """
    shard = (rows, -(-columns // 384) * 32)
    weight = Tensor((1, 1, rows, columns), dtype, True, "DRAM", "width-sharded", shard, 12)
    x = replace(ROW, shape=(1, 1, 32, rows))
    result = replace(ROW, shape=(1, 1, 32, columns))
    factory = "MatmulMultiCoreReuseMultiCastDRAMShardedProgramFactory"
    return Op("Matmul", "linear", factory, fidelity, (x, weight), (result,))


def attention(dtype: str = "bfloat16") -> Op:
    cache = Tensor((65, PLAN.kv_heads, 32, 128), dtype, True, "DRAM", "interleaved")
    q = Tensor((1, 32, PLAN.q_heads, 128), "bfloat16", True, "L1", "height-sharded", (32, 128), 32)
    call = "paged_scaled_dot_product_attention_decode"
    return Op("SdpaDecode", call, "", "HiFi4", (q, cache, cache), (q,))


def in_l1(name: str, call: str) -> Op:
    return Op(name, call, "", None, (ROW,), (ROW,))


ALL_REDUCE = in_l1("AllReduceAsync", "all_reduce_async")
WEIGHTS = 28 * 112 * (72 + 56) * 1088 + 2 * 112 * 396 * 1088  # bytes of STEP's, without padding
LAYER = (in_l1("LayerNorm", "rms_norm"), streaming(3584, 2304), attention(), streaming(1792, 3584), ALL_REDUCE)
STEP = Step(before=(), kinds=((LAYER, 28),), after=(streaming(3584, 12672), streaming(3584, 12672)))


@pytest.mark.parametrize("users, position", [(1, 0), (32, 1024)])
def test_a_step_is_never_below_its_weights_and_its_parts_add_up(users, position):
    here = HERE | dict(users=users, position=position)
    model = model_step(STEP, weights=WEIGHTS, links=1, **here)
    assert sum(row.count * row.work.needed for row in model.rows if row.work.streamed) == WEIGHTS
    assert model.floor == pytest.approx(WEIGHTS / DRAM) and model.seconds > model.floor
    assert sum(model.parts().values()) == pytest.approx(model.seconds)
    assert model.launches == 28 * 5 + 2


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


def test_measured_operations_count_with_their_own_times(tmp_path):
    row = {"op": "ttnn.linear", "device_op": streaming(3584, 2304).key, "us": 100.0}
    ignored = [
        row | {"us": 1.0, "setting": "math_fidelity=LoFi"},
        row | {"op": "ttnn.transformer.attention_decode", "device_op": attention().key},
        row | {"device_op": streaming(3584, 2304, "bfloat4_b").key},
    ]
    measured = read_measured(report_file(tmp_path, [row, *ignored]))
    how = dict(weights=WEIGHTS, links=1, **HERE)
    before, after = (model_step(STEP, measured=times, **how) for times in ({}, measured))
    changed = [(a, b) for a, b in zip(before.rows, after.rows) if a != b]
    assert [b.op for _, b in changed] == [streaming(3584, 2304)]
    assert changed[0][1].seconds == pytest.approx(28 * 100e-6)
    assert sum(after.parts().values()) == pytest.approx(after.seconds)


@pytest.mark.parametrize("dims, below", [("tiny", "silicon"), ("7b", "golden mesh")])
def test_times_that_are_not_the_7bs_on_silicon_are_refused(tmp_path, dims, below):
    with pytest.raises(UserError, match=f"{dims} dims, below ttnn {below}"):
        read_measured(report_file(tmp_path, [], dims, below))


def test_every_block_says_that_it_is_modeled():
    model = model_step(STEP, weights=WEIGHTS, links=1, **HERE)
    text = step_report(model, title="a step", users=32, replicas=1, layers=28)
    blocks = text.split("\n\n")
    sections = text.split("\n## ")
    assert len(sections) == 3 and all(LABEL in section.splitlines()[0] for section in sections)
    prose = [block for block in blocks if not block.startswith(("|", "#"))]
    assert prose and all("modeled, not measured" in block for block in prose), prose
