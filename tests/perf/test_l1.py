"""The plans' picture of a core's L1 is ttnn's, op by op: what lies there in a step, in a pass, and in one that goes on."""

from dataclasses import replace

import pytest

from models.demos.qwen25_7b.config import PERFORMANCE, QWEN25_7B
from models.demos.qwen25_7b.perf.l1 import Picture, picture_pass, picture_step
from models.demos.qwen25_7b.perf.l1_report import draw, l1_table
from models.demos.qwen25_7b.plans.l1 import L1
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights import Checkpoint

SEMAPHORES = 512  # bytes that collectives take at their first run: once a core, beside what lies there
# Planned circular buffers by those that ttnn reports: attention's were fitted to heads of 128 channels, and are too few for
# the small checkpoint's of 32, whose L1 is nearly empty.
BUFFERS = {"tiny": (0.8, 1.3), "7b": (1.0, 1.25)}


@pytest.fixture(scope="module")
def config(size):
    if size == "tiny":
        return Checkpoint.open(SMALL_CHECKPOINT).config
    return replace(QWEN25_7B, vocab_size=4096, bos_token_id=None, eos_token_ids=())


@pytest.fixture(scope="module", params=["step", "pass", "continued pass"])
def picture(request, mesh_device, config) -> Picture:
    if request.param == "step":
        return picture_step(mesh_device, config, PERFORMANCE, 32)
    return picture_pass(mesh_device, config, PERFORMANCE, 256, continued="continued" in request.param)


def test_every_tensor_of_a_layer_is_planned_and_no_other(picture):
    """But for what a plan counts and ttnn does without: reduce-scatter's buffer, and attention's result in whichever layout is
    larger, before O reads it."""
    spare = {"reduce-scatter": "its buffer", "o": "attention"}
    for row in picture.rows:
        unused = sum(size for name, size in row.planned.tensors if name == spare.get(row.planned.op))
        assert -SEMAPHORES <= row.planned_tensors - row.tensors <= unused, f"{row.planned.op}: {row}"


def test_circular_buffers_that_ttnn_reports_are_those_of_the_plan(picture, size):
    least, most = BUFFERS[size]
    for row in picture.rows:
        if row.buffers and row.planned.buffers:
            assert least <= row.planned.buffers / row.buffers <= most, f"{row.planned.op}: {row}"


def test_what_stays_is_within_what_is_set_aside(picture):
    assert picture.stays_taken <= picture.stays < L1 // 4


def test_the_table_has_a_line_an_op_and_the_picture_is_a_file(picture, tmp_path):
    lines = [line for line in l1_table(picture).splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[0][2:] for line in lines] == [row.planned.op for row in picture.rows]
    for line, row in zip(lines, picture.rows):
        assert f"{row.planned_tensors:,} | {row.tensors:,}" in line
    draw(tmp_path / "l1.png", "a layer", picture)
    assert (tmp_path / "l1.png").read_bytes().startswith(b"\x89PNG")
