"""The paged KV cache: one layer's keys and values, in blocks that page tables deal out to texts."""

import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.tt.placement import dtype_of


class TtKVCache:
    """keys, values: [blocks, kv_heads, block, head_dim] on each chip, its own KV heads, in DRAM.

    It belongs to whoever serves, not to the model: made before or after it, with as many blocks as there is room for.
    """

    def __init__(
        self, mesh_device: ttnn.MeshDevice, config: QwenConfig, plan: ParallelPlan, format: str, blocks: int, block: int
    ):
        """format: the recipe's name for it. block: tokens in a block, 32, 64 or 128."""
        self.block, self.dtype = block, dtype_of(format)
        self.shape = (blocks, plan.kv_heads, block, config.head_dim)
        # Zeros, not what the memory happens to hold: attention masks unwritten rows, but 0 * NaN is NaN.
        self.keys, self.values = (
            ttnn.zeros(self.shape, self.dtype, ttnn.TILE_LAYOUT, mesh_device, ttnn.DRAM_MEMORY_CONFIG) for _ in "kv"
        )

    def update_decode(
        self, k: ttnn.Tensor, v: ttnn.Tensor, positions: ttnn.Tensor, page_table: ttnn.Tensor, *, fused: bool
    ) -> None:
        """k, v: [1, batch, kv_heads, head_dim] height-sharded, written at each text's position [batch]; NOWHERE: not.

        fused: k and v lie on cores of their own, so that one op writes both.
        """
        if fused:
            ttnn.experimental.paged_fused_update_cache(
                self.keys, k, self.values, v, update_idxs_tensor=positions, page_table=page_table
            )
            return
        for cache, x in ((self.keys, k), (self.values, v)):
            ttnn.experimental.paged_update_cache(cache, x, update_idxs_tensor=positions, page_table=page_table)

    def fill_prefill(self, k: ttnn.Tensor, v: ttnn.Tensor, fill_table: ttnn.Tensor) -> None:
        """k, v: [1, kv_heads, S, head_dim] interleaved in L1.

        fill_table: [1, S / block] int32: where each block of rows goes; rows whose entry is NO_BLOCK go nowhere.
        """
        for cache, x in ((self.keys, k), (self.values, v)):
            stored = x if x.dtype == self.dtype else ttnn.typecast(x, self.dtype)  # the op wants the cache's format
            ttnn.experimental.paged_fill_cache(cache, stored, fill_table, batch_idx=0)
            if stored is not x:
                ttnn.deallocate(stored)


def allocate_caches(
    mesh_device: ttnn.MeshDevice, config: QwenConfig, plan: ParallelPlan, recipe: Recipe, blocks: int, block: int
) -> list[TtKVCache]:
    """A cache for each layer."""
    return [
        TtKVCache(mesh_device, config, plan, recipe.of_layer(i).kv_cache, blocks, block)
        for i in range(config.num_hidden_layers)
    ]
