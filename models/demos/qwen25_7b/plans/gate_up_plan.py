"""Whether gate and up are two matmuls or one."""

from dataclasses import dataclass

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.decode_matmul import streamed_tiles
from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES, ceil_div

HALF_CORES = 4  # cores that take each half of a joined matmul's result: two halves fill a row of the grid
WORTH_BYTES, WORTH_SHARE = 1_000_000, 0.03  # what joining must save of the MLP's bytes a layer: 3.5 us of DRAM, and 3 %


@dataclass(frozen=True)
class GateUpPlan:
    """joined: gate and up are one weight [gate | up], streamed in one matmul.

    Each bank of DRAM gives out as many columns as the fullest, so two weights of 74 tiles (7B, tp 8) are read as 2 x 84
    tiles, and one of 2 x 76 as 156.
    """

    tiles: int  # columns of gate, of up, and rows of down that a chip holds; past the model's there are zeros
    joined: bool

    @classmethod
    def make(cls, config: QwenConfig, plan: ParallelPlan, recipe: Recipe) -> "GateUpPlan":
        hidden, tiles = config.hidden_size // TILE, plan.mlp // TILE
        apart, joined = cls(tiles, False), cls(ceil_div(tiles, HALF_CORES) * HALF_CORES, True)
        before, after = (p.bytes(hidden, recipe) for p in (apart, joined))
        return joined if before - after >= max(WORTH_BYTES, WORTH_SHARE * before) else apart

    def weights(self) -> list[int]:
        """Tiles of columns of the weights that make the product."""
        return [2 * self.tiles] if self.joined else [self.tiles, self.tiles]

    def bytes(self, hidden_tiles: int, recipe: Recipe) -> int:
        """Of the MLP's weights a layer, down with them, as they are read."""
        read = sum(hidden_tiles * streamed_tiles(n) for n in self.weights()) * TILE_BYTES[recipe.mlp_in.format]
        return read + self.tiles * streamed_tiles(hidden_tiles) * TILE_BYTES[recipe.mlp_out.format]
