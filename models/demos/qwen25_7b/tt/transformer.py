"""TtTransformer: embedding, decoder layers, norm, LM head. HF: Qwen2ForCausalLM."""

from typing import Sequence

import torch
import ttnn

from models.common.errors import UserError
from models.demos.qwen25_7b.config import MAX_USERS, ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.decode_l1 import check_decode
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import worker_grid
from models.demos.qwen25_7b.plans.lm_head_plan import column_pieces
from models.demos.qwen25_7b.plans.memory_budget import check_fits, memory_budget
from models.demos.qwen25_7b.plans.prefill_plan import PrefillPlan, largest_pass, layer_plans
from models.demos.qwen25_7b.tt.attention import TtQwenAttention
from models.demos.qwen25_7b.tt.collectives import TtAllReduce
from models.demos.qwen25_7b.tt.decoder_layer import TtDecoderLayer
from models.demos.qwen25_7b.tt.embedding import TtEmbedding
from models.demos.qwen25_7b.tt.inputs import ContinuedInputs, DecodeInputs, PromptInputs, VerifyInputs
from models.demos.qwen25_7b.tt.kv_cache import TtKVCache
from models.demos.qwen25_7b.tt.lm_head import TtLMHead
from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
from models.demos.qwen25_7b.tt.penalties import TtPenalties
from models.demos.qwen25_7b.tt.placement import chips_in_row
from models.demos.qwen25_7b.tt.rms_norm import TtRMSNorm
from models.demos.qwen25_7b.tt.rotary import TtRotary
from models.demos.qwen25_7b.tt.sampler import TtSampler
from models.demos.qwen25_7b.weights import ModelWeights


def _check(mesh_device: ttnn.MeshDevice, config: QwenConfig, plan: ParallelPlan, batch: int, max_seq_len: int) -> None:
    chips = chips_in_row(mesh_device)
    if plan.tp != chips:
        raise UserError(
            f"the plan splits the model over {plan.tp} chips, the mesh has {chips} in a row: make it for {chips}"
        )
    if plan != ParallelPlan.make(config, plan.tp):
        raise UserError("the plan was made for another model: use ParallelPlan.make(config, tp) with this config")
    if not 1 <= batch <= MAX_USERS:
        raise UserError(f"batch must be 1 to {MAX_USERS} users, got {batch}")
    if not 1 <= max_seq_len <= config.context:
        raise UserError(f"max_seq_len must be 1 to the model's {config.context} tokens, got {max_seq_len}")


