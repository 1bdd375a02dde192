"""Ops across chips: every tensor argument is the list of the group's shards, in mesh order; so is the result.

Sums are taken in float32 and rounded once. Chips that end up with the same value share one tensor.
"""

import torch

from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.registry import collective


def _sum(shards: list[torch.Tensor]) -> torch.Tensor:
    total = shards[0].to(torch.float32, copy=True)
    for shard in shards[1:]:
        total += shard
    return total


@collective("ttnn.all_reduce")
def all_reduce(input_tensor, *, cluster_axis=None):
    return [_sum(input_tensor)] * len(input_tensor)


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
    return [part.contiguous() for part in _sum(input_tensor).chunk(len(input_tensor), dim)]


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
    return [part.contiguous() for part in _sum(input_tensor).chunk(len(input_tensor), dim)]


@collective("ttnn.mesh_partition")
def mesh_partition(input_tensor, dim, cluster_axis=None):
    """The other way round from all_gather: the n-th chip of a group keeps the n-th part of what it has."""
    parts = len(input_tensor)
    return [shard.chunk(parts, dim)[at].contiguous() for at, shard in enumerate(input_tensor)]
