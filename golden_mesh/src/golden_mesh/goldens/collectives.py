"""Collectives. A tensor argument is the list of the group's shards in mesh order, and so is the result.

Chips add bfloat16 in pairs, as ttnn.add does, and round each sum. Sums of float32 are torch's. Chips with
equal results share one tensor.
"""

from functools import reduce

import torch
import ttnn

from golden_mesh.arithmetic import engine
from golden_mesh.errors import GoldenError
from golden_mesh.registry import collective, golden_table


def _sum(shards: list[torch.Tensor], in_float32: bool) -> torch.Tensor:
    """Add the shards in pairs to dest: one chip holds them all."""
    if in_float32 or shards[0].dtype != torch.bfloat16:
        return sum(shard.float() for shard in shards)
    total = torch.zeros(shards[0].shape)
    for at in range(0, len(shards), 2):
        pair = shards[at : at + 2]
        first, second = pair if len(pair) == 2 else (*pair, torch.zeros_like(pair[0]))
        total = engine.add_to_bfloat16_dest(total, first, second)
    return total.bfloat16()


def parts_of_sum(shards: list[torch.Tensor], dim: int, ring: bool = False, at_once: bool = False) -> list[torch.Tensor]:
    """Return each chip's part of the sum.

    - line: the chips on one side, then the chip itself, then the chips on the other side.
    - ring: each half of the ring adds up on its way to the chip, which adds both halves and its own at once.
      On hardware the chip opposite belongs to one half in even chunks of tiles, to the other in odd ones; here
      always to one.
    - at_once: every chip sends its shard to the chip of the part, which adds all of them.
    """
    count = len(shards)
    if at_once or shards[0].dtype != torch.bfloat16:
        total = _sum(shards, in_float32=False)
    else:
        cut = [shard.tensor_split(count, dim) for shard in shards]  # [chip][part], also of less than count
        total = (_sum_in_ring if ring else _sum_in_line)(cut, dim).bfloat16()
    return [part.contiguous() for part in total.tensor_split(count, dim)]


def _sum_in_line(cut: list[tuple[torch.Tensor, ...]], dim: int) -> torch.Tensor:
    parts = []
    for at, pieces in enumerate(zip(*cut)):
        own = pieces[at]
        for arriving in (pieces[:at], pieces[:at:-1]):
            if arriving:
                own = engine.add(reduce(engine.add, arriving), own)
        parts.append(own)
    return torch.cat(parts, dim)


def _sum_in_ring(cut: list[tuple[torch.Tensor, ...]], dim: int) -> torch.Tensor:
    """All parts at once: what is added to a part after so many hops lies where the part does."""
    count = len(cut)
    half = count // 2

    def arriving(hops: int) -> torch.Tensor:
        return torch.cat([cut[(at - hops) % count][at] for at in range(count)], dim)

    longer = reduce(engine.add, map(arriving, range(half, 0, -1)))
    shorter = reduce(engine.add, map(arriving, range(1 + half - count, 0)))
    return engine.round_sum_(longer.float() + arriving(0).float() + shorter.float())


def is_ring(topology, chips: int) -> bool:
    """Whether a reduce-scatter runs around a ring. Without a topology it takes the fabric's."""
    if topology is None:
        return chips > 2 and ttnn.get_fabric_config() == ttnn.FabricConfig.FABRIC_1D_RING
    return chips > 2 and topology == ttnn.Topology.Ring


# A shard of at most so many bytes is reduced at once in a ring: each chip sends each part straight to its chip.
DIRECT_BYTES = 512 << 10


@collective("ttnn.all_reduce")
def all_reduce(input_tensor, topology):
    """A reduce-scatter of the last dimension and an all-gather."""
    return [torch.cat(reduce_scatter(input_tensor, -1, topology=topology), -1)] * len(input_tensor)


@collective("ttnn.experimental.all_reduce_async", ignores="num_devices")
def all_reduce_async(input_tensor, math_op, fp32_dest_acc):
    """The parameters have the order of the overload with a buffer."""
    if math_op is not None and math_op.name != "Sum":
        raise GoldenError(f"all_reduce_async by {math_op.name} has no golden")
    return [_sum(input_tensor, fp32_dest_acc)] * len(input_tensor)


