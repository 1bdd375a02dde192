"""The paged KV cache: one layer's keys and values, in blocks that page tables deal out to users."""

from dataclasses import dataclass
from typing import Sequence

import torch
import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.tt.decode_plan import DecodePlan
from models.demos.qwen25_7b.tt.grids import ceil_div, padded_prompt
from models.demos.qwen25_7b.tt.placement import dtype_of

BLOCK = 32  # tokens in a block


@dataclass(frozen=True)
class PagePlan:
    """How many blocks there are, and which belong to whom.

    The last block belongs to nobody: rows of the batch that have no user, and page table entries past a user's last
    block, point at it, so whatever is written there harms no one.
    """

    users: int
    blocks_per_user: int
    table_width: int  # entries of a user's page table: as many as the longest padded prompt has blocks

    @classmethod
    def make(cls, users: int, max_seq_len: int) -> "PagePlan":
        return cls(users, ceil_div(max_seq_len, BLOCK), padded_prompt(max_seq_len) // BLOCK)

    @property
    def blocks(self) -> int:
        return self.users * self.blocks_per_user + 1

    @property
    def nobodys(self) -> int:
        return self.blocks - 1

    def table(self, blocks: Sequence[int]) -> torch.Tensor:
        """[table_width] int32: a user's blocks in the order of its tokens, then nobody's."""
        table = torch.full((self.table_width,), self.nobodys, dtype=torch.int32)
        table[: len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        return table

    def blocks_of(self, user: int, tokens: int) -> range:
        """The blocks that hold the first `tokens` tokens of a user."""
        first = user * self.blocks_per_user
        return range(first, first + ceil_div(tokens, BLOCK))


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
        """k, v: [1, batch, kv_heads, head_dim] height-sharded, written at each user's position [batch]."""
        if self.fused:
            ttnn.experimental.paged_fused_update_cache(
                self.keys, k, self.values, v, update_idxs_tensor=positions, page_table=page_table
            )
            return
        for cache, x in ((self.keys, k), (self.values, v)):
            ttnn.experimental.paged_update_cache(cache, x, update_idxs_tensor=positions, page_table=page_table)

    def fill_prefill(self, k: ttnn.Tensor, v: ttnn.Tensor, page_table: ttnn.Tensor) -> None:
        """k, v: [1, kv_heads, S, head_dim] interleaved, written from position 0 of the user whose page table [1, table_width] it is."""
        for cache, x in ((self.keys, k), (self.values, v)):
            stored = x if x.dtype == self.dtype else ttnn.typecast(x, self.dtype)  # the op wants the cache's format
            ttnn.experimental.paged_fill_cache(cache, stored, page_table, batch_idx=0)
            if stored is not x:
                ttnn.deallocate(stored)
