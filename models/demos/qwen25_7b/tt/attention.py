"""TtQwenAttention: grouped-query attention with a QKV bias and a paged KV cache. HF: self_attn.{q,k,v,o}_proj."""

import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.blocks import decode_keys
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.plans.prefill_plan import PrefillPlan
from models.demos.qwen25_7b.tt.collectives import TtAllReduce
from models.demos.qwen25_7b.tt.inputs import ContinuedInputs, DecodeInputs, PromptInputs, VerifyInputs
from models.demos.qwen25_7b.tt.kv_cache import TtKVCache
from models.demos.qwen25_7b.tt.linear import TtLinear, compute_config
from models.demos.qwen25_7b.tt.rotary import Rotation, TtRotary
from models.demos.qwen25_7b.weights import AttentionWeights

# In a step with few users several cores share a user's KV head and join their results in pairs, each joining 0.13 % too large
# (sums of bfloat16 are). 16 cores, ttnn's limit: 0.5 %; four: 0.25 %, and they read the cache as fast as its DRAM gives it.
CORES_A_HEAD = 4


class TtQwenAttention:
    """A chip has plan.q_heads queries and plan.kv_heads keys and values; the all-reduce adds the chips' results."""

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        weights: AttentionWeights,
        config: QwenConfig,
        plan: ParallelPlan,
        recipe: Recipe,
        decode: DecodePlan,
        rotary: TtRotary,
        all_reduce: TtAllReduce,
    ):
        self.config, self.plan, self.decode = config, plan, decode
        self.rotary, self.all_reduce = rotary, all_reduce
        self.scale = config.head_dim**-0.5
        self.kernel = compute_config()
        self.qkv = TtLinear(
            mesh_device,
            weights.qkv,
            bias=weights.qkv_bias,
            group=recipe.attention,
            decode=decode,
            in_cores=decode.residual.cores,
            out_cores=decode.grid.cores,
            head_dim=config.head_dim,
        )
        self.o = TtLinear(
            mesh_device,
            weights.o,
            group=recipe.attention,
            decode=decode,
            in_cores=plan.q_heads,  # concatenated heads lie one on a core
            out_cores=decode.residual.cores,
        )

    def forward_decode(
        self, x: ttnn.Tensor, rotation: Rotation, inputs: DecodeInputs | VerifyInputs, cache: TtKVCache
    ) -> ttnn.Tensor:
        """x [1, 1, 32, hidden] on the residual cores -> the same. Frees x. The result of a row at NOWHERE means nothing."""
        batch, head_dim = self.decode.batch, self.config.head_dim
        qkv = self.qkv.forward_decode(x)  # [1, 1, 32, qkv_width]
        ttnn.deallocate(x)
        qkv = ttnn.reshape(qkv, (1, 1, batch, qkv.shape[3]), (1, 1, TILE, qkv.shape[3]))  # a view of the users' rows
        q, k, v = ttnn.experimental.nlp_create_qkv_heads_decode(
            qkv,
            num_heads=self.plan.q_heads,
            num_kv_heads=self.plan.kv_heads,
            overlap_qk_coregrid=not self.decode.fused_qk,
            memory_config=ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG,
        )  # [1, batch, heads, head_dim]
        ttnn.deallocate(qkv)
        q, k = self.rotary.forward_decode(q, k, rotation)
        for positions in inputs.writes:
            cache.update_decode(k, v, positions, inputs.page_table, fused=self.decode.fused_qk)
        ttnn.deallocate(k)
        ttnn.deallocate(v)
        heads = ttnn.transformer.paged_scaled_dot_product_attention_decode(
            self._whole_tile(q),
            cache.keys,
            cache.values,
            inputs.page_table,
            cur_pos_tensor=inputs.positions,
            scale=self.scale,
            program_config=self._decode_program(inputs.page_table.shape[-1] * cache.block),
            compute_kernel_config=self.kernel,
            memory_config=ttnn.L1_MEMORY_CONFIG,  # grouped queries refuse a sharded output
        )  # [1, batch, q_heads, head_dim]
        ttnn.deallocate(q)
        heads = ttnn.reshape(heads, (1, batch, self.plan.q_heads, head_dim), (1, batch, TILE, head_dim))  # a view
        heads = ttnn.to_memory_config(heads, self.decode.user_memory(head_dim))
        rows = ttnn.experimental.nlp_concat_heads_decode(heads, num_heads=self.plan.q_heads)  # [1, 1, 32, q_width]
        ttnn.deallocate(heads)
        y = self.o.forward_decode(rows, self.all_reduce.summand)  # [1, 1, 32, hidden], a summand
        ttnn.deallocate(rows)
        return self.all_reduce.forward_decode(y)

    def _decode_program(self, tokens: int) -> ttnn.SDPAProgramConfig:
        """tokens: that a text's page table names."""
        grid = self.decode.grid
        return ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=(grid.x, grid.y),
            q_chunk_size=TILE,
            k_chunk_size=decode_keys(tokens),
            exp_approx_mode=False,
            max_cores_per_head_batch=CORES_A_HEAD,
        )

    def _whole_tile(self, q: ttnn.Tensor) -> ttnn.Tensor:
        """q [1, batch, q_heads, head_dim] -> for one KV head the tile that they lie in, [1, batch, 32, head_dim]: a view.

        With 16 heads or fewer decode attention's exp would be approximate (ParallelPlan.exact_decode_attention). What it
        makes of the further rows is not read.
        """
        if self.plan.kv_heads > 1:
            return q
        shape = (1, self.decode.batch, TILE, self.config.head_dim)
        return ttnn.reshape(q, shape, shape)

    def forward_prefill(
        self, x: ttnn.Tensor, rotation: Rotation, inputs: PromptInputs, cache: TtKVCache, plan: PrefillPlan
    ) -> ttnn.Tensor:
        """x [1, 1, S, hidden] block-sharded in L1 -> the same. Frees x.

        Whole prompts side by side, each from its position 0: a row attends to the rows before it in its prompt, in
        bfloat16 whatever the cache's format.
        """
        q, k, v = self._rotated_heads(x, rotation, plan)
        cache.fill_prefill(k, v, inputs.fill_table)
        rows = ttnn.transformer.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=True,
            scale=self.scale,
            cu_window_seqlens=inputs.windows,
            program_config=plan.attention_program(self.decode.grid),
            compute_kernel_config=self.kernel,
            output_concat_heads=True,
            memory_config=plan.heads_memory,
        )  # [1, 1, S, q_width]
        for used in (q, k, v):
            ttnn.deallocate(used)
        return self._summed(rows, plan)

    def forward_continued(
        self, x: ttnn.Tensor, rotation: Rotation, inputs: ContinuedInputs, cache: TtKVCache, plan: PrefillPlan
    ) -> ttnn.Tensor:
        """The same for rows of one text from inputs.start on: they attend to all that the cache holds before them, too."""
        q, k, v = self._rotated_heads(x, rotation, plan)
        cache.fill_prefill(k, v, inputs.fill_table)
        ttnn.deallocate(k)
        ttnn.deallocate(v)
        heads = ttnn.transformer.chunked_scaled_dot_product_attention(
            q,
            cache.keys,
            cache.values,
            inputs.page_table,
            chunk_start_idx_tensor=inputs.start,
            program_config=plan.continued_program(self.decode.grid),
            compute_kernel_config=self.kernel,
            memory_config=ttnn.L1_MEMORY_CONFIG,
        )  # [1, q_heads, S, head_dim]; its scale is head_dim**-0.5 by itself
        ttnn.deallocate(q)
        rows = ttnn.experimental.nlp_concat_heads(heads, memory_config=ttnn.L1_MEMORY_CONFIG)  # [1, 1, S, q_width]
        ttnn.deallocate(heads)
        return self._summed(rows, plan)

    def _rotated_heads(self, x: ttnn.Tensor, rotation: Rotation, plan: PrefillPlan) -> tuple[ttnn.Tensor, ...]:
        """q [1, q_heads, S, head_dim], k and v [1, kv_heads, S, head_dim], interleaved in L1. Frees x."""
        qkv = self.qkv.forward_prefill(x, plan.qkv, ttnn.L1_MEMORY_CONFIG)  # [1, 1, S, qkv_width]
        ttnn.deallocate(x)
        q, k, v = ttnn.experimental.nlp_create_qkv_heads(
            qkv,
            num_heads=self.plan.q_heads,
            num_kv_heads=self.plan.kv_heads,
            transpose_k_heads=False,
            memory_config=ttnn.L1_MEMORY_CONFIG,
        )
        ttnn.deallocate(qkv)
        return *self.rotary.forward_prefill(q, k, rotation), v

    def _summed(self, rows: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """[1, 1, S, q_width], freed -> [1, 1, S, hidden], the chips' sum."""
        y = self.o.forward_prefill(rows, plan.o, plan.summand_memory)  # [1, 1, S, hidden], a summand
        ttnn.deallocate(rows)
        return self.all_reduce.forward_prefill(y, plan)
