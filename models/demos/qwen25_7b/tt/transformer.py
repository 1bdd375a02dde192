"""TtTransformer: embedding, decoder layers, norm, LM head. HF: Qwen2ForCausalLM."""

from typing import Any, Iterable, Sequence

import torch
import ttnn
from tqdm import tqdm

from ..plans.decode_plan import DecodeLayout
from ..plans.grids import TILE, Shards
from ..plans.model_table import LayerSpec, Weight
from ..plans.prefill_plan import PrefillPlan
from ..weights.model_weights import BuildShard
from .attention import TtKVCache, TtQwenAttention
from .inputs import AnyPrefillInputs, DecodeInputs
from .linear import TtAllReduce, TtLinear, compute_config
from .mlp import TtQwenMLP
from .model_config import TtModelConfig
from .placement import add_in_place, free, memory_config, place
from .rotary import Rotation, TtRotary
from .sampler import TtPenalties, TtSampler


class TtTransformer:
    """The model on a row of chips, or on each row of a mesh. KV caches are separate: a forward takes one a layer."""

    def __init__(self, mesh_device: ttnn.MeshDevice, build: BuildShard, model_config: TtModelConfig):
        self.mesh_device = mesh_device
        self.model_config = model_config
        self.max_prefill_rows = model_config.max_prefill_rows
        self.rotary = TtRotary(mesh_device, model_config)
        sums = [TtAllReduce(mesh_device, model_config) for _ in ("attention", "mlp")]
        self.embedding = TtEmbedding(mesh_device, build, model_config)
        layers = range(model_config.dims.num_hidden_layers)
        self.layers = [
            TtDecoderLayer(mesh_device, model_config.layer(i), build, model_config, self.rotary, *sums)
            for i in tqdm(layers, "layers", unit="layer", leave=False, disable=None)
        ]
        self.has_centered_keys = any(layer.attention.centered_keys for layer in self.layers)
        self.norm = TtRMSNorm(mesh_device, model_config.final_norm, build, model_config)
        self.lm_head = TtLMHead(mesh_device, build, model_config)
        self.sampler = TtSampler(mesh_device, model_config)
        self.penalties = TtPenalties(mesh_device, model_config)

    def forward_decode(self, inputs: DecodeInputs, caches: Sequence[TtKVCache]) -> list[ttnn.Tensor]:
        """One token a slot -> each chip's logits shards [1, 1, 32, columns] (TtLMHead); row u is slot u's."""
        x = self.embedding.forward(inputs.tokens, self.model_config.decode)  # [1, 1, 32, hidden]
        rotation = self.rotary.rotation_decode(inputs.rotary_positions)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer.forward_decode(x, rotation, inputs, cache)  # [1, 1, 32, hidden]
        free(*rotation)
        return self._logits(x)

    def forward_prefill(self, inputs: AnyPrefillInputs, caches: Sequence[TtKVCache]) -> list[ttnn.Tensor]:
        """A prefill batch -> logits shards [1, 1, 32, columns]; row u is row inputs.logits_indices[u] of the batch."""
        x = self._prefill(inputs, caches, range(len(self.layers)))  # [1, 1, S, hidden]
        return self._logits(self._select_rows(x, inputs.logits_indices))

    def fill_caches(self, inputs: AnyPrefillInputs, caches: Sequence[TtKVCache]) -> None:
        """A prefill batch without logits, for a chunk that is not its prompt's last."""
        ttnn.deallocate(self._prefill(inputs, caches, range(len(self.layers))))

    def compile_prefill(self, inputs: AnyPrefillInputs, caches: Sequence[TtKVCache]) -> list[ttnn.Tensor]:
        """forward_prefill through the first layer of each kind, to compile. The logits mean nothing."""
        first: dict[Any, int] = {}
        for i, layer in enumerate(self.layers):
            first.setdefault((self.model_config.recipe.of_layer(i), bool(layer.attention.centered_keys)), i)
        x = self._prefill(inputs, caches, first.values())  # [1, 1, S, hidden]
        return self._logits(self._select_rows(x, inputs.logits_indices))

    def _prefill(self, inputs: AnyPrefillInputs, caches: Sequence[TtKVCache], layers: Iterable[int]) -> ttnn.Tensor:
        """-> [1, 1, S, hidden] block-sharded in L1, before the last norm."""
        plans = self.model_config.prefill_plans(inputs.tokens.shape[-1])
        x = self.embedding.forward(inputs.tokens, plans[0])  # [1, 1, S, hidden]
        rotation = self.rotary.rotation_prefill(inputs.positions)
        # seconds a layer without a card, where the first token of a 7B waits for all of them
        for i in tqdm(layers, "prefill", unit="layer", leave=False, delay=1, disable=None):
            x = self.layers[i].forward_prefill(x, rotation, inputs, caches[i], plans[i])  # [1, 1, S, hidden]
        free(*rotation)
        return x

    def _select_rows(self, x: ttnn.Tensor, indices: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, S, hidden] -> [1, 1, 32, hidden] on the residual cores, the rows `indices` [1, 32]. Frees x.

        A look-up in x, because the indices are data of a trace.
        """
        table = ttnn.untilize(x, memory_config=ttnn.L1_MEMORY_CONFIG)  # [1, 1, S, hidden]
        ttnn.deallocate(x)
        memory = memory_config(self.model_config.decode.residual_memory)
        rows = ttnn.embedding(indices, table, layout=ttnn.TILE_LAYOUT, memory_config=memory)
        ttnn.deallocate(table)
        return ttnn.unsqueeze_to_4D(rows)

    def _logits(self, x: ttnn.Tensor) -> list[ttnn.Tensor]:
        """[1, 1, 32, hidden] on the residual cores -> logits shards. Frees x."""
        normed = self.norm.forward_decode(x)  # [1, 1, 32, hidden]
        ttnn.deallocate(x)
        logits = self.lm_head.forward(normed)  # [1, 1, 32, columns] each
        ttnn.deallocate(normed)
        return logits

    def read_logits(self, logits: list[ttnn.Tensor]) -> torch.Tensor:
        """Logits shards -> [32 * rows of the mesh, vocab_size] on the host."""
        shape = tuple(self.mesh_device.shape)
        composer = ttnn.ConcatMesh2dToTensor(self.mesh_device, shape, dims=(0, 1))
        shards = [ttnn.to_torch(t, mesh_composer=composer) for t in logits]  # [rows, tp, 32, columns]
        # a chip's shards side by side, then chip after chip
        in_order = [shard[:, chip] for chip in range(shape[1]) for shard in shards]
        whole = torch.cat(in_order, dim=-1)  # [rows, 32, tp * vocab]
        return whole.flatten(0, 1)[:, : self.model_config.dims.vocab_size]


class TtEmbedding:
    """Token ids -> rows of the table. HF: model.embed_tokens.

    weight: [vocab, hidden], bfloat16, the whole table on every chip; row-major, so that a row is one read.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, build: BuildShard, model_config: TtModelConfig):
        self.weight = place(model_config.embedding, mesh_device, build)

    def forward(self, tokens: ttnn.Tensor, plan: DecodeLayout | PrefillPlan) -> ttnn.Tensor:
        """[1, 1, 1, S] uint32 -> [1, 1, S, hidden], sharded as the plan's residual; S is 32 in decode."""
        memory = memory_config(plan.residual_memory)
        x = ttnn.embedding(tokens, self.weight, layout=ttnn.TILE_LAYOUT, memory_config=memory)
        return ttnn.unsqueeze_to_4D(x)


