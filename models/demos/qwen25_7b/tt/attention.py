"""TtQwenAttention: grouped-query attention with a QKV bias and a paged KV cache. HF: self_attn.{q,k,v,o}_proj."""

import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.tt.collectives import TtAllReduce
from models.demos.qwen25_7b.tt.kv_cache import TtKVCache
from models.demos.qwen25_7b.tt.linear import TtLinear, compute_config
from models.demos.qwen25_7b.tt.rotary import Rotation, TtRotary
from models.demos.qwen25_7b.weights import AttentionWeights

PREFILL_CHUNK = 128  # tokens of q and of k that a core attends to at a time


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
        cache: TtKVCache,
        all_reduce: TtAllReduce,
    ):
        self.config, self.plan, self.decode = config, plan, decode
        self.rotary, self.cache, self.all_reduce = rotary, cache, all_reduce
        self.scale = config.head_dim**-0.5
        self.kernel = compute_config()
        self.qkv = TtLinear(
            mesh_device,
            weights.qkv,
            bias=weights.qkv_bias,
            format=recipe.attention,
            decode=decode,
            in_cores=decode.residual.cores,
            out_cores=decode.grid.cores,
            head_dim=config.head_dim,
        )
        self.o = TtLinear(
            mesh_device,
            weights.o,
            format=recipe.attention,
            decode=decode,
            in_cores=plan.q_heads,  # concatenated heads lie one on a core
            out_cores=decode.residual.cores,
        )
        self.sdpa_decode = ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=(decode.grid.x, decode.grid.y),
            q_chunk_size=TILE,
            k_chunk_size=TILE,
            exp_approx_mode=False,
        )

    def forward_decode(
        self, x: ttnn.Tensor, rotation: Rotation, positions: ttnn.Tensor, page_table: ttnn.Tensor
    ) -> ttnn.Tensor:
        """x [1, 1, 32, hidden] on the residual cores -> the same.

        positions: [batch] int32, where each user's token goes; rows at NOWHERE are no user's, and their result means
        nothing. page_table: [batch, blocks_per_user] int32.
        """
        batch, head_dim = self.decode.batch, self.config.head_dim
        qkv = self.qkv.forward_decode(x)  # [1, 1, 32, qkv_width]
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
        self.cache.update_decode(k, v, positions, page_table)
        ttnn.deallocate(k)
        ttnn.deallocate(v)
        heads = ttnn.transformer.paged_scaled_dot_product_attention_decode(
            q,
            self.cache.keys,
            self.cache.values,
            page_table,
            cur_pos_tensor=positions,
            scale=self.scale,
            program_config=self.sdpa_decode,
            compute_kernel_config=self.kernel,
            memory_config=ttnn.L1_MEMORY_CONFIG,  # grouped queries refuse a sharded output
        )  # [1, batch, q_heads, head_dim]
        ttnn.deallocate(q)
        heads = ttnn.to_memory_config(heads, self.decode.user_memory(head_dim))
        rows = ttnn.experimental.nlp_concat_heads_decode(heads, num_heads=self.plan.q_heads)  # [1, 1, 32, q_width]
        ttnn.deallocate(heads)
        y = self.o.forward_decode(rows)  # [1, 1, 32, hidden], a summand
        ttnn.deallocate(rows)
        return self.all_reduce.forward_decode(y)

    def forward_prefill(self, x: ttnn.Tensor, rotation: Rotation, page_table: ttnn.Tensor) -> ttnn.Tensor:
        """x [1, 1, S, hidden] interleaved in DRAM -> the same; one user's tokens from position 0.

        page_table: [1, S / BLOCK] int32, the user's.
        """
        qkv = self.qkv.forward_prefill(x)  # [1, 1, S, qkv_width]
        q, k, v = ttnn.experimental.nlp_create_qkv_heads(
            qkv,
            num_heads=self.plan.q_heads,
            num_kv_heads=self.plan.kv_heads,
            transpose_k_heads=False,
            memory_config=ttnn.DRAM_MEMORY_CONFIG,
        )  # [1, heads, S, head_dim]
        ttnn.deallocate(qkv)
        q, k = self.rotary.forward_prefill(q, k, rotation)
        self.cache.fill_prefill(k, v, page_table)
        heads = ttnn.transformer.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=True,
            scale=self.scale,
            program_config=self._sdpa_prefill(q.shape[2]),
            compute_kernel_config=self.kernel,
        )  # [1, q_heads, S, head_dim]
        for used in (q, k, v):
            ttnn.deallocate(used)
        rows = ttnn.experimental.nlp_concat_heads(heads, memory_config=ttnn.DRAM_MEMORY_CONFIG)  # [1, 1, S, q_width]
        ttnn.deallocate(heads)
        y = self.o.forward_prefill(rows)  # [1, 1, S, hidden], a summand
        ttnn.deallocate(rows)
        return self.all_reduce.forward_prefill(y)

    def _sdpa_prefill(self, tokens: int) -> ttnn.SDPAProgramConfig:
        chunk = min(tokens, PREFILL_CHUNK)
        return ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=(self.decode.grid.x, self.decode.grid.y),
            q_chunk_size=chunk,
            k_chunk_size=chunk,
            exp_approx_mode=False,
        )
