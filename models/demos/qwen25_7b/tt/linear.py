"""TtLinear: a projection over the chips of a row. TtAllReduce: the sum of the chips' partial sums, on every chip.

A projection by columns of its weight (QKV, gate, up, LM head) gives each chip its columns of y. A projection by rows
(O, down) gives each chip a partial sum of y, which a TtAllReduce adds up.
"""

from typing import Optional

import torch
import ttnn

from ..config.recipe import Fidelity
from ..plans.all_reduce_plan import Topology
from ..plans.decode_plan import DecodeMatmul
from ..plans.grids import TILE, Shards, width_sharded
from ..plans.model_table import LinearSpec
from ..plans.prefill_plan import PrefillMatmul, PrefillPlan
from ..weights.model_weights import BuildShard
from .model_config import TtModelConfig
from .placement import dram_width_sharded, links_between, memory_config, place, rectangle, replicate


def compute_config(fidelity: Fidelity = "HiFi3") -> ttnn.WormholeComputeKernelConfig:
    """Accumulation in float32: the model sums 3584 to 18944 products."""
    return ttnn.WormholeComputeKernelConfig(
        math_fidelity=getattr(ttnn.MathFidelity, fidelity),
        math_approx_mode=False,
        fp32_dest_acc_en=True,
        packer_l1_acc=True,
    )


class TtLinear:
    """y = x @ weight (+ bias), each chip with its shard of the weight."""

    def __init__(self, mesh_device: ttnn.MeshDevice, row: LinearSpec, build: BuildShard):
        columns = row.decode_matmul.bank_shard * TILE
        self.kernel = compute_config(row.group.math_fidelity)
        self.decode_program = decode_program(row.decode_matmul)
        memory, bias_memory = (dram_width_sharded(mesh_device, rows, columns) for rows in (row.weight.shape[0], TILE))
        self.weight = place(row.weight, mesh_device, build, memory)
        self.prefill_weight = place(row.weight, mesh_device, build) if row.prefill_copy else self.weight
        # The kernels of both modes read the bias bank by bank; an interleaved bias gives wrong values.
        self.bias = place(row.bias, mesh_device, build, bias_memory) if row.bias else None

    def forward_decode(self, x: ttnn.Tensor, dtype: ttnn.DataType = ttnn.bfloat16) -> ttnn.Tensor:
        """[1, 1, 32, in] width-sharded in L1 -> [1, 1, 32, out] of dtype, width-sharded in L1."""
        memory = ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG
        return self._multiply(x, self.weight, dtype, program_config=self.decode_program, memory_config=memory)

    def forward_prefill(self, x: ttnn.Tensor, matmul: PrefillMatmul, memory: Optional[Shards]) -> ttnn.Tensor:
        """[1, 1, S, in] in L1 -> [1, 1, S, out] bfloat16 in L1, cut as `memory`; None: interleaved."""
        program, config = prefill_program(matmul), memory_config(memory)
        return self._multiply(x, self.prefill_weight, ttnn.bfloat16, program_config=program, memory_config=config)

    def _multiply(self, x: ttnn.Tensor, weight: ttnn.Tensor, dtype: ttnn.DataType, **configs) -> ttnn.Tensor:
        return ttnn.linear(x, weight, bias=self.bias, dtype=dtype, compute_kernel_config=self.kernel, **configs)


def decode_program(matmul: DecodeMatmul) -> ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig:
    return ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
        in0_block_w=matmul.in0_block_w,
        per_core_M=1,
        per_core_N=matmul.per_core_n,
        fused_activation=None,
        num_workers_per_dram_bank=matmul.chip.readers_per_bank,
    )


def prefill_program(matmul: PrefillMatmul) -> ttnn.MatmulMultiCoreReuseMultiCastProgramConfig:
    return ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=(matmul.grid.x, matmul.grid.y),
        in0_block_w=matmul.in0_block_w,
        out_subblock_h=matmul.subblock_h,
        out_subblock_w=matmul.subblock_w,
        per_core_M=matmul.per_core_m,
        per_core_N=matmul.per_core_n,
        transpose_mcast=False,
        fused_activation=None,
        fuse_batch=True,
    )


# ---- the all-reduce of a projection by rows

TOPOLOGIES: dict[Topology, ttnn.Topology] = {"line": ttnn.Topology.Linear, "ring": ttnn.Topology.Ring}