class TtDecoderLayer:
    """h = x + attention(norm(x)); y = h + mlp(norm(h)). HF: model.layers.N."""

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        layer: LayerSpec,
        build: BuildShard,
        model_config: TtModelConfig,
        rotary: TtRotary,
        attention_sum: TtAllReduce,
        mlp_sum: TtAllReduce,
    ):
        self.input_norm = TtRMSNorm(mesh_device, layer.input_norm, build, model_config)
        self.attention = TtQwenAttention(
            mesh_device, layer, build, model_config, rotary=rotary, all_reduce=attention_sum
        )
        self.post_attention_norm = TtRMSNorm(mesh_device, layer.post_attention_norm, build, model_config)
        self.mlp = TtQwenMLP(mesh_device, layer, build, all_reduce=mlp_sum)

    def forward_decode(self, x: ttnn.Tensor, rotation: Rotation, inputs: DecodeInputs, cache: TtKVCache) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> [1, 1, 32, hidden] on the residual cores. Changes x in place."""
        y = self.attention.forward_decode(self.input_norm.forward_decode(x), rotation, inputs, cache)
        x = add_in_place(x, y)
        y = self.mlp.forward_decode(self.post_attention_norm.forward_decode(x))
        return add_in_place(x, y)

    def forward_prefill(
        self, x: ttnn.Tensor, rotation: Rotation, inputs: AnyPrefillInputs, cache: TtKVCache, plan: PrefillPlan
    ) -> ttnn.Tensor:
        """[1, 1, S, hidden] block-sharded in L1 -> [1, 1, S, hidden] block-sharded in L1. Changes x in place."""
        y = self.attention.forward_prefill(self.input_norm.forward_prefill(x, plan), rotation, inputs, cache, plan)
        x = add_in_place(x, y)
        y = self.mlp.forward_prefill(self.post_attention_norm.forward_prefill(x, plan), plan)
        return add_in_place(x, y)


class TtRMSNorm:
    """y = x / sqrt(mean(x^2) + eps) * weight. HF: input_layernorm, post_attention_layernorm, norm.

    Every chip normalizes the whole residual stream. weight: [hidden / 32, 32].
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, weight: Weight, build: BuildShard, model_config: TtModelConfig):
        self.weight = place(weight, mesh_device, build)
        self.epsilon = model_config.dims.rms_norm_eps
        self.kernel = compute_config()
        self.residual = model_config.decode.residual_memory

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] on the residual cores -> [1, 1, 32, hidden] on the residual cores."""
        return self._norm(x, self.residual)

    def forward_prefill(self, x: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """[1, 1, S, hidden] block-sharded in L1 -> [1, 1, S, hidden] block-sharded in L1."""
        return self._norm(x, plan.residual_memory)

    def _norm(self, x: ttnn.Tensor, shards: Shards) -> ttnn.Tensor:
        rows, columns = (extent // TILE for extent in shards.shape)
        program = ttnn.LayerNormShardedMultiCoreProgramConfig(
            compute_with_storage_grid_size=(shards.grid.x, shards.grid.y),
            # dest holds 4 tiles with fp32 accumulation
            subblock_w=max(w for w in (1, 2, 3, 4) if columns % w == 0),
            block_h=rows,
            block_w=columns,
            inplace=False,
        )
        return ttnn.rms_norm(
            x,
            weight=self.weight,
            epsilon=self.epsilon,
            program_config=program,
            memory_config=memory_config(shards),
            compute_kernel_config=self.kernel,
        )


class TtLMHead:
    """The logits of one tile row of tokens. HF: lm_head.

    A chip holds parallel.vocab columns, in shards: one matmul over all columns would not fit L1.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, build: BuildShard, model_config: TtModelConfig):
        self.shards = [TtLinear(mesh_device, row, build) for row in model_config.lm_head]

    def forward(self, x: ttnn.Tensor) -> list[ttnn.Tensor]:
        """[1, 1, 32, hidden] on the residual cores -> logits shards [1, 1, 32, columns] bfloat16, interleaved in DRAM.

        Decode and prefill call this forward. After prefill x holds the rows that logits_indices selects. The shards of
        a chip, side by side, are its parallel.vocab columns. L1 does not have to hold all shards at a time.
        """
        logits = []
        for shard in self.shards:
            sharded = shard.forward_decode(x)  # [1, 1, 32, columns]
            logits.append(ttnn.sharded_to_interleaved(sharded, ttnn.DRAM_MEMORY_CONFIG))
            ttnn.deallocate(sharded)
        return logits
