"""Machines by name, the replicas that they hold, and the fabric that a Galaxy's cables allow."""

from dataclasses import replace

import pytest
from programs import run_python
from qwen25_7b_lab.evaluation.model import split_for

from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.machines import MACHINES, machine

# A Galaxy whose cables do not close the rows and columns to rings. ttnn refuses its 4x8 chips on a ring's fabric.
WITHOUT_TORUS = """
from dataclasses import replace
from golden_mesh.start import systems

def closes(number):  # links are listed chip by chip, row by row: four to the right, four down
    chip, down = number // 8, number % 8 >= 4
    return chip >= 24 if down else chip % 8 == 7

galaxy = systems.SYSTEMS["GALAXY"]
links = tuple(link for number, link in enumerate(galaxy.links) if not closes(number))
systems.SYSTEMS["GALAXY"] = replace(galaxy, links=links)

from models.demos.qwen25_7b.tt.mesh import open_replicas, select_backend
from models.demos.qwen25_7b.plans.machines import Split
select_backend("golden", "GALAXY")
with open_replicas(Split.of("GALAXY")) as rows:
    from models.demos.qwen25_7b.tt.placement import links_between, row_topology
    print(len(rows), *rows[0].shape, row_topology(rows[0]), links_between(rows[0]))
"""


def test_a_machine_is_known_by_the_fields_name_too():
    names = {"n300": "N300", "TG": "GALAXY", "tg": "GALAXY", "Galaxy": "GALAXY", "n150X4": "N150x4", "P300x2": "P150x4"}
    assert {name: machine(name).name for name in names} == names


def test_only_whole_rows_of_more_than_two_chips_are_rings():
    rings = {(name, tp) for name, kind in MACHINES.items() for tp in (1, 2, 4, 8) if kind.is_ring(tp)}
    assert rings == {("N150x4", 4), ("T3K", 8), ("GALAXY", 8), ("P150x4", 4), ("P150x8", 8)}


def test_the_rows_of_a_galaxy_without_a_torus_are_lines():
    done = run_python("-c", WITHOUT_TORUS)
    assert done.stdout.splitlines()[-1:] == ["4 1 8 line 4"], done.stderr[-2000:]


@pytest.mark.parametrize(
    "mesh, heads, kv_heads, tp",
    [("T3K", 28, 4, 8), ("T3K", 14, 2, 8), ("T3K", 9, 3, 1), ("N300", 9, 3, 1), ("T3K", 12, 6, 2), ("N150", 28, 4, 1)],
)
def test_the_default_split_has_as_many_chips_as_share_the_kv_heads(mesh, heads, kv_heads, tp):
    config = replace(QWEN25_7B, num_attention_heads=heads, num_key_value_heads=kv_heads)
    split = split_for(config, mesh, None)
    assert (split.tp, split.dp) == (tp, machine(mesh).chips // tp)


def test_a_requested_split_is_kept_or_refused():
    three = replace(QWEN25_7B, num_attention_heads=9, num_key_value_heads=3)
    assert split_for(QWEN25_7B, "T3K", 2).tp == 2
    for kind, config, tp, message in (("N300", three, 2, "3 KV heads"), ("N300", QWEN25_7B, 4, "tp must divide 2")):
        with pytest.raises(UserError, match=message):
            split_for(config, kind, tp)
