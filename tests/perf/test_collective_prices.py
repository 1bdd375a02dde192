"""Prices of collectives are those of the measured rows at their ends, and the planned all-reduce is the cheapest."""

from dataclasses import replace

import pytest
from qwen25_7b_lab.perf.plan_tables import collectives
from qwen25_7b_lab.prices.collective_prices import ROWS, SMALLEST, collective_seconds
from qwen25_7b_lab.prices.constants import price
from qwen25_7b_lab.prices.laws import GAP, Case

from models.demos.qwen25_7b.config.recipe import AllReduceDtype
from models.demos.qwen25_7b.plans.all_reduce_plan import SIZES, AllReducePlan, Topology
from models.demos.qwen25_7b.plans.grids import TILE

# A less exact plan must cost at most this share of the more exact one. all_reduce_async rounds the sum once, a
# reduce-scatter on several chips. bfloat8_b partial sums add 0.0015 to KL (docs/numerics.md).
TWO_OPS_SHARE, NARROW_SHARE = 0.9, 0.75


@pytest.mark.parametrize("kind", ROWS, ids=str)
def test_rows_end_at_the_same_size_and_more_bytes_beyond_them_cost_their_last_rate(kind):
    rows = ROWS[kind]
    last = SMALLEST[kind[1]] << (len(rows) - 1)
    assert last == 32 << 20
    beyond = collective_seconds(*kind, 2 * last)
    assert 1.8e-6 * rows[-1] < beyond < 2.1e-6 * rows[-1]
    assert collective_seconds(*kind, 1) == 1e-6 * rows[0]


def all_reduce_price(plan: AllReducePlan, links: int = 1) -> float:
    """Microseconds of a step on Wormhole chips, gaps included."""
    cases = (
        Case(
            "collective", "wormhole", c.op, bytes=c.tensor_bytes, chips=c.chips, ring=c.topology == "ring", links=links
        )
        for c in collectives(plan)
    )
    return sum(price(case).us + GAP for case in cases)


def cheapest(
    chips: int, topology: Topology, hidden: int, narrowest: AllReduceDtype = "bfloat16", links: int = 1
) -> AllReducePlan:
    """The plan of AllReducePlan.make, chosen by price."""
    if chips == 1:
        return AllReducePlan(1, "line", hidden, "none", "bfloat16")
    plan = AllReducePlan(chips, topology, hidden, "all_reduce_async", "bfloat16")
    two_ops = replace(plan, method="reduce_scatter + all_gather")
    narrow = replace(plan, dtype=narrowest)
    whole_tiles = hidden % (chips * TILE) == 0  # in a chip's share of the columns
    if whole_tiles and all_reduce_price(two_ops, links) < TWO_OPS_SHARE * all_reduce_price(plan, links):
        plan = two_ops
    return narrow if all_reduce_price(narrow, links) < NARROW_SHARE * all_reduce_price(plan, links) else plan


@pytest.mark.parametrize("links", [1, 2, 4])
@pytest.mark.parametrize("narrowest", ["bfloat16", "bfloat8_b"])
@pytest.mark.parametrize("chips, topology", SIZES)
def test_the_planned_all_reduce_is_the_cheapest_by_price_at_every_width(chips, topology, narrowest, links):
    for hidden in range(32, 16384 + 1, 32):
        how = chips, topology, hidden, narrowest, links
        assert AllReducePlan.make(*how) == cheapest(*how), hidden
