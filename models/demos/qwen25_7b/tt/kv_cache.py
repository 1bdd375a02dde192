"""The paged KV cache: one layer's keys and values, in blocks that page tables deal out to users."""

import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.page_plan import BLOCK, PagePlan
from models.demos.qwen25_7b.tt.placement import dtype_of


class TtKVCache:
    """keys, values: [blocks, kv_heads, 32, head_dim] on each chip, its own KV heads, in DRAM."""

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        config: QwenConfig,
        plan: ParallelPlan,
        recipe: Recipe,
        decode: DecodePlan,
        pages: PagePlan,
    ):
        self.fused = decode.fused_qk
        self.dtype = dtype_of(recipe.kv_cache)
        self.shape = (pages.blocks, plan.kv_heads, BLOCK, config.head_dim)
        # Zeros, not what the memory happens to hold: attention masks unwritten rows, but 0 * NaN is NaN.
        self.keys, self.values = (
            ttnn.zeros(self.shape, self.dtype, ttnn.TILE_LAYOUT, mesh_device, ttnn.DRAM_MEMORY_CONFIG) for _ in "kv"
        )

    def update_decode(self, k: ttnn.Tensor, v: ttnn.Tensor, positions: ttnn.Tensor, page_table: ttnn.Tensor) -> None:
        """k, v: [1, batch, kv_heads, head_dim] height-sharded, written at each user's position [batch]; NOWHERE: not."""
        if self.fused:
            ttnn.experimental.paged_fused_update_cache(
                self.keys, k, self.values, v, update_idxs_tensor=positions, page_table=page_table
            )
            return
        for cache, x in ((self.keys, k), (self.values, v)):
            ttnn.experimental.paged_update_cache(cache, x, update_idxs_tensor=positions, page_table=page_table)

    def fill_prefill(self, k: ttnn.Tensor, v: ttnn.Tensor, page_table: ttnn.Tensor) -> None:
        """k, v: [1, kv_heads, S, head_dim] interleaved, written from position 0 into the blocks that the table names.

        page_table: [1, S / BLOCK] int32, the user's; rows whose entry is NO_BLOCK are written nowhere.
        """
        for cache, x in ((self.keys, k), (self.values, v)):
            stored = x if x.dtype == self.dtype else ttnn.typecast(x, self.dtype)  # the op wants the cache's format
            ttnn.experimental.paged_fill_cache(cache, stored, page_table, batch_idx=0)
            if stored is not x:
                ttnn.deallocate(stored)
