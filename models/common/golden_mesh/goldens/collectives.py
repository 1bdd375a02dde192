"""Ops across chips: every tensor argument is the list of the group's shards, in mesh order; so is the result.

Chips add bfloat16 two at a time, as ttnn.add does, and round each sum; how float32 is added is not modelled (torch's
sum). Chips that end up with the same value share one tensor.
"""

from functools import reduce

import torch

from models.common.golden_mesh.arithmetic import engine
from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.registry import collective


def _sum(shards: list[torch.Tensor]) -> torch.Tensor:
    """All shards lie in one chip's memory, and two after two are added to what dest holds."""
    if shards[0].dtype != torch.bfloat16:
        return sum(shard.float() for shard in shards)
    total = None
    for at in range(0, len(shards), 2):
        pair = sum(shard.float() for shard in shards[at : at + 2])
        total = engine.round_sum_(pair if total is None else total.add_(pair))
    return total.bfloat16()


def _parts(shards: list[torch.Tensor], dim: int) -> list[torch.Tensor]:
    """Each chip's part of the sum: what comes down the line from one side, its own, and what comes from the other."""
    count = len(shards)
    cut = [shard.chunk(count, dim) for shard in shards]  # [chip][part]
    if shards[0].dtype != torch.bfloat16:
        return [sum(pieces[part].float() for pieces in cut) for part in range(count)]
    results = []
    for part in range(count):
        own = cut[part][part]
        for side in (range(part), range(count - 1, part, -1)):
            arriving = [cut[chip][part] for chip in side]
            if arriving:
                own = engine.add(reduce(engine.add, arriving), own)
        results.append(own.bfloat16())
    return results


@collective("ttnn.all_reduce")
def all_reduce(input_tensor, *, cluster_axis=None):
    """A reduce-scatter of the last dimension and an all-gather."""
    return [torch.cat(_parts(input_tensor, -1), -1)] * len(input_tensor)


@collective("ttnn.experimental.all_reduce_async")
def all_reduce_async(
    input_tensor,
    buffer_tensor=None,
    cluster_axis=None,
    mesh_device=None,
    multi_device_global_semaphore=None,
    *,
    num_devices=None,
    barrier_semaphores=None,
    rs_global_semaphores=None,
    ag_global_semaphores=None,
    math_op=None,
    dtype=None,
    use_optimal_ccl_for_llama=False,
    fp32_dest_acc=False,
):
    """Positional order of the overload with a buffer; the other two overloads by keyword."""
    if math_op is not None and math_op.name != "Sum":
        raise GoldenError(f"all_reduce_async by {math_op.name} has no golden")
    return [_sum(input_tensor)] * len(input_tensor)


@collective("ttnn.all_gather")
def all_gather(input_tensor, dim, *, cluster_axis=None, use_l1_small_for_semaphores=False):
    return [torch.cat(input_tensor, dim)] * len(input_tensor)


@collective("ttnn.experimental.all_gather_async")
def all_gather_async(
    input_tensor,
    dim,
    cluster_axis=None,
    mesh_device=None,
    topology=None,
    multi_device_global_semaphore=None,
    *,
    use_optimal_ccl_for_llama=False,
    use_broadcast=False,
):
    """Positional order of the overload with a cluster axis; a persistent buffer and semaphores by keyword."""
    return [torch.cat(input_tensor, dim)] * len(input_tensor)


@collective("ttnn.reduce_scatter")
def reduce_scatter(
    input_tensor, dim, *, cluster_axis=None, intermediate_memory_config=None, use_l1_small_for_semaphores=False
):
    return _parts(input_tensor, dim)


@collective("ttnn.experimental.reduce_scatter_minimal_async")
def reduce_scatter_minimal_async(
    input_tensor,
    persistent_output_buffers=None,
    dim=None,
    multi_device_global_semaphore=None,
    *,
    cluster_axis=None,
    intermediate_memory_config=None,
):
    return _parts(input_tensor, dim)


@collective("ttnn.mesh_partition")
def mesh_partition(input_tensor, dim, cluster_axis=None):
    """The other way round from all_gather: the n-th chip of a group keeps the n-th part of what it has."""
    parts = len(input_tensor)
    return [shard.chunk(parts, dim)[at].contiguous() for at, shard in enumerate(input_tensor)]
