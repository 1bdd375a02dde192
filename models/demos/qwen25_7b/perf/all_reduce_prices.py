"""Prices of the all-reduces of a decode step, and the cheapest one. plans/all_reduce_plan.py holds the sizes that follow."""

from dataclasses import replace

from golden_mesh.perf.collective_prices import Collective

from ..config.recipe import AllReduceDtype
from ..plans.all_reduce_plan import AllReducePlan, Topology
from ..plans.grids import TILE

LAUNCH = 3.8e-6  # seconds of a device operation (golden_mesh.perf.calibration fits them)
# A less exact plan must cost at most this share of the more exact one. all_reduce_async rounds the sum once, a
# reduce-scatter on several chips. bfloat8_b partial sums add 0.0015 to KL (docs/numerics.md).
TWO_OPS_SHARE, NARROW_SHARE = 0.9, 0.75


def collectives(plan: AllReducePlan) -> tuple[Collective, ...]:
    """all_reduce_async counts as an all-gather: each chip sends its whole partial sum to all others."""
    topology = plan.topology if plan.chips == 8 else "line"  # no other ring was measured
    how, size = (plan.chips, topology), plan.partial_sum_bytes
    if plan.method == "none":
        return ()
    if plan.method == "all_reduce_async":
        return (Collective("all_gather", *how, plan.chips * size),)
    return Collective("reduce_scatter", *how, size), Collective("all_gather", *how, size)


def sent(plan: AllReducePlan) -> int:
    """Bytes through the busiest link in one direction."""
    return sum(collective.sent for collective in collectives(plan))


def seconds(plan: AllReducePlan, links: int = 1) -> float:
    """The price: kernels and launches."""
    return sum(collective.seconds(links) + LAUNCH for collective in collectives(plan))


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
    if whole_tiles and seconds(two_ops, links) < TWO_OPS_SHARE * seconds(plan, links):
        plan = two_ops
    return narrow if seconds(narrow, links) < NARROW_SHARE * seconds(plan, links) else plan
