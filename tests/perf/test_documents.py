"""Figures in PERF.md, docs/performance_model.md, docs/sampling.md and golden_mesh/docs/perf.md equal the code's figures."""

from pathlib import Path

import pytest
from golden_mesh.perf import calibration as cal
from golden_mesh.perf.chain import chain_seconds, held_out_steps, layer_hops

from models.demos.qwen25_7b.config import BFP8, BFP8_KV8, QWEN25_7B
from models.demos.qwen25_7b.perf.plan_tables import chain_table, hops_table
from models.demos.qwen25_7b.perf.report import step_ms
from models.demos.qwen25_7b.perf.step_model import model_decode
from models.demos.qwen25_7b.plans.chip import WORMHOLE
from models.demos.qwen25_7b.tt.placement import links_between

REPOSITORY = Path(__file__).parents[2]


def cells(document: str, section: str, table: int = 0) -> list[list[str]]:
    """Return the rows of one of the section's tables, without the header."""
    text = (REPOSITORY / document).read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    tables = [block for block in text.split("\n\n") if block.lstrip().startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in tables[table].strip().split("\n")[2:]]


def test_the_misses_are_those_of_the_held_out_points():
    rows, points = cells("golden_mesh/docs/perf.md", "What it misses"), cal.calibrate().held_out
    assert len(rows) == len(points) == 17
    for (name, published, modeled, miss, _), point in zip(rows, points):
        model, machine = point.label.split(" on ")
        assert model.split(",")[0] in name and machine in name, name
        assert published.split()[0] == f"{point.published:.1f}", name
        assert modeled == f"{point.modeled:.1f}", name
        assert miss == f"{point.residual:+.0%}".replace("%", " %"), name


def test_the_published_steps_with_a_chain_are_those_of_the_table():
    rows = cells("golden_mesh/docs/perf.md", "What the chain of multicasts explains")
    for (name, *figures), (key, point) in zip(rows, held_out_steps(), strict=True):
        assert name.split(", ")[0] in point.label and point.label.split(" on ")[-1] in name
        took, model = 1 / point.published, 1 / point.modeled
        chain = model + chain_seconds(*key)
        times = (f"{1e3 * seconds:.1f}" for seconds in (took, model, chain))
        shares = (f"{took / model:.2f}", f"{took / chain:.2f}")
        assert figures == [f"{layer_hops(*key)}", *times, *shares], name


@pytest.mark.seven_b
@pytest.mark.chips(2)  # as the table
def test_a_verify_step_of_the_7b_is_that_of_its_table(mesh_device, host_alone):
    plain, four = cells("models/demos/qwen25_7b/docs/sampling.md", "What a verify step costs")[0][1:3]
    for tokens, written in ((1, plain), (4, four)):
        with host_alone():
            model, _ = model_decode(mesh_device, QWEN25_7B, BFP8, users=1, position=1024, links=1, tokens=tokens)
        assert step_ms(model.seconds) == written


@pytest.mark.seven_b
@pytest.mark.galaxy
def test_the_step_of_the_7b_is_that_of_the_first_table(mesh_device, mesh_name, host_alone):
    links = links_between(mesh_device)
    with host_alone():
        model, _ = model_decode(mesh_device, QWEN25_7B, BFP8, users=32, position=1024, links=links)
    rows = cells("models/demos/qwen25_7b/PERF.md", "A step, a prompt, a load")
    name, chips = mesh_name.partition("-tp")[0], mesh_device.shape[1]
    machine = {1: "N150", 2: "N300"}.get(chips, name)  # a step of one or two chips is one on every machine
    steps = {row.split(" x dp")[0]: step for row, _, _, step, *_ in rows}
    assert steps[f"{machine}, tp {chips}"] == step_ms(model.seconds).replace(" ms", "")


MODEL = "models/demos/qwen25_7b/docs/performance_model.md", "The chain of multicasts"


def test_the_table_of_hops_is_the_commands():
    split = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in hops_table(QWEN25_7B, BFP8, WORMHOLE).splitlines()
    ]
    written = [[cell.removesuffix(" (joined)") for cell in row] for row in cells(*MODEL)]
    assert written == split[-4:]


def test_the_steps_with_a_chain_are_those_of_the_model():
    """Without a capture: the step without the chain is the written one, in tenths of a millisecond."""
    rows = cells(*MODEL, table=1)
    steps = {int(split.removeprefix("tp ")): 1e-3 * float(plain) for split, plain, *_ in rows}
    for written, line in zip(rows, chain_table(QWEN25_7B, BFP8_KV8, "Qwen2.5-7B", WORMHOLE, steps).splitlines()[2:]):
        computed = [float(cell) for cell in line.strip("| tp").split("|") if cell.strip()]
        assert [float(cell) for cell in (written[0][3:], *written[1:]) if cell] == pytest.approx(computed, abs=0.11)
