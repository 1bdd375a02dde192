"""What attention works in, by itself or in a layer: a paged cache, rotary factors, and users amid their texts."""

from typing import Optional, Sequence

import torch
import ttnn

from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.plans.grids import Grid
from models.demos.qwen25_7b.tt.attention import TtQwenAttention
from models.demos.qwen25_7b.tt.rotary import TtRotary
from tests.pcc.bench import Bench
from tests.pcc.paged_cache import CONTEXT, PagedCache
from tests.pcc.reference import Reference

POSITIONS = (0, 31, 32, 127, 1023)  # where a decode step may go wrong: the ends of blocks, and of the context


def mixed(batch: int) -> tuple[int, ...]:
    """A position of POSITIONS for each user, in no order."""
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(batch))
    return tuple(POSITIONS[i % len(POSITIONS)] for i in order.tolist())


class AttentionWorld(Bench):
    """A bench with a cache (one for whichever layer is tried) and attention modules that use it."""

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        reference: Reference,
        recipe: Recipe,
        *,
        batch: int,
        grid: Optional[Grid] = None,
    ):
        super().__init__(mesh_device, reference, batch=batch, grid=grid)
        self.recipe = recipe
        self.rotary = TtRotary(mesh_device, self.config, self.decode, CONTEXT)
        self.cache = PagedCache(self, recipe)
        all_reduce = self.all_reduce()
        common = (self.config, self.plan, recipe, self.decode, self.rotary, self.cache.on_chips, all_reduce)
        self.attention = {i: TtQwenAttention(mesh_device, self.weights.attention(i), *common) for i in reference.layers}

    def run_decode(self, module, x: torch.Tensor, positions: Sequence[int]) -> list[torch.Tensor]:
        """A step of attention or a layer: a token x[u] at positions[u] of each user -> [batch, hidden] of each chip."""
        positions = torch.tensor(positions)
        rotation = self.rotary.rotation_decode(self.put_ints(self.rotary_positions(positions), ttnn.uint32))
        page_table = self.put_ints(self.cache.page_table, ttnn.int32)
        y = module.forward_decode(self.put_users(x), rotation, self.put_ints(positions, ttnn.int32), page_table)
        assert y.memory_config() == self.decode.residual_memory
        return self.take_rows(y, len(x))

    def run_prefill(self, module, x: torch.Tensor, user: int) -> list[torch.Tensor]:
        """The same for a prompt x [tokens, hidden] of one user -> [tokens, hidden] of each chip."""
        rotation = self.rotary.rotation_prefill(self.put_ints(torch.arange(len(x))[None], ttnn.uint32))
        page_table = self.put_ints(self.cache.prefill_table(user, len(x), len(x)), ttnn.int32)
        y = module.forward_prefill(self.put_tokens(x), rotation, page_table)
        return self.take_rows(y, len(x))