class TtTransformer:
    """The model on a row of chips, for at least `batch` users of up to max_seq_len tokens each.

    UserError, before anything is loaded, for numbers that cannot be, and if the model does not fit the chips' DRAM or L1.
    """

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        weights: ModelWeights,
        config: QwenConfig,
        plan: ParallelPlan,
        recipe: Recipe,
        *,
        batch: int,
        max_seq_len: int,
    ):
        _check(mesh_device, config, plan, batch, max_seq_len)
        decode = DecodePlan.make(config, plan, worker_grid(mesh_device), batch)
        check_decode(config, plan, recipe, decode)
        check_fits(mesh_device, memory_budget(config, plan, recipe, max_seq_len))
        self.mesh_device, self.config, self.plan = mesh_device, config, plan
        self.decode, self.recipe = decode, recipe
        self.max_seq_len = max_seq_len
        self.longest_pass = largest_pass(config, plan, recipe, decode.grid, decode.l1_room)
        self.rotary = TtRotary(mesh_device, config, decode, max_seq_len)
        attention_sum, mlp_sum = (TtAllReduce(mesh_device, decode, recipe.summands) for _ in range(2))
        self.embedding = TtEmbedding(mesh_device, weights.embedding, decode)
        self.layers = []
        for i in range(config.num_hidden_layers):
            common = (config, plan, recipe.of_layer(i), decode)
            self.layers.append(
                TtDecoderLayer(
                    TtRMSNorm(mesh_device, weights.input_norm(i), config, decode),
                    TtQwenAttention(
                        mesh_device, weights.attention(i), *common, rotary=self.rotary, all_reduce=attention_sum
                    ),
                    TtRMSNorm(mesh_device, weights.post_attention_norm(i), config, decode),
                    TtQwenMLP(mesh_device, weights.mlp(i), *common, all_reduce=mlp_sum),
                    decode,
                )
            )  # fmt: skip
        self.norm = TtRMSNorm(mesh_device, weights.final_norm, config, decode)
        self.lm_head = TtLMHead(mesh_device, weights.lm_head, config, plan, recipe, decode)
        self.sampler = TtSampler(mesh_device, plan, column_pieces(plan.vocab, recipe.lm_head.format), config.vocab_size)
        self.penalties = TtPenalties(mesh_device, plan)

    def prefill_plans(self, rows: int) -> list[PrefillPlan]:
        """How a pass of `rows` rows runs in each layer: a power of two from a tile to longest_pass."""
        return layer_plans(self.config, self.plan, self.recipe, self.decode.grid, rows, self.decode.l1_room)

    def forward_decode(self, inputs: DecodeInputs | VerifyInputs, caches: Sequence[TtKVCache]) -> list[ttnn.Tensor]:
        """A token a row -> logits in pieces [1, 1, 32, columns] of each chip (TtLMHead), row for row."""
        return self._logits(self._decode(inputs, caches))

    def forward_prefill(self, inputs: PromptInputs | ContinuedInputs, caches: Sequence[TtKVCache]) -> list[ttnn.Tensor]:
        """A pass -> logits in pieces [1, 1, 32, columns], row r being those of the pass's row inputs.rows[r]."""
        return self._logits(self._wanted(self._prefill(inputs, caches), inputs.rows))

    def fill_prefill(self, inputs: PromptInputs | ContinuedInputs, caches: Sequence[TtKVCache]) -> None:
        """A pass that only fills the caches: more of its text follows."""
        ttnn.deallocate(self._prefill(inputs, caches))

    def _decode(self, inputs: DecodeInputs | VerifyInputs, caches: Sequence[TtKVCache]) -> ttnn.Tensor:
        """-> [1, 1, 32, hidden] on the residual cores, what the LM head reads; so does _wanted."""
        rotation = self.rotary.rotation_decode(inputs.rotary_positions)
        x = self.embedding.forward_decode(inputs.tokens)  # [1, 1, 32, hidden]
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer.forward_decode(x, rotation, inputs, cache)
        rotation.deallocate()
        return self._normed(x)

    def _prefill(self, inputs: PromptInputs | ContinuedInputs, caches: Sequence[TtKVCache]) -> ttnn.Tensor:
        """-> [1, 1, S, hidden] block-sharded in L1, before the last norm."""
        plans = self.prefill_plans(inputs.positions.shape[-1])
        rotation = self.rotary.rotation_prefill(inputs.positions)
        x = self.embedding.forward_prefill(inputs.tokens, plans[0])  # [1, 1, S, hidden]
        for layer, cache, plan in zip(self.layers, caches, plans, strict=True):
            forward = layer.forward_prefill if isinstance(inputs, PromptInputs) else layer.forward_continued
            x = forward(x, rotation, inputs, cache, plan)
        rotation.deallocate()
        return x

    def _wanted(self, x: ttnn.Tensor, rows: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, S, hidden] -> [1, 1, 32, hidden], the rows [1, 32] that are wanted, normed."""
        lines = ttnn.untilize(x, memory_config=ttnn.L1_MEMORY_CONFIG)  # a table to look rows up in: which, is data
        ttnn.deallocate(x)
        wanted = ttnn.embedding(rows, lines, layout=ttnn.TILE_LAYOUT, memory_config=self.decode.residual_memory)
        ttnn.deallocate(lines)
        return self._normed(ttnn.unsqueeze_to_4D(wanted))

    def _normed(self, x: ttnn.Tensor) -> ttnn.Tensor:
        normed = self.norm.forward_decode(x)
        ttnn.deallocate(x)
        return normed

    def _logits(self, normed: ttnn.Tensor) -> list[ttnn.Tensor]:
        pieces = self.lm_head.forward(normed)
        ttnn.deallocate(normed)
        return pieces

    def read_logits(self, pieces: list[ttnn.Tensor]) -> torch.Tensor:
        """What forward_* returned, as [32 * rows of the mesh, vocab_size] on the host."""
        shape = tuple(self.mesh_device.shape)
        composer = ttnn.ConcatMesh2dToTensor(self.mesh_device, shape, dims=(0, 1))
        of_chips = [ttnn.to_torch(piece, mesh_composer=composer) for piece in pieces]  # [rows, tp, 32, columns] each
        columns = torch.cat(of_chips, dim=-1).transpose(1, 2).flatten(2)  # a chip's pieces, then chip after chip
        return columns.flatten(0, 1)[:, : self.config.vocab_size]
