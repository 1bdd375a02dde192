"""Figures in PERF.md, docs/sampling.md and lab/prices.md equal the code's figures."""

from pathlib import Path

import pytest
from qwen25_7b_lab.perf.plan_tables import hops_table
from qwen25_7b_lab.perf.report import step_ms
from qwen25_7b_lab.perf.step_model import model_decode
from qwen25_7b_lab.prices.published import STEPS, span

from models.demos.qwen25_7b.config import BFP8, QWEN25_7B
from models.demos.qwen25_7b.plans.chip import WORMHOLE
from models.demos.qwen25_7b.tt.placement import links_between

REPOSITORY = Path(__file__).parents[2]
PERF = "lab/prices.md"


def cells(document: str, section: str, table: int = 0) -> list[list[str]]:
    """Return the rows of one of the section's tables, without the header."""
    text = (REPOSITORY / document).read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    tables = [block for block in text.split("\n\n") if block.lstrip().startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in tables[table].strip().split("\n")[2:]]


def test_the_published_steps_are_those_of_the_table():
    written = []
    for step, *times, _ in cells(PERF, "Whole steps"):
        name, _, users = step.partition(", ")
        figures = ((machine, time.rstrip("\\*")) for machine, time in zip(("N150", "N300", "T3K"), times) if time)
        written += [(name, machine, bool(users), time) for machine, time in figures]
    assert sorted(written) == sorted(
        (s.dims.name, s.machine, s.users == 32, f"{1e3 * s.seconds:.1f}, {1e3 * s.modeled:.1f}") for s in STEPS
    )
    low, high = span()
    assert f"took {low:.2f} to {high:.2f} times their modeled times" in (REPOSITORY / PERF).read_text()


@pytest.mark.seven_b
@pytest.mark.chips(2)  # as the table
def test_a_verify_step_of_the_7b_is_that_of_its_table(mesh_device, mesh_name, host_alone):
    if mesh_name.startswith("P"):
        pytest.skip("the table is of Wormhole chips")
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
    # a step of one or two Wormhole chips is one on every machine
    machine = name if name.startswith("P") else {1: "N150", 2: "N300"}.get(chips, name)
    steps = {row.split(" x dp")[0]: step for row, _, _, step, *_ in rows}
    assert steps[f"{machine}, tp {chips}"] == step_ms(model.seconds).replace(" ms", "")


def test_the_hops_of_a_layer_are_the_commands():
    """A number of hops for each split."""
    totals = [line.split("|")[-2].strip() for line in hops_table(QWEN25_7B, BFP8, WORMHOLE).splitlines()[-4:]]
    text = (REPOSITORY / PERF).read_text()
    assert all(total in text.split("`perf hops`")[1].split("##")[0] for total in totals)
