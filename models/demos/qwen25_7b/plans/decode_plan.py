"""What all modules share in decode: how many users, and which cores hold what."""

from dataclasses import dataclass

import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig
from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES, Grid, ceil_div, residual_grid
from models.demos.qwen25_7b.plans.l1 import L1, SEMAPHORES
from models.demos.qwen25_7b.plans.memory_configs import height_sharded, row_major_cores, width_sharded


@dataclass(frozen=True)
class DecodePlan:
    """Decode works on one tile row, [1, 1, 32, width]; its first `batch` rows are users, the rest is never read."""

    batch: int  # users that a step computes, 1 to 32
    grid: Grid  # cores of a chip
    residual: Grid  # cores that hold the residual stream
    hidden: int  # columns of the residual stream
    chips: int  # of a replica

    @classmethod
    def make(cls, config: QwenConfig, plan: ParallelPlan, grid: Grid, users: int) -> "DecodePlan":
        """The plan for at least `users` users.

        Each has a core of its own, and nlp_concat_heads_decode wants these cores to be a rectangle: so beyond one row of
        cores the users are whole rows of cores (7B, 8x8 grid: 9 users are computed as 16). Rows without a user are idle.
        """
        batch = users if users <= grid.x else ceil_div(users, grid.x) * grid.x
        residual = residual_grid(config.hidden_size // TILE, grid, plan.tp)
        return cls(batch, grid, residual, config.hidden_size, plan.tp)

    @property
    def fused_qk(self) -> bool:
        """Whether q and k of all users lie on cores of their own, as the ops that take both at once want it.

        With worker dispatch (56 cores) that is up to 24 users; beyond (whole rows: 32), q and k share cores and go one after the other.
        """
        return 2 * self.batch <= self.grid.cores

    @property
    def l1_room(self) -> int:
        """Bytes of a core's L1 beside what stays: the rotary matrix, the buffers of two all-reduces with a summand from
        each chip, and what collectives keep."""
        summands = 2 * self.chips if self.chips > 1 else 0
        stays = 1 + summands * (self.hidden // TILE // self.residual.cores)  # tiles
        return L1 - stays * TILE_BYTES["bfloat16"] - SEMAPHORES

    @property
    def residual_memory(self) -> ttnn.MemoryConfig:
        """[1, 1, 32, hidden]"""
        return width_sharded(self.hidden, self.residual)

    def user_memory(self, width: int) -> ttnn.MemoryConfig:
        """[1, batch, 32, width]: a user's heads on a core of its own."""
        return height_sharded(width, row_major_cores(self.batch, self.grid))

    def rotary_memory(self, width: int) -> ttnn.MemoryConfig:
        """[1, rotary_users, 32, width]: rotary factors, where q and then k of each user lie."""
        return height_sharded(width, row_major_cores(self.rotary_users, self.grid))

    @property
    def rotary_users(self) -> int:
        """Cores that hold rotary factors: all of q's, then all of k's when they are rotated in one op."""
        return 2 * self.batch if self.fused_qk else self.batch
