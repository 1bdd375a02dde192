"""TtTransformer: embedding, decoder layers, norm, LM head. HF: Qwen2ForCausalLM."""

from typing import NamedTuple

import torch
import ttnn

from models.common.errors import UserError
from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.decode_plan import MAX_USERS, DecodePlan
from models.demos.qwen25_7b.plans.grids import worker_grid
from models.demos.qwen25_7b.plans.memory_budget import check_fits, memory_budget
from models.demos.qwen25_7b.plans.page_plan import PagePlan
from models.demos.qwen25_7b.tt.attention import TtQwenAttention
from models.demos.qwen25_7b.tt.collectives import TtAllReduce
from models.demos.qwen25_7b.tt.decoder_layer import TtDecoderLayer
from models.demos.qwen25_7b.tt.embedding import TtEmbedding
from models.demos.qwen25_7b.tt.kv_cache import TtKVCache
from models.demos.qwen25_7b.tt.lm_head import TtLMHead
from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
from models.demos.qwen25_7b.tt.placement import chips_in_row
from models.demos.qwen25_7b.tt.rms_norm import TtRMSNorm
from models.demos.qwen25_7b.tt.rotary import TtRotary
from models.demos.qwen25_7b.tt.sampler import SamplingControls, TtSampler
from models.demos.qwen25_7b.weights import ModelWeights


class DecodeInputs(NamedTuple):
    """Device tensors of one decode step; they stay allocated and are written anew for each step."""

    tokens: ttnn.Tensor  # [1, 1, 1, 32] uint32
    positions: ttnn.Tensor  # [batch] int32; NOWHERE for a row without a user
    rotary_positions: ttnn.Tensor  # [1, rotary_users] uint32, the same as the rotary tables want them: no row below 0
    page_table: ttnn.Tensor  # [batch, blocks_per_user] int32


class PrefillInputs(NamedTuple):
    """Device tensors of one prompt."""

    tokens: ttnn.Tensor  # [1, 1, 1, S] uint32
    positions: ttnn.Tensor  # [1, S] uint32; of padding, any that the rotary tables have
    page_table: ttnn.Tensor  # [1, S / BLOCK] int32, the user's; NO_BLOCK where nothing is to be written
    rows: ttnn.Tensor  # [1, 32] uint32: the tokens, by their places in the prompt, whose logits are wanted


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
    if not 1 <= max_seq_len <= config.max_position_embeddings:
        raise UserError(
            f"max_seq_len must be 1 to the model's {config.max_position_embeddings} tokens, got {max_seq_len}"
        )


