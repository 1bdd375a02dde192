"""TtModelConfig: the one configuration object that every module takes."""

from dataclasses import dataclass

import ttnn

from ..config import DecoderConfig, Recipe
from ..errors import UserError
from ..plans.decode_plan import DecodeLayout
from ..plans.model_table import ModelTable
from ..plans.parallel_plan import ParallelPlan
from ..plans.planner import check_decode, fit_prefill_layers, max_prefill_rows
from ..plans.prefill_plan import PrefillPlan
from .placement import chip_of, links_between, row_topology


@dataclass(frozen=True)
class TtModelConfig(ModelTable):
    """The model on a row of chips (ModelTable), and the plan of a decode step."""

    decode: DecodeLayout
    max_seq_len: int  # tokens of a sequence

    @classmethod
    def make(
        cls, mesh_device: ttnn.MeshDevice, config: DecoderConfig, recipe: Recipe, *, min_slots: int, max_seq_len: int
    ) -> "TtModelConfig":
        """The configuration for min_slots (1 to 32) slots or more of up to max_seq_len tokens, on a row of the mesh.

        UserError for a context longer than the model's, and for a model that no plan fits into a core's L1.
        """
        if not 1 <= max_seq_len <= config.context:
            raise UserError(f"max_seq_len must be 1 to the model's {config.context} tokens, got {max_seq_len}")
        parallel, chip = ParallelPlan.make(config, mesh_device.shape[1]), chip_of(mesh_device)
        topology, links = row_topology(mesh_device), links_between(mesh_device)
        decode = DecodeLayout.make(
            config, parallel, chip, min_slots, topology=topology, partial_sums=recipe.all_reduce_dtype, links=links
        )
        model_config = cls(config, parallel, recipe, chip, decode, max_seq_len)
        check_decode(model_config, decode)
        return model_config

    @property
    def max_prefill_rows(self) -> int:
        """Rows of the largest prefill batch that fits L1, a power of two."""
        return max_prefill_rows(self, self.decode.layer_l1)

    def prefill_plans(self, rows: int) -> list[PrefillPlan]:
        """Each layer's plan of a prefill batch. rows: a power of two from 32 to max_prefill_rows."""
        return fit_prefill_layers(self, rows, self.decode.layer_l1)
