"""Machines by name, the replicas that they hold, and the fabric that a Galaxy's cables allow.

ParallelPlan puts every head, MLP column and token on a chip of a replica. All chips run one program.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import run_python
from qwen25_7b_lab.evaluation.model import split_for

from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.machines import MACHINES, machine
from models.demos.qwen25_7b.plans.parallel_plan import SPLITS, TILE, ParallelPlan

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


def with_heads(heads: int, kv_heads: int):
    return replace(QWEN25_7B, num_attention_heads=heads, num_key_value_heads=kv_heads)


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
    split = split_for(with_heads(heads, kv_heads), mesh, None)
    assert (split.tp, split.dp) == (tp, machine(mesh).chips // tp)


def test_a_requested_split_is_kept_or_refused():
    assert split_for(QWEN25_7B, "T3K", 2).tp == 2
    for kind, config, tp, message in (
        ("N300", with_heads(9, 3), 2, "3 KV heads"),
        ("N300", QWEN25_7B, 4, "tp must divide 2"),
    ):
        with pytest.raises(UserError, match=message):
            split_for(config, kind, tp)


def test_eight_chips_share_four_kv_heads():
    """Chips 2k and 2k+1 both hold KV head k. Its query heads split 4 + 3, plus a zero head."""
    plan = ParallelPlan.make(QWEN25_7B, 8)
    assert plan.kv_head_of == ((0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,))
    assert plan.q_head_of[:3] == ((0, 1, 2, 3), (4, 5, 6, None), (7, 8, 9, 10))
    assert plan.q_head_of[7] == (25, 26, 27, None)


@settings(deadline=None)
@given(tp=st.sampled_from(SPLITS), kv_heads=st.sampled_from((1, 2, 4, 8, 16)), group=st.integers(1, 9))
def test_every_query_head_is_once_on_a_chip_with_its_kv_head(tp, kv_heads, group):
    plan = ParallelPlan.make(with_heads(kv_heads * group, kv_heads), tp)
    placed = []
    for queries, kvs in zip(plan.q_head_of, plan.kv_head_of, strict=True):
        assert (len(queries), len(kvs)) == (plan.q_heads, plan.kv_heads)
        for place, query in enumerate(queries):
            if query is not None:
                assert kvs[place * plan.kv_heads // plan.q_heads] == query // group
                placed.append(query)
    assert sorted(placed) == list(range(kv_heads * group))


@settings(deadline=None)
@given(tp=st.sampled_from(SPLITS), columns=st.integers(1, 40_000))
def test_columns_are_whole_tiles_without_a_superfluous_tile(tp, columns):
    """Of the MLP, and of a vocabulary: fine-tunes cut its padding off."""
    config = replace(QWEN25_7B, intermediate_size=columns, vocab_size=columns, bos_token_id=None, eos_token_ids=())
    plan = ParallelPlan.make(config, tp)
    for width in (plan.mlp, plan.vocab):
        assert width % TILE == 0 and tp * width >= columns > tp * (width - TILE)


@pytest.mark.parametrize("config, tp, message", [
    *((QWEN25_7B, tp, f"^tp must divide .*; got {tp}$") for tp in (0, 3, 5, 16, -2)),
    (with_heads(12, 6), 4, "^tp must divide the model's 6 KV heads or be a multiple of them; got 4$"),
])  # fmt: skip
def test_a_number_of_chips_that_no_machine_has_or_the_model_cannot_share_is_refused(config, tp, message):
    with pytest.raises(UserError, match=message):
        ParallelPlan.make(config, tp)