@collective("ttnn.broadcast")
def broadcast(input_tensor, sender_coord, out):
    """Every chip has the sender's tensor. The mesh is one line."""
    if len(input_tensor) < len(out.coordinates):
        raise GoldenError("ttnn.broadcast along an axis of several lines has no golden")
    return [input_tensor[out.coordinates.index(tuple(sender_coord))]] * len(input_tensor)


@collective("ttnn.point_to_point")
def point_to_point(input_tensor, sender_coord, receiver_coord, output_tensor, out):
    """The receiver has the sender's tensor. The others keep what output_tensor has, or memory that is never written."""
    results = output_tensor or [None] * len(input_tensor)
    sender, receiver = (out.coordinates.index(tuple(at)) for at in (sender_coord, receiver_coord))
    return [input_tensor[sender] if at == receiver else own for at, own in enumerate(results)]


@collective("ttnn.moe_expert_token_remap")
def moe_expert_token_remap(topk_tensor, expert_mapping_tensor, expert_metadata_tensor, reduction_size, out):
    """Each chip's scores [1, B, S, its experts], 0 where a token did not select them, and which chunks have any.

    - topk_tensor: scores [1, B, S, experts].
    - expert_mapping_tensor: [1, 1, experts, chips], 1 where a chip has an expert.
    - expert_metadata_tensor: the selected experts [1, B, S, K].
    """
    results = []
    given = zip(topk_tensor, expert_mapping_tensor, expert_metadata_tensor)
    for chip, (scores, mapping, chosen) in enumerate(given):
        experts = mapping[0, 0, :, chip].nonzero().flatten()
        selected = (chosen.long()[..., None] == experts).any(-2)
        mine = torch.where(selected, scores[..., experts].float(), 0)
        chunks = mine.flatten(0, 2).unflatten(0, (-1, reduction_size)) != 0
        results.append((mine, chunks.any(1).int().reshape(out[1].shape)))
    return results


def all_gather(input_tensor, dim):
    return [torch.cat(input_tensor, dim)] * len(input_tensor)


@collective("ttnn.reduce_scatter")
def reduce_scatter(input_tensor, dim, intermediate_memory_config=None, use_l1_small_for_semaphores=False, *, topology):
    ring = is_ring(topology, len(input_tensor))
    knobs = use_l1_small_for_semaphores or intermediate_memory_config is not None
    shard = input_tensor[0]
    direct = ring and not knobs and shard.numel() * shard.element_size() <= DIRECT_BYTES
    return parts_of_sum(input_tensor, dim, ring, at_once=direct)


def mesh_partition(input_tensor, dim):
    """The n-th chip of a group keeps the n-th part of its tensor: the inverse of all_gather."""
    parts = len(input_tensor)
    return [shard.chunk(parts, dim)[at].contiguous() for at, shard in enumerate(input_tensor)]


_ROWS = {
    # every chip has all chips' tensors
    "ttnn.all_broadcast": lambda input_tensor: [tuple(input_tensor)] * len(input_tensor),
    "ttnn.all_gather ttnn.experimental.all_gather_async": all_gather,
    # the last chip's shard comes first
    "ttnn.experimental.all_gather_async_reversed": lambda input_tensor, dim: all_gather(input_tensor[::-1], dim),
    # a tensor that is sharded along in_dim becomes sharded along out_dim
    "ttnn.experimental.all_to_all_async_generic": lambda input_tensor, in_dim, out_dim: list(
        torch.cat(input_tensor, in_dim).chunk(len(input_tensor), out_dim)
    ),
    "ttnn.experimental.reduce_scatter_minimal_async": lambda input_tensor, dim, topology=None: parts_of_sum(
        input_tensor, dim, is_ring(topology, len(input_tensor))
    ),
    "ttnn.mesh_partition": mesh_partition,
}
golden_table(_ROWS, over_chips=True)
