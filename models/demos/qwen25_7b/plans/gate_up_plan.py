"""Whether gate and up are two matmuls or one."""

from dataclasses import dataclass

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.decode_matmul import streamed_tiles
from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES, ceil_div

HALF_CORES = 4  # cores that take each half of a joined matmul's result: two halves fill a row of the grid
# What joining must save of the MLP a layer: 3 % of its tiles, 1.7 us of DRAM. A launch goes with it, 6.4 us (perf/calibration.py);
# prefill pays with two ops more, which cut the result, and with L1: at tp 4 (2.5 %) its longest pass would be half as long.
WORTH_SHARE, WORTH_BYTES = 0.03, 500_000


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
        fewer = apart.read_tiles(hidden) - joined.read_tiles(hidden)
        saved = apart.bytes(hidden, recipe) - joined.bytes(hidden, recipe)
        worth = fewer >= WORTH_SHARE * apart.read_tiles(hidden) and saved >= WORTH_BYTES
        return joined if worth else apart

    def weights(self) -> list[int]:
        """Tiles of columns of the weights that make the product."""
        return [2 * self.tiles] if self.joined else [self.tiles, self.tiles]

    def read_tiles(self, hidden_tiles: int) -> int:
        """Of the MLP's weights a layer, down with them, as they are read."""
        return self._wide_tiles(hidden_tiles) + self.tiles * streamed_tiles(hidden_tiles)

    def bytes(self, hidden_tiles: int, recipe: Recipe) -> int:
        """The same in bytes."""
        wide = self._wide_tiles(hidden_tiles) * TILE_BYTES[recipe.mlp_in.format]
        return wide + self.tiles * streamed_tiles(hidden_tiles) * TILE_BYTES[recipe.mlp_out.format]

    def _wide_tiles(self, hidden_tiles: int) -> int:
        return sum(hidden_tiles * streamed_tiles(n) for n in self.weights())
