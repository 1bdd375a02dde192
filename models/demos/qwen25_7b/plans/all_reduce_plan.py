"""How the chips' partial sums of a decode step are added up, chosen by price. Pure functions."""

from dataclasses import dataclass, replace
from typing import Literal

from models.demos.qwen25_7b.config.recipe import AllReduceDtype
from models.demos.qwen25_7b.plans.collective_prices import Collective, Topology
from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES

AllReduceMethod = Literal["none", "all_reduce_async", "reduce_scatter + all_gather"]

LAUNCH = 3.8e-6  # seconds of a device operation (perf/calibration.py fits them)
# A less exact plan must cost at most this share of the more exact one. all_reduce_async rounds the sum once, a
# reduce-scatter on several chips. bfloat8_b partial sums add 0.0015 to KL (docs/numerics.md).
TWO_OPS_SHARE, NARROW_SHARE = 0.9, 0.75


@dataclass(frozen=True)
class AllReducePlan:
    """The all-reduce of partial sums [1, 1, 32, hidden] over a replica's chips."""

    chips: int
    topology: Topology
    hidden: int
    method: AllReduceMethod
    dtype: AllReduceDtype  # of the partial sums

    @classmethod
    def make(
        cls,
        chips: int,
        topology: Topology,
        hidden: int,
        narrowest: AllReduceDtype = "bfloat16",
        links: int = 1,
    ) -> "AllReducePlan":
        """The cheapest plan, or a more exact one of nearly that price.

        narrowest: the format that the recipe allows for partial sums. Only all_reduce_async may take bfloat8_b: a
        reduce-scatter would round the sum to it again on every chip.
        links: between neighboring chips.
        """
        if chips == 1:
            return cls(1, "line", hidden, "none", "bfloat16")
        plan = cls(chips, topology, hidden, "all_reduce_async", "bfloat16")
        two_ops = replace(plan, method="reduce_scatter + all_gather")
        whole_tiles = hidden % (chips * TILE) == 0  # in a chip's share of the columns
        if whole_tiles and two_ops.seconds(links) < TWO_OPS_SHARE * plan.seconds(links):
            plan = two_ops
        narrow = cls(chips, topology, hidden, "all_reduce_async", narrowest)
        return narrow if narrow.seconds(links) < NARROW_SHARE * plan.seconds(links) else plan

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """all_reduce_async counts as an all-gather: each chip sends its whole partial sum to all others."""
        how, size = (self.chips, self.topology), self.partial_sum_bytes
        if self.method == "none":
            return ()
        if self.method == "all_reduce_async":
            return (Collective("all_gather", *how, self.chips * size),)
        return Collective("reduce_scatter", *how, size), Collective("all_gather", *how, size)

    @property
    def partial_sum_bytes(self) -> int:
        return self.hidden // TILE * TILE_BYTES[self.dtype]

    @property
    def sent(self) -> int:
        """Bytes through the busiest link in one direction."""
        return sum(collective.sent for collective in self.collectives)

    def seconds(self, links: int = 1) -> float:
        """The price: kernels and launches."""
        return sum(collective.seconds(links) + LAUNCH for collective in self.collectives)

    def __str__(self) -> str:
        return f"{self.method} of {self.dtype} over a {self.topology} of {self.chips} chips"
