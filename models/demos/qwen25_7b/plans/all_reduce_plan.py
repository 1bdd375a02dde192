"""How the chips' partial sums of a decode step are added up, chosen by their size. Pure functions."""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple

from ..config.recipe import AllReduceDtype
from .grids import TILE, TILE_BYTES

AllReduceMethod = Literal["none", "all_reduce_async", "reduce_scatter + all_gather"]
Topology = Literal["line", "ring"]


class Sizes(NamedTuple):
    """Bytes of a bfloat16 partial sum, for each link, from which another plan is cheaper than its all_reduce_async."""

    narrow: float  # all_reduce_async of bfloat8_b
    two_ops: float  # reduce_scatter and all_gather
    two_ops_over_narrow: float  # those two, where bfloat8_b is allowed


# By chips and topology, from the measured prices of collectives (tests/perf/test_collective_prices.py).
SIZES: dict[tuple[int, Topology], Sizes] = {
    (2, "line"): Sizes(93_696, inf, inf),
    (4, "line"): Sizes(77_312, 278_528, 449_024),
    (4, "ring"): Sizes(77_312, 278_528, 449_024),  # the line's: no ring of four was measured
    (8, "line"): Sizes(46_592, 104_960, 114_688),
    (8, "ring"): Sizes(67_584, 134_656, 134_656),
}


@dataclass(frozen=True)
class AllReducePlan:
    """The all-reduce of partial sums [1, 1, 32, hidden] over a replica's chips."""

    chips: int
    topology: Topology
    hidden: int
    method: AllReduceMethod
    dtype: AllReduceDtype  # the partial sums' format

    @classmethod
    def make(
        cls, chips: int, topology: Topology, hidden: int, narrowest: AllReduceDtype = "bfloat16", links: int = 1
    ) -> "AllReducePlan":
        """The cheapest plan, or a more exact one of nearly that price.

        narrowest: the format that the recipe allows for partial sums. Only all_reduce_async may take bfloat8_b: a
        reduce-scatter would round the sum to it again on every chip.
        links: between neighboring chips.
        """
        plan = cls(chips, topology, hidden, "none", "bfloat16")
        if chips == 1:
            return plan
        size, sizes = plan.partial_sum_bytes / links, SIZES[chips, topology]
        narrow = narrowest == "bfloat8_b" and size >= sizes.narrow
        whole_tiles = hidden % (chips * TILE) == 0  # in a chip's share of the columns
        if whole_tiles and size >= (sizes.two_ops_over_narrow if narrow else sizes.two_ops):
            return replace(plan, method="reduce_scatter + all_gather")
        return replace(plan, method="all_reduce_async", dtype="bfloat8_b" if narrow else "bfloat16")

    @property
    def partial_sum_bytes(self) -> int:
        return self.hidden // TILE * TILE_BYTES[self.dtype]
