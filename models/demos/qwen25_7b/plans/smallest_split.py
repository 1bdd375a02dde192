"""The split of a model over a machine's chips: the fewest chips a replica that hold the model and its users."""

from dataclasses import dataclass
from typing import Optional

from models.common.errors import UserError
from models.common.machines import MachineKind

from models.demos.qwen25_7b.config import MAX_USERS, SPLITS, ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import Grid
from models.demos.qwen25_7b.plans.memory_budget import (
    DRAM_BYTES,
    RESERVED_BYTES,
    fits_in,
    memory_budget,
    most,
)
from models.demos.qwen25_7b.plans.planner import check_decode, max_prefill_rows

GRID = Grid(8, 8)  # cores of a chip with ethernet dispatch
SHORTEST = 1024  # tokens: a context below this is no use for 32 users, so fewer users get this one
ROOM = DRAM_BYTES - RESERVED_BYTES  # bytes of a chip for the model and its cache


@dataclass(frozen=True)
class Split:
    """A split that runs a model on dp replicas. `users` sequences of a replica have up to `tokens` tokens each."""

    tp: int
    dp: int
    users: int
    tokens: int

    def __str__(self) -> str:
        return f"tp {self.tp} x dp {self.dp}: {self.users} x {self.tokens:,}"


def splits_that_fit(config: QwenConfig, recipe: Recipe, kind: MachineKind) -> list[Split]:
    """The smallest split of a machine for 32 users, then its largest split where that one holds a longer context.

    A machine that never holds 32 users of 1024 tokens gets its largest split, with as many users as it holds.
    UserError, with the reason on the largest split, for a model that no split of the machine runs.
    """
    recipe.check_layers(config.num_hidden_layers)
    found: list[Split] = []
    refusal: Optional[UserError] = None
    for tp in (tp for tp in SPLITS if kind.row % tp == 0):
        try:
            found.append(largest_split(config, recipe, kind, tp))
        except UserError as error:
            refusal = error
    if not found:
        raise refusal
    smallest = next((split for split in found if split.users == MAX_USERS), found[-1])
    return [smallest, found[-1]] if found[-1].tokens > smallest.tokens else [smallest]


def largest_split(config: QwenConfig, recipe: Recipe, kind: MachineKind, tp: int) -> Split:
    """The most that `tp` chips of a machine's row hold: 32 users, or fewer with a context of 1024 tokens.

    UserError if an op of the model has no plan on this split, or its weights do not fit a chip's DRAM.
    """
    plan = ParallelPlan.make(config, tp)
    decode = DecodePlan.make(
        config,
        plan,
        GRID,
        MAX_USERS,
        topology="ring" if kind.is_ring(tp) else "line",
        partial_sums=recipe.all_reduce_dtype,
        links=kind.links,
    )
    check_decode(config, plan, recipe, decode)
    max_prefill_rows(config, plan, recipe, GRID, decode.l1_room)

    fits, dp = fits_in(ROOM, config, plan, recipe), kind.chips // tp
    shortest = min(SHORTEST, config.context)
    if fits(MAX_USERS, shortest):
        longest = most(config.context, lambda tokens: fits(MAX_USERS, tokens))
        return Split(tp, dp, MAX_USERS, longest)
    users = most(MAX_USERS, lambda n: fits(n, shortest))
    if not users:
        budget = memory_budget(config, plan, recipe, shortest, blocks_for(1, shortest, BLOCK))
        raise UserError(
            f"tp {tp}: a chip needs {budget} for one user of {shortest} tokens, {ROOM / 1e9:.2f} GB are there: "
            "use more chips a replica (tp), or a smaller recipe"
        )
    return Split(tp, dp, users, shortest)