class TtAllReduce:
    """The all-reduce after attention or after the MLP. With one chip both forwards return their input.

    Attention and MLP need an instance each, which all layers share (TtAllReduceAsync).
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, model_config: TtModelConfig):
        plan = model_config.decode.all_reduce
        self.partial_sum_dtype = getattr(ttnn, plan.dtype)
        self.memory = memory_config(model_config.decode.residual_memory)
        self.decode_sum = METHODS[plan.method](mesh_device, model_config)
        self.prefill_sum = (TtScatterGather if plan.chips > 1 else TtNoSum)(mesh_device, model_config)

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] of partial_sum_dtype, width-sharded -> bfloat16 on the residual cores. Frees x."""
        return self.decode_sum.forward(x, ttnn.L1_MEMORY_CONFIG, self.memory)

    def forward_prefill(self, x: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """[1, 1, S, hidden] in L1 -> [1, 1, S, hidden] of plan.gathered, sharded as the residual. Frees x."""
        scattered, memory = memory_config(plan.scattered_memory), memory_config(plan.residual_memory)
        return self.prefill_sum.forward(x, scattered, memory, getattr(ttnn, plan.gathered))


class TtNoSum:
    """One chip's partial sum is the sum."""

    def __init__(self, *_):
        pass

    def forward(self, x: ttnn.Tensor, *_) -> ttnn.Tensor:
        return x


class TtAllReduceAsync:
    """One op: each chip writes its partial sum into the buffer of every chip, which adds them up.

    A chip may enter the next all-reduce while its neighbor still adds up this one, so two all-reduces in a row must not
    share a buffer. A chip cannot be two all-reduces ahead, because each one waits for all chips.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, model_config: TtModelConfig):
        plan = model_config.decode.all_reduce
        self.mesh_device = mesh_device
        self.links = links_between(mesh_device)
        self.topology = TOPOLOGIES[plan.topology]
        width = plan.chips * plan.hidden
        # The kernel lays the buffer out by the dtype of its input and ignores the dtype of the buffer.
        memory = memory_config(width_sharded(width, model_config.decode.residual))
        dtype = getattr(ttnn, plan.dtype)
        self.buffer = replicate(torch.zeros(1, 1, 32, width), mesh_device, dtype, memory_config=memory)
        self.semaphore = ttnn.create_global_semaphore(mesh_device, rectangle(model_config.decode.grid), 0)

    def forward(self, x: ttnn.Tensor, scattered: ttnn.MemoryConfig, memory: ttnn.MemoryConfig) -> ttnn.Tensor:
        """x, width-sharded on the residual cores -> the sum in bfloat16. Nothing is scattered. Frees x."""
        y = ttnn.experimental.all_reduce_async(
            x,
            self.buffer,
            cluster_axis=1,
            mesh_device=self.mesh_device,
            multi_device_global_semaphore=self.semaphore,
            dtype=ttnn.bfloat16,
            memory_config=memory,
            topology=self.topology,
            num_links=self.links,
        )  # [1, 1, 32, hidden]
        ttnn.deallocate(x)
        return y


class TtScatterGather:
    """Two ops: each chip adds up its share of the columns, then gathers the other chips' columns."""

    def __init__(self, mesh_device: ttnn.MeshDevice, model_config: TtModelConfig):
        self.links = links_between(mesh_device)
        self.topology = TOPOLOGIES[model_config.decode.all_reduce.topology]
        # Semaphores of a cached reduce-scatter program would stay in L1 among activations and leave a hole
        # in L1. A mesh opened with l1_small_size has a place for them.
        self.has_l1_small = ttnn.get_memory_view(mesh_device, ttnn.BufferType.L1_SMALL).total_bytes_per_bank > 0

    def forward(
        self,
        x: ttnn.Tensor,
        scattered: ttnn.MemoryConfig,
        memory: ttnn.MemoryConfig,
        gathered: ttnn.DataType = ttnn.bfloat16,
    ) -> ttnn.Tensor:
        """x [1, 1, S, hidden] bfloat16 -> the sum in `memory`, of dtype `gathered`. Frees x.

        scattered: memory of the sum of a chip's columns. gathered: bfloat8_b rounds the finished sum once and halves
        the bytes of the all-gather. The reduce-scatter stays bfloat16, because it would round the sum on every chip.
        """
        summed = ttnn.reduce_scatter(
            x,
            dim=3,
            cluster_axis=1,
            memory_config=scattered,
            num_links=self.links,
            topology=self.topology,
            use_l1_small_for_semaphores=self.has_l1_small,
        )  # [1, 1, S, hidden / chips]
        ttnn.deallocate(x)
        if gathered != ttnn.bfloat16:
            rounded = ttnn.typecast(summed, gathered)
            ttnn.deallocate(summed)
            summed = rounded
        y = ttnn.all_gather(
            summed, dim=3, cluster_axis=1, memory_config=memory, num_links=self.links, topology=self.topology
        )  # [1, 1, S, hidden]
        ttnn.deallocate(summed)
        return y


METHODS = {"none": TtNoSum, "all_reduce_async": TtAllReduceAsync, "reduce_scatter + all_gather": TtScatterGather}
