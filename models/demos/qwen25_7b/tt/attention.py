"""TtQwenAttention: grouped-query attention with a QKV bias, and its paged KV cache. HF: self_attn.{q,k,v,o}_proj."""

from typing import Optional

import ttnn

from ..plans.grids import TILE, Grid
from ..plans.model_table import LayerSpec
from ..plans.prefill_plan import PrefillPlan, chunk_step, q_chunk_size
from ..weights.model_weights import BuildShard
from .inputs import AnyPrefillInputs, ChunkedPrefillInputs, DecodeInputs, GroupedInputs, PrefillInputs
from .linear import TtAllReduce, TtLinear, compute_config
from .model_config import TtModelConfig
from .placement import free, memory_config, rectangle
from .rotary import Rotation, TtCenteredKeys, TtHeadNorms, TtRotary

# Cores that share a KV head of one slot in a decode step with few slots. They join their results in pairs, and each
# join makes the sum 0.13 % too large; four cores already read the cache as fast as DRAM gives it.
CORES_PER_KV_HEAD = 4


class TtKVCache:
    """Keys and values of one layer: [blocks, kv_heads, block, head_dim] each, in DRAM; a chip holds its own KV heads.

    Keys are in rotary pairs, rotated, equalized and centered (plans/rotary_pairs.py).
    The cache is no part of the model: it may be made before the model or after it, with any number of blocks.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, layer: LayerSpec, blocks: int, block: int):
        """block: tokens of a block, 32, 64 or 128."""
        self.block = block
        self.dtype = getattr(ttnn, layer.recipe.kv_cache)
        self.shape = (blocks, layer.parallel.kv_heads, block, layer.dims.head_width)
        # Zeros, because attention multiplies unwritten rows by 0, and 0 * NaN is NaN.
        self.keys, self.values = (
            ttnn.zeros(self.shape, self.dtype, ttnn.TILE_LAYOUT, mesh_device, ttnn.DRAM_MEMORY_CONFIG) for _ in "kv"
        )

    def update_decode(
        self, k: ttnn.Tensor, v: ttnn.Tensor, positions: ttnn.Tensor, page_table: ttnn.Tensor, *, fused: bool
    ) -> None:
        """Write k and v [1, slots, kv_heads, head_dim], height-sharded, at each slot's position [slots].

        An INACTIVE slot writes nothing. fused: k and v lie on different cores, so that one op writes both.
        """
        if fused:
            ttnn.experimental.paged_fused_update_cache(
                self.keys, k, self.values, v, update_idxs_tensor=positions, page_table=page_table
            )
            return
        for cache, x in ((self.keys, k), (self.values, v)):
            ttnn.experimental.paged_update_cache(cache, x, update_idxs_tensor=positions, page_table=page_table)

    def fill_prefill(
        self, k: ttnn.Tensor, v: ttnn.Tensor, fill_table: ttnn.Tensor, sequences: Optional[ttnn.Tensor] = None
    ) -> None:
        """Write k and v [B, kv_heads, rows, head_dim], interleaved in L1, into the blocks of fill_table.

        Rows with NO_BLOCK are not written.
        fill_table: [B, rows / block] int32, the cache block for each block of rows.
        sequences: [B] int32, the row of fill_table of each sequence; may be left out for one sequence.
        """
        for cache, x in ((self.keys, k), (self.values, v)):
            # The op takes rows of the cache's dtype only.
            stored = x if x.dtype == self.dtype else ttnn.typecast(x, self.dtype)
            ttnn.experimental.paged_fill_cache(cache, stored, fill_table, batch_idx_tensor=sequences, batch_idx=0)
            if stored is not x:
                ttnn.deallocate(stored)


def allocate_caches(
    mesh_device: ttnn.MeshDevice, model_config: TtModelConfig, blocks: int, block: int
) -> list[TtKVCache]:
    """A cache for each layer."""
    layers = map(model_config.layer, range(model_config.dims.num_hidden_layers))
    return [TtKVCache(mesh_device, layer, blocks, block) for layer in layers]


class TtQwenAttention:
    """A chip holds parallel.q_heads query heads and parallel.kv_heads KV heads. all_reduce adds the chips' results."""

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        layer: LayerSpec,
        build: BuildShard,
        model_config: TtModelConfig,
        *,
        rotary: TtRotary,
        all_reduce: TtAllReduce,
    ):
        self.q_heads = model_config.parallel.q_heads
        self.kv_heads = model_config.parallel.kv_heads
        self.head_dim = model_config.dims.head_width
        self.decode = model_config.decode
        self.rotary = rotary
        self.all_reduce = all_reduce
        # With one KV head, the number that ttnn gives a slot beside the other slots.
        self.cores_per_kv_head = min(CORES_PER_KV_HEAD, max(1, self.decode.grid.cores // self.decode.slots))
        self.scale = model_config.dims.head_dim**-0.5
        self.heads_grid = None if self.decode.fills_rows else rectangle(self.decode.grid)
        self.kernel = compute_config()
        self.qkv = TtLinear(mesh_device, layer.qkv, build)
        self.head_norms = TtHeadNorms(mesh_device, layer, build) if layer.head_norms else None
        self.centered_keys = TtCenteredKeys.make(mesh_device, layer.centered_bias, build, model_config)
        self.o = TtLinear(mesh_device, layer.o, build)

    def forward_decode(self, x: ttnn.Tensor, rotation: Rotation, inputs: DecodeInputs, cache: TtKVCache) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> the same; INACTIVE slots' rows have no meaning. Frees x."""
        slots, head_dim = self.decode.slots, self.head_dim
        qkv = self.qkv.forward_decode(x)  # [1, 1, 32, qkv_width]
        ttnn.deallocate(x)
        width = qkv.shape[3]
        qkv = ttnn.reshape(qkv, (1, 1, slots, width), (1, 1, TILE, width))  # a view of the slots
        q, k, v = ttnn.experimental.nlp_create_qkv_heads_decode(
            qkv,
            num_heads=self.q_heads,
            num_kv_heads=self.kv_heads,
            overlap_qk_coregrid=not self.decode.fused_qk,
            memory_config=ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG,
        )  # [1, slots, heads, head_dim]
        ttnn.deallocate(qkv)
        if self.head_norms:
            q, k = self.head_norms.forward_decode(q, k)
        q, k = self.rotary.forward_decode(q, k, rotation)
        if self.centered_keys:
            k = self.centered_keys.forward_decode(k, inputs.key_rows)
        for positions in inputs.cache_positions:
            cache.update_decode(k, v, positions, inputs.page_table, fused=self.decode.fused_qk)
        free(k, v)
        if self.kv_heads == 1:
            # A view of the whole tile: with 16 heads or fewer ttnn takes half tiles and an exp that is up to 6 % off
            # for a key, which is 2 % of the output. Results of the rows past q_heads are not read.
            q = ttnn.reshape(q, (1, slots, TILE, head_dim), (1, slots, TILE, head_dim))
        if isinstance(inputs, GroupedInputs):
            heads = self._attend_groups(q, inputs, cache)
        else:
            heads = self._attend(q, inputs.page_table, inputs.positions, cache)
        # [1, slots, q_heads or 32, head_dim]
        ttnn.deallocate(q)
        heads = ttnn.reshape(heads, (1, slots, self.q_heads, head_dim), (1, slots, TILE, head_dim))  # a view
        heads = ttnn.to_memory_config(heads, memory_config(self.decode.user_memory(head_dim)))
        rows = ttnn.experimental.nlp_concat_heads_decode(heads, num_heads=self.q_heads, sub_core_grids=self.heads_grid)
        # [1, 1, 32, q_width]
        ttnn.deallocate(heads)
        y = self.o.forward_decode(rows, self.all_reduce.partial_sum_dtype)  # [1, 1, 32, hidden], a partial sum
        ttnn.deallocate(rows)
        return self.all_reduce.forward_decode(y)  # [1, 1, 32, hidden]

    def _attend_groups(self, q: ttnn.Tensor, inputs: GroupedInputs, cache: TtKVCache) -> ttnn.Tensor:
        """q [1, slots, 32, head_dim] of one KV head -> [1, slots, 32, head_dim].

        The tiles of a group's slots are read as one tensor, so that the cache of its sequence is read once.
        """
        slots = ttnn.to_memory_config(q, ttnn.DRAM_MEMORY_CONFIG)  # ttnn takes no other
        groups = inputs.group_tables.shape[0]
        size = self.decode.slots // groups
        shape = (1, groups, size * TILE, self.head_dim)
        tiles = ttnn.reshape(slots, shape, shape)  # a view
        heads = self._attend(tiles, inputs.group_tables, inputs.attended, cache, spec_multi_pos_tiles=size)
        ttnn.deallocate(slots)
        shape = (1, self.decode.slots, TILE, self.head_dim)
        return ttnn.reshape(heads, shape, shape)  # a view

    def _attend(
        self, q: ttnn.Tensor, page_table: ttnn.Tensor, positions: ttnn.Tensor, cache: TtKVCache, **options: int
    ) -> ttnn.Tensor:
        """Attention of a decode step. page_table has a row for each user of q, [1, users, heads, head_dim].

        A slot has equally many cores in a group and on its own, so that its sums are rounded alike.
        """
        k_chunk_size = self.decode.k_chunk(page_table.shape[-1] * cache.block)
        return ttnn.transformer.paged_scaled_dot_product_attention_decode(
            q,
            cache.keys,
            cache.values,
            page_table,
            cur_pos_tensor=positions,
            scale=self.scale,
            program_config=attention_program(
                self.decode.grid, TILE, k_chunk_size, max_cores_per_head_batch=self.cores_per_kv_head
            ),
            compute_kernel_config=self.kernel,
            memory_config=ttnn.L1_MEMORY_CONFIG,  # interleaved: grouped queries refuse a sharded result
            **options,
        )

    def forward_prefill(
        self, x: ttnn.Tensor, rotation: Rotation, inputs: AnyPrefillInputs, cache: TtKVCache, plan: PrefillPlan
    ) -> ttnn.Tensor:
        """[1, 1, S, hidden] block-sharded in L1 -> the sum over chips, block-sharded. Frees x.

        The rows are chunks of B sequences, which have the positions of `rotation`, or whole prompts, for which B is 1.
        """
        sequences = inputs.fill_table.shape[0]
        qkv = self.qkv.forward_prefill(x, plan.qkv, None)  # [1, 1, S, qkv_width]
        ttnn.deallocate(x)
        qkv = ttnn.reshape(qkv, (sequences, 1, plan.rows // sequences, qkv.shape[-1]))  # a view
        q, k, v = ttnn.experimental.nlp_create_qkv_heads(
            qkv,
            num_heads=self.q_heads,
            num_kv_heads=self.kv_heads,
            transpose_k_heads=False,
            memory_config=ttnn.L1_MEMORY_CONFIG,
        )  # [B, heads, S / B, head_dim], interleaved
        ttnn.deallocate(qkv)
        if self.head_norms:
            q, k = self.head_norms.forward_prefill(q, k)
        q, k = self.rotary.forward_prefill(q, k, rotation)
        if self.centered_keys:
            k = self.centered_keys.forward_prefill(k, inputs.key_rows)
        attend = self.attend_chunks if isinstance(inputs, ChunkedPrefillInputs) else self.attend_prompts
        rows = attend(q, k, v, inputs, cache, plan)  # [1, 1, S, q_width]
        y = self.o.forward_prefill(rows, plan.o, plan.partial_sum_memory)  # [1, 1, S, hidden], a partial sum
        ttnn.deallocate(rows)
        return self.all_reduce.forward_prefill(y, plan)

    def attend_prompts(
        self, q: ttnn.Tensor, k: ttnn.Tensor, v: ttnn.Tensor, inputs: PrefillInputs, cache: TtKVCache, plan: PrefillPlan
    ) -> ttnn.Tensor:
        """Whole prompts side by side: q, k and v [1, heads, S, head_dim] -> [1, 1, S, q_width]. Frees q, k and v.

        A row attends to the rows before it in its prompt, in bfloat16 for every format of the cache.
        """
        cache.fill_prefill(k, v, inputs.fill_table)
        rows = ttnn.transformer.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=True,
            scale=self.scale,
            cu_window_seqlens=inputs.window_starts,
            program_config=attention_program(self.decode.grid, q_chunk_size(plan.rows), q_chunk_size(plan.rows)),
            compute_kernel_config=self.kernel,
            output_concat_heads=True,
            memory_config=memory_config(plan.heads_memory),
        )
        free(q, k, v)
        return rows

    def attend_chunks(
        self,
        q: ttnn.Tensor,
        k: ttnn.Tensor,
        v: ttnn.Tensor,
        inputs: ChunkedPrefillInputs,
        cache: TtKVCache,
        plan: PrefillPlan,
    ) -> ttnn.Tensor:
        """Chunks of B sequences: q, k and v [B, heads, S / B, head_dim] -> [1, 1, S, q_width]. Frees q, k and v.

        The S / B rows of a sequence begin at position inputs.start. A row attends to everything that the cache holds of
        its sequence before it.
        """
        rows_each = q.shape[2]
        k_chunk_size = min(plan.k_chunk_size, chunk_step(rows_each, cache.block))
        cache.fill_prefill(k, v, inputs.fill_table, inputs.sequences)
        free(k, v)
        if self.scale != self.head_dim**-0.5:  # the op knows the columns of zeros only
            scaled = ttnn.mul(q, self.scale * self.head_dim**0.5, memory_config=ttnn.L1_MEMORY_CONFIG)
            ttnn.deallocate(q)
            q = scaled
        heads = ttnn.transformer.chunked_scaled_dot_product_attention(
            q,
            cache.keys,
            cache.values,
            inputs.page_table,
            chunk_start_idx_tensor=inputs.start,
            program_config=attention_program(self.decode.grid, q_chunk_size(rows_each), k_chunk_size),
            compute_kernel_config=self.kernel,
            memory_config=ttnn.L1_MEMORY_CONFIG,
        )  # [B, q_heads, S / B, head_dim]; its scale is head_width**-0.5
        ttnn.deallocate(q)
        rows = ttnn.experimental.nlp_concat_heads(heads, memory_config=ttnn.L1_MEMORY_CONFIG)
        # [B, 1, S / B, q_width]
        ttnn.deallocate(heads)
        return ttnn.reshape(rows, (1, 1, plan.rows, rows.shape[-1]))  # a view


def attention_program(grid: Grid, q_chunk_size: int, k_chunk_size: int, **options: int) -> ttnn.SDPAProgramConfig:
    """Chunk sizes in tokens."""
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(grid.x, grid.y),
        q_chunk_size=q_chunk_size,
        k_chunk_size=k_chunk_size,
        exp_approx_mode=False,
        **options,
    )
