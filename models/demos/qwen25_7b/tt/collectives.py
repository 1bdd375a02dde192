"""TtAllReduce: the sum of the chips' summands, on every chip."""

import torch
import ttnn

from models.demos.qwen25_7b.config.recipe import SummandFormat
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.memory_configs import rectangle, width_sharded
from models.demos.qwen25_7b.plans.prefill_plan import PrefillPlan
from models.demos.qwen25_7b.tt.placement import chips_in_row, dtype_of, replicate


def links_between(mesh_device: ttnn.MeshDevice) -> int:
    """Ethernet links that every pair of neighbours in a row of chips has for collectives; 1 where a row is one chip.

    The fabric knows. The two chips of an N300 board have two links, but it keeps one of them for commands to the far chip
    where dispatch goes that way; a collective that takes it all the same hangs (tt-metal issue 25347).
    """
    return ttnn.get_num_links(mesh_device, cluster_axis=1) if chips_in_row(mesh_device) > 1 else 1


class TtAllReduce:
    """One op in decode, through a buffer that stays allocated: each chip writes its summand into every chip's.

    Give attention and MLP an instance each and share both over all layers. A chip may enter the next all-reduce while
    its neighbour still adds up this one, so two in a row must not share a buffer; it cannot get two ahead, since every
    all-reduce waits for all chips. On one chip there is nothing to add: the input is returned.

    summands: the format of the decode's on their way; in bfloat8_b they are 0.53 times as long. The sum is bfloat16.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, decode: DecodePlan, summands: SummandFormat):
        self.mesh_device = mesh_device
        self.chips = chips_in_row(mesh_device)
        self.memory = decode.residual_memory
        # What reduce-scatter keeps as long as its program is cached would lie among the tensors of that moment, and leave
        # a hole as large as they are. A mesh that was opened without l1_small_size has no other place for it.
        self.l1_small = ttnn.get_memory_view(mesh_device, ttnn.BufferType.L1_SMALL).total_bytes_per_bank > 0
        self.summand = dtype_of(summands) if self.chips > 1 else ttnn.bfloat16  # of forward_decode's input
        if self.chips > 1:
            self.links = links_between(mesh_device)
            width = self.chips * decode.hidden
            self.buffer = replicate(
                torch.zeros(1, 1, 32, width),
                mesh_device,
                self.summand,  # the kernel lays out the buffer by its input's format and does not look at the buffer's
                memory_config=width_sharded(width, decode.residual),
            )
            self.semaphore = ttnn.create_global_semaphore(mesh_device, rectangle(decode.grid), 0)

    def forward_decode(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, hidden] of self.summand, width-sharded in L1 -> bfloat16 on the residual cores. Frees x where it makes a new one."""
        if self.chips == 1:
            return x
        y = ttnn.experimental.all_reduce_async(
            x,
            self.buffer,
            cluster_axis=1,
            mesh_device=self.mesh_device,
            multi_device_global_semaphore=self.semaphore,
            dtype=ttnn.bfloat16,
            memory_config=self.memory,
            topology=ttnn.Topology.Linear,
            num_links=self.links,
        )
        ttnn.deallocate(x)
        return y

    def forward_prefill(self, x: ttnn.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """[1, 1, S, hidden] in L1, a summand -> the sum, block-sharded as the residual. Frees x where it makes a new one.

        Two ops: each chip adds up its part of the columns, then all get all parts.
        """
        if self.chips == 1:
            return x
        how = dict(cluster_axis=1, num_links=self.links, topology=ttnn.Topology.Linear)
        part = ttnn.reduce_scatter(
            x, dim=3, memory_config=plan.scattered_memory, use_l1_small_for_semaphores=self.l1_small, **how
        )  # [1, 1, S, hidden / chips]
        ttnn.deallocate(x)
        y = ttnn.all_gather(part, dim=3, memory_config=plan.residual_memory, **how)
        ttnn.deallocate(part)
        return y
