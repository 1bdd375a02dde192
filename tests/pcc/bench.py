"""A mesh to try modules on: what their constructors want, and the way of tensors there and back."""

from typing import Optional

import torch
import ttnn

from models.common.metrics import assert_close
from models.demos.qwen25_7b.config import MAX_USERS, ParallelPlan, Recipe
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import Grid, worker_grid
from models.demos.qwen25_7b.plans.prefill_plan import PrefillPlan, plan_prefill
from models.demos.qwen25_7b.tt.collectives import TtAllReduce
from models.demos.qwen25_7b.tt.placement import replicate
from models.demos.qwen25_7b.tt.rotary import rotary_rows
from models.demos.qwen25_7b.weights import ModelWeights
from tests.pcc.reference import Reference

GAIN = 0.003  # how far a result's scale may be off; a low precision adds noise, and scales far less
LOFI_GAIN = 0.0065  # gate and up at LoFi: each is 0.28 % smaller, and silu(gate) follows gate by up to 1.1 times
GAIN_OF_A_ROW = {4: 0.004, 8: 0.005}  # a sum of two bfloat16 comes out up to 0.08 % too large: more chips, more sums


class Bench:
    """`batch` users of the reference's model on all chips of a mesh. grid: a chip's cores, unless the device's."""

    def __init__(
        self, mesh_device: ttnn.MeshDevice, reference: Reference, *, batch: int = MAX_USERS, grid: Optional[Grid] = None
    ):
        self.mesh_device, self.reference, self.config = mesh_device, reference, reference.config
        self.plan = ParallelPlan.make(self.config, mesh_device.get_num_devices())
        self.decode = DecodePlan.make(self.config, self.plan, grid or worker_grid(mesh_device), batch)
        self.weights = ModelWeights(reference.weights, self.config, self.plan)

    def all_reduce(self, recipe: Recipe) -> TtAllReduce:
        return TtAllReduce(self.mesh_device, self.decode, recipe.summands)

    def put_users(self, rows: torch.Tensor) -> ttnn.Tensor:
        """rows [users, hidden] -> [1, 1, 32, hidden] on the residual cores; what follows the users is loud noise."""
        whole = 1e3 * torch.randn(1, 1, MAX_USERS, rows.shape[1], generator=torch.Generator().manual_seed(0))
        whole[0, 0, : len(rows)] = rows
        return replicate(whole, self.mesh_device, memory_config=self.decode.residual_memory)

    def prefill_plan(self, rows: int, recipe: Recipe) -> PrefillPlan:
        return plan_prefill(self.config, self.plan, recipe, self.decode.grid, rows, self.decode.l1_room)

    def put_tokens(self, rows: torch.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """rows [tokens, hidden] -> [1, 1, plan.rows, hidden] block-sharded in L1; what follows the tokens is loud noise."""
        whole = 1e3 * torch.randn(1, 1, plan.rows, rows.shape[1], generator=torch.Generator().manual_seed(0))
        whole[0, 0, : len(rows)] = rows
        return replicate(whole, self.mesh_device, memory_config=plan.residual_memory)

    def put_ints(self, ints: torch.Tensor, dtype: ttnn.DataType) -> ttnn.Tensor:
        """Token ids, positions, page tables."""
        return replicate(ints.int(), self.mesh_device, dtype, ttnn.ROW_MAJOR_LAYOUT)

    def rotary_positions(self, positions: torch.Tensor) -> torch.Tensor:
        return rotary_rows(positions, self.decode)

    def get(self, tensor: ttnn.Tensor, dim: int = 0) -> torch.Tensor:
        """What the chips hold, side by side along `dim`."""
        return read(self.mesh_device, tensor, dim)

    def take_rows(self, tensor: ttnn.Tensor, count: int) -> list[torch.Tensor]:
        """The first `count` rows [count, width] of every chip's [1, 1, rows, width]; frees the tensor."""
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
    """assert_module of what an MLP is part of. With gate and up in 4 bits only against Hugging Face with such weights:
    what the format loses is judged by KL (quantize/README.md)."""
    if recipe.mlp_in.format != "bfloat4_b":
        assert_module(chips, expected, in_format=in_format, pcc=pcc, gain=gain)
        return
    assert_module(chips, in_format, pcc=pcc, gain=(usual_gain(len(chips)) if gain is None else gain) + LOFI_GAIN)


def assert_module(
    chips: list[torch.Tensor],
    expected: torch.Tensor,
    *,
    pcc: float,
    in_format: Optional[torch.Tensor] = None,
    gain: Optional[float] = None,
) -> None:
    """Every chip's result is as near to Hugging Face's as `pcc` and what follows from it say, and of its scale.

    in_format: what Hugging Face makes of the weights in the formats that the chips keep them in. A format's error may
    lie along the result by chance; what the chips compute with it may not.
    """
    for actual in chips:
        assert_close(actual, expected, pcc=pcc)
        assert_scale(
            actual, expected if in_format is None else in_format, usual_gain(len(chips)) if gain is None else gain
        )


def usual_gain(chips: int) -> float:
    """How far the scale of a sum over `chips` chips may be off."""
    return GAIN_OF_A_ROW.get(chips, GAIN)


def assert_scale(actual: torch.Tensor, expected: torch.Tensor, gain: float) -> None:
    scale = float(actual.flatten().double() @ expected.flatten().double() / expected.double().pow(2).sum())
    assert abs(scale - 1) <= gain, f"the result is {scale:.4f} times what it should be"


def evened(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """x [rows, channels], each channel divided by its size in `like`: a loud channel counts no more than another."""
    return x / like.pow(2).mean(0).sqrt()
