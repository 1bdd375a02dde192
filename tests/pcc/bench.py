"""A mesh for module tests: constructor arguments, and tensor transfers to and from the chips."""

from dataclasses import replace
from typing import Optional

import torch
import ttnn

from models.common.metrics import assert_close
from models.demos.qwen25_7b.config import MAX_USERS, ParallelPlan, Recipe
from models.demos.qwen25_7b.plans.all_reduce_plan import AllReducePlan
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import Grid, worker_grid
from models.demos.qwen25_7b.plans.planner import plan_prefill
from models.demos.qwen25_7b.plans.prefill_plan import PrefillPlan
from models.demos.qwen25_7b.tt.inputs import expand_rotary_positions
from models.demos.qwen25_7b.tt.linear import TtAllReduce
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.placement import replicate, row_topology
from models.demos.qwen25_7b.weights import ModelWeights
from tests.pcc.reference import Reference

CONTEXT = 1024  # tokens that a user's blocks hold
GAIN = 0.003  # allowed relative error in a result's scale; low precision hardly changes the scale
# bfloat16 sums that a prefill rounds to bfloat8_b before their all-gather, on simulated chips
GATHERED_GAIN = 0.0028
LOFI_GAIN = 0.0065  # LoFi: gate and up are 0.28 % smaller each, silu(gate) by up to 1.1 times that
GAIN_OF_A_ROW = {
    4: 0.004,
    8: 0.005,
}  # a sum of two bfloat16 is up to 0.08 % too large, and more chips add more sums


class Bench:
    """`batch` users of the reference's model on all chips of a mesh.

    grid: cores of a chip. Default: the device's worker grid.
    """

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        reference: Reference,
        *,
        batch: int = MAX_USERS,
        grid: Optional[Grid] = None,
    ):
        self.mesh_device, self.reference, self.config = mesh_device, reference, reference.config
        self.plan = ParallelPlan.make(self.config, mesh_device.get_num_devices())
        self.decode = DecodePlan.make(
            self.config,
            self.plan,
            grid or worker_grid(mesh_device),
            batch,
            topology=row_topology(mesh_device),
        )
        self.weights = ModelWeights(reference.weights, self.config, self.plan)

    def model_config(self, recipe: Recipe, max_seq_len: int = CONTEXT) -> TtModelConfig:
        sums = AllReducePlan.make(
            self.plan.tp,
            self.decode.all_reduce.topology,
            self.config.hidden_size,
            recipe.all_reduce_dtype,
        )
        decode = replace(self.decode, all_reduce=sums)
        return TtModelConfig(self.config, self.plan, recipe, decode, max_seq_len)

    def all_reduce(self, recipe: Recipe) -> TtAllReduce:
        return TtAllReduce(self.mesh_device, self.model_config(recipe))

    def prefill_gain(self, recipe: Recipe) -> float:
        """Allowed relative error in the scale of a prefill's all-reduce."""
        rounded = self.plan.tp > 1 and recipe.all_reduce_dtype == "bfloat8_b"
        return usual_gain(self.plan.tp) + (GATHERED_GAIN if rounded else 0)

    def put_users(self, rows: torch.Tensor) -> ttnn.Tensor:
        """Send rows [users, hidden] as [1, 1, 32, hidden] to the residual cores.

        Inactive slots hold large noise.
        """
        whole = 1e3 * torch.randn(
            1, 1, MAX_USERS, rows.shape[1], generator=torch.Generator().manual_seed(0)
        )
        whole[0, 0, : len(rows)] = rows
        return replicate(whole, self.mesh_device, memory_config=self.decode.residual_memory)

    def prefill_plan(self, rows: int, recipe: Recipe) -> PrefillPlan:
        return plan_prefill(
            self.config, self.plan, recipe, self.decode.grid, rows, self.decode.l1_room
        )

    def put_tokens(self, rows: torch.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """Send rows [tokens, hidden] as [1, 1, plan.rows, hidden], block-sharded in L1.

        Rows behind the tokens hold large noise.
        """
        whole = 1e3 * torch.randn(
            1, 1, plan.rows, rows.shape[1], generator=torch.Generator().manual_seed(0)
        )
        whole[0, 0, : len(rows)] = rows
        return replicate(whole, self.mesh_device, memory_config=plan.residual_memory)

    def put_ints(self, ints: torch.Tensor, dtype: ttnn.DataType) -> ttnn.Tensor:
        """Send token ids, positions or page tables to every chip, row-major."""
        return replicate(ints.int(), self.mesh_device, dtype, ttnn.ROW_MAJOR_LAYOUT)

    def rotary_positions(self, positions: torch.Tensor) -> torch.Tensor:
        return expand_rotary_positions(positions, self.decode)

    def get(self, tensor: ttnn.Tensor, dim: int = 0) -> torch.Tensor:
        """Return the chips' shards side by side along `dim`."""
        return read(self.mesh_device, tensor, dim)

    def take_rows(self, tensor: ttnn.Tensor, count: int) -> list[torch.Tensor]:
        """Return the first `count` rows of each chip's [1, 1, rows, width], and free the tensor.

        Each result is [count, width].
        """
        chips = list(self.get(tensor)[:, 0, :count].float())
        ttnn.deallocate(tensor)
        return chips


def read(mesh_device: ttnn.MeshDevice, tensor: ttnn.Tensor, dim: int) -> torch.Tensor:
    return ttnn.to_torch(tensor, mesh_composer=ttnn.ConcatMeshToTensor(mesh_device, dim=dim))


def assert_mlp(
    chips: list[torch.Tensor],
    recipe: Recipe,
    expected: torch.Tensor,
    in_format: torch.Tensor,
    *,
    pcc: float,
    gain: Optional[float] = None,
) -> None:
    """Apply assert_module to the result of an MLP, or of a layer with one.

    With gate and up in 4 bits, the only reference is Hugging Face with 4-bit weights.
    KL judges the loss of that format (docs/quantization.md).
    """
    if recipe.mlp_in.format != "bfloat4_b":
        assert_module(chips, expected, in_format=in_format, pcc=pcc, gain=gain)
        return
    assert_module(
        chips,
        in_format,
        pcc=pcc,
        gain=(usual_gain(len(chips)) if gain is None else gain) + LOFI_GAIN,
    )


def assert_module(
    chips: list[torch.Tensor],
    expected: torch.Tensor,
    *,
    pcc: float,
    in_format: Optional[torch.Tensor] = None,
    gain: Optional[float] = None,
) -> None:
    """Assert that each chip's result is close to Hugging Face's by `pcc`, and has the right scale.

    in_format: Hugging Face's result with weights in the chips' formats. It is the reference for the
    scale, because a format's error may change the scale by chance.
    """
    for actual in chips:
        assert_close(actual, expected, pcc=pcc)
        assert_scale(
            actual,
            expected if in_format is None else in_format,
            usual_gain(len(chips)) if gain is None else gain,
        )


def usual_gain(chips: int) -> float:
    """Return the allowed relative error in the scale of a sum over `chips` chips."""
    return GAIN_OF_A_ROW.get(chips, GAIN)


def assert_scale(actual: torch.Tensor, expected: torch.Tensor, gain: float) -> None:
    scale = float(
        actual.flatten().double() @ expected.flatten().double() / expected.double().pow(2).sum()
    )
    assert abs(scale - 1) <= gain, f"the result is {scale:.4f} times what it should be"


def evened(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Divide each channel of x [rows, channels] by its RMS in `like`: outliers count no more."""
    return x / like.pow(2).mean(0).sqrt()