class TtTransformer:
    """The model on a row of chips, for at least `batch` users of up to max_seq_len tokens each.

    UserError, before anything is loaded, for numbers that cannot be, and if the model does not fit the chips' DRAM.
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
        check_fits(mesh_device, memory_budget(config, plan, recipe, decode.batch, max_seq_len))
        self.mesh_device, self.config, self.plan = mesh_device, config, plan
        self.decode = decode
        self.pages = PagePlan.make(decode.batch, max_seq_len)
        self.max_seq_len = max_seq_len
        self.rotary = TtRotary(mesh_device, config, decode, max_seq_len)
        attention_sum, mlp_sum = TtAllReduce(mesh_device, decode), TtAllReduce(mesh_device, decode)
        self.embedding = TtEmbedding(mesh_device, weights.embedding, decode)
        self.layers = []
        for i in range(config.num_hidden_layers):
            cache = TtKVCache(mesh_device, config, plan, recipe, decode, self.pages)
            common = (config, plan, recipe, decode)
            self.layers.append(
                TtDecoderLayer(
                    TtRMSNorm(mesh_device, weights.input_norm(i), config, decode),
                    TtQwenAttention(
                        mesh_device, weights.attention(i), *common, rotary=self.rotary, cache=cache,
                        all_reduce=attention_sum,
                    ),
                    TtRMSNorm(mesh_device, weights.post_attention_norm(i), config, decode),
                    TtQwenMLP(mesh_device, weights.mlp(i), *common, all_reduce=mlp_sum),
                    decode,
                )
            )  # fmt: skip
        self.norm = TtRMSNorm(mesh_device, weights.final_norm, config, decode)
        self.lm_head = TtLMHead(mesh_device, weights.lm_head, config, plan, recipe, decode)
        self.sampler = TtSampler(mesh_device, plan, len(self.lm_head.pieces))

    def forward_decode(self, inputs: DecodeInputs) -> list[ttnn.Tensor]:
        """One token of each user -> logits in pieces [1, 1, 32, columns] of each chip (TtLMHead), row u being user u's."""
        return self._logits(self._decode(inputs))

    def forward_prefill(self, inputs: PrefillInputs) -> list[ttnn.Tensor]:
        """A prompt -> logits in pieces [1, 1, 32, columns], row r being those of token inputs.rows[r]."""
        return self._logits(self._prefill(inputs))

    def sample_decode(self, inputs: DecodeInputs, controls: SamplingControls, tokens: ttnn.Tensor) -> None:
        """One token of each user -> the next one, written to tokens [1, 1, 1, 32] uint32."""
        self._sample(self._decode(inputs), controls, tokens)

    def sample_prefill(self, inputs: PrefillInputs, controls: SamplingControls, tokens: ttnn.Tensor) -> None:
        """A prompt -> what follows token inputs.rows[r] with row r's controls, written to tokens [1, 1, 1, 32] uint32."""
        self._sample(self._prefill(inputs), controls, tokens)

    def _decode(self, inputs: DecodeInputs) -> ttnn.Tensor:
        """-> [1, 1, 32, hidden] on the residual cores, what the LM head reads; so does _prefill."""
        rotation = self.rotary.rotation_decode(inputs.rotary_positions)
        x = self.embedding.forward_decode(inputs.tokens)  # [1, 1, 32, hidden]
        for layer in self.layers:
            x = layer.forward_decode(x, rotation, inputs.positions, inputs.page_table)
        rotation.deallocate()
        return self._normed(x)

    def _prefill(self, inputs: PrefillInputs) -> ttnn.Tensor:
        rotation = self.rotary.rotation_prefill(inputs.positions)
        x = self.embedding.forward_prefill(inputs.tokens)  # [1, 1, S, hidden]
        for layer in self.layers:
            x = layer.forward_prefill(x, rotation, inputs.page_table)
        rotation.deallocate()
        lines = ttnn.untilize(x)  # a table of rows to look up, so that which ones is no part of the program
        ttnn.deallocate(x)
        wanted = ttnn.embedding(inputs.rows, lines, layout=ttnn.TILE_LAYOUT, memory_config=self.decode.residual_memory)
        ttnn.deallocate(lines)
        return self._normed(ttnn.unsqueeze_to_4D(wanted))  # [1, 1, 32, hidden]

    def _normed(self, x: ttnn.Tensor) -> ttnn.Tensor:
        normed = self.norm.forward_decode(x)
        ttnn.deallocate(x)
        return normed

    def _logits(self, normed: ttnn.Tensor) -> list[ttnn.Tensor]:
        pieces = list(self.lm_head.forward(normed))
        ttnn.deallocate(normed)
        return pieces

    def _sample(self, normed: ttnn.Tensor, controls: SamplingControls, tokens: ttnn.Tensor) -> None:
        self.sampler.forward(self.lm_head.forward(normed, ttnn.L1_MEMORY_CONFIG), controls, tokens)
        ttnn.deallocate(normed)

    def read_logits(self, pieces: list[ttnn.Tensor]) -> torch.Tensor:
        """What forward_* returned, as [32 * rows of the mesh, vocab_size] on the host."""
        shape = tuple(self.mesh_device.shape)
        composer = ttnn.ConcatMesh2dToTensor(self.mesh_device, shape, dims=(0, 1))
        of_chips = [ttnn.to_torch(piece, mesh_composer=composer) for piece in pieces]  # [rows, tp, 32, columns] each
        columns = torch.cat(of_chips, dim=-1).transpose(1, 2).flatten(2)  # a chip's pieces, then chip after chip
        return columns.flatten(0, 1)[:, : self.config.vocab_size]
