"""TtModelConfig: the one configuration object that every module takes."""

from dataclasses import dataclass, replace

import ttnn

from ..config import QwenConfig, Recipe
from ..errors import UserError
from ..plans.decode_plan import DecodePlan, lm_head_shards
from ..plans.key_table import KeyTable
from ..plans.memory_budget import MemoryBudget, memory_budget
from ..plans.parallel_plan import MAX_USERS, ParallelPlan
from ..plans.planner import check_decode, fit_prefill_layers, max_prefill_rows
from ..plans.prefill_plan import PrefillPlan
from .placement import chip_of, chips_in_row, links_between, row_topology


@dataclass(frozen=True)
class TtModelConfig:
    """The model, its split over the chips of a mesh row, its number formats and the plan of a decode step."""

    qwen: QwenConfig
    parallel: ParallelPlan
    recipe: Recipe  # of the whole model; of one layer in the config that `of_layer` returns
    decode: DecodePlan
    max_seq_len: int  # tokens of a sequence

    @classmethod
    def make(
        cls, mesh_device: ttnn.MeshDevice, qwen: QwenConfig, recipe: Recipe, *, batch: int, max_seq_len: int
    ) -> "TtModelConfig":
        """The configuration for at least `batch` slots of up to max_seq_len tokens on a row of the mesh.

        UserError for a number out of range, and for a model that no plan fits into a core's L1.
        """
        if not 1 <= batch <= MAX_USERS:
            raise UserError(f"batch must be 1 to {MAX_USERS} users, got {batch}")
        if not 1 <= max_seq_len <= qwen.context:
            raise UserError(f"max_seq_len must be 1 to the model's {qwen.context} tokens, got {max_seq_len}")
        parallel = ParallelPlan.make(qwen, chips_in_row(mesh_device))
        chips = dict(topology=row_topology(mesh_device), links=links_between(mesh_device))
        sums = recipe.all_reduce_dtype
        decode = DecodePlan.make(qwen, parallel, chip_of(mesh_device), batch, partial_sums=sums, **chips)
        check_decode(qwen, parallel, recipe, decode)
        return cls(qwen, parallel, recipe, decode, max_seq_len)

    def of_layer(self, i: int) -> "TtModelConfig":
        """The configuration of layer i. Its recipe may differ from the model's."""
        return replace(self, recipe=self.recipe.of_layer(i))

    @property
    def key_table(self) -> KeyTable:
        """The order of a chip's tables of centered keys."""
        return KeyTable(self.parallel.kv_heads, self.max_seq_len)

    @property
    def memory_budget(self) -> MemoryBudget:
        """DRAM of a chip without any cache."""
        return memory_budget(self.qwen, self.parallel, self.recipe, self.decode.chip, self.max_seq_len)

    @property
    def logits_shards(self) -> list[tuple[int, int]]:
        """(first column, columns) of each shard of a chip's logits: the LM head is one matmul a shard."""
        return lm_head_shards(self.parallel.vocab, self.recipe.lm_head.format, self.decode.chip)

    @property
    def max_prefill_rows(self) -> int:
        """Rows of the largest prefill batch that fits L1, a power of two."""
        return max_prefill_rows(self.qwen, self.parallel, self.recipe, self.decode.chip, self.decode.l1_room)

    def prefill_plans(self, rows: int) -> list[PrefillPlan]:
        """Each layer's plan of a prefill batch. rows: a power of two from 32 to max_prefill_rows."""
        return fit_prefill_layers(self.qwen, self.parallel, self.recipe, self.decode.chip, rows, self.decode.l1_room)
