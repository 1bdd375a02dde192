"""silu(gate(x)) * up(x): two matmuls as a rule, one where that leaves out enough padding. HF: mlp.gate_proj, mlp.up_proj."""

from dataclasses import dataclass

import torch
import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.tt.decode_plan import DecodePlan
from models.demos.qwen25_7b.tt.grids import TILE, TILE_BYTES, ceil_div, most_even
from models.demos.qwen25_7b.tt.linear import TtLinear
from models.demos.qwen25_7b.tt.matmul_plans import streamed_tiles
from models.demos.qwen25_7b.tt.memory_configs import row_major_cores, width_sharded_over

SILU = [ttnn.UnaryOpType.SILU]
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
        read = sum(hidden_tiles * streamed_tiles(n) for n in self.weights()) * TILE_BYTES[recipe.mlp_in]
        return read + self.tiles * streamed_tiles(hidden_tiles) * TILE_BYTES[recipe.mlp_out]


class TtGateUp:
    """Two matmuls and their product. gate, up: torch [hidden, tp * mlp] in mesh order."""

    def __init__(
        self, mesh_device: ttnn.MeshDevice, gate: torch.Tensor, up: torch.Tensor, recipe: Recipe, decode: DecodePlan
    ):
        wide = dict(
            dim=1, format=recipe.mlp_in, decode=decode, in_cores=decode.residual.cores, out_cores=decode.grid.cores
        )
        self.gate, self.up = TtLinear(mesh_device, gate, **wide), TtLinear(mesh_device, up, **wide)
        self.out_cores = self.gate.decode_plan.out_cores

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> [1, 1, 32, mlp] on out_cores."""
        gate = self.gate.forward_decode(x)  # [1, 1, 32, mlp]
        up = self.up.forward_decode(x)  # [1, 1, 32, mlp]
        return _product(gate, up, gate.memory_config())

    def forward_prefill(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, S, hidden] interleaved in DRAM -> [1, 1, S, mlp]."""
        return _product(self.gate.forward_prefill(x), self.up.forward_prefill(x), ttnn.DRAM_MEMORY_CONFIG)


class TtJoinedGateUp:
    """One matmul whose result [gate | up] is looked at in two halves. gate, up: torch [hidden, tp * columns] in mesh order."""

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        gate: torch.Tensor,
        up: torch.Tensor,
        recipe: Recipe,
        decode: DecodePlan,
        tp: int,
    ):
        of_chips = torch.cat([w.unflatten(1, (tp, -1)) for w in (gate, up)], dim=2)  # [hidden, tp, 2 * columns]
        self.columns = of_chips.shape[2] // 2
        self.both = TtLinear(
            mesh_device,
            of_chips.flatten(1),
            dim=1,
            format=recipe.mlp_in,
            decode=decode,
            in_cores=decode.residual.cores,
            out_cores=2 * HALF_CORES,
        )
        self.out_cores = most_even(self.columns // TILE, decode.grid.cores)
        self.memory = width_sharded_over(self.columns, row_major_cores(self.out_cores, decode.grid))

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> [1, 1, 32, columns] on out_cores."""
        both = self.both.forward_decode(
            x
        )  # [1, 1, 32, 2 * columns], gate on the first four cores of a row, up on the last
        gate, up = (ttnn.narrow(both, -1, first, self.columns) for first in (0, self.columns))  # views
        hidden = ttnn.mul(gate, up, input_tensor_a_activations=SILU, memory_config=self.memory)
        ttnn.deallocate(both)
        return hidden

    def forward_prefill(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, S, hidden] interleaved in DRAM -> [1, 1, S, columns]."""
        both = self.both.forward_prefill(x)  # [1, 1, S, 2 * columns]
        rows = both.shape[2]
        gate, up = (
            ttnn.slice(both, (0, 0, 0, first), (1, 1, rows, first + self.columns)) for first in (0, self.columns)
        )
        ttnn.deallocate(both)
        return _product(gate, up, ttnn.DRAM_MEMORY_CONFIG)


def _product(gate: ttnn.Tensor, up: ttnn.Tensor, memory: ttnn.MemoryConfig) -> ttnn.Tensor:
    hidden = ttnn.mul(gate, up, input_tensor_a_activations=SILU, memory_config=memory)
    ttnn.deallocate(gate)
    ttnn.deallocate(up)
    return hidden
