"""Calls that the library accepts and a Wormhole chip gets wrong, as seen on simulated chips: refused here."""

from typing import Any

import ttnn

from models.common.golden_mesh.errors import GoldenError


def check_narrow(whole: ttnn.Tensor, view: ttnn.Tensor, start: int) -> None:
    """GoldenError if a view of some shards (ttnn.narrow of the last dim) lists its cores in another order than they lie.

    The library sorts a view's cores anew; where they are no whole rows of cores it may put later shards first, and the
    ops that go by this list then take the wrong columns.
    """
    spec = whole.memory_config().shard_spec
    if spec is None or view.shape[-1] == whole.shape[-1]:
        return
    first = start % whole.shape[-1] // spec.shape[1]
    cores = _cores(spec)[first : first + view.memory_config().shard_spec.grid.num_cores()]
    if _cores(view.memory_config().shard_spec) != cores:
        raise GoldenError(
            f"ttnn.narrow: the view's cores are listed in another order than its shards lie ({len(cores)} cores from "
            f"core {first}): give each part whole rows of cores, or all of it in one row"
        )


def _cores(spec: ttnn.ShardSpec) -> list[tuple[int, int]]:
    return [(core.x, core.y) for core in ttnn.corerange_to_cores(spec.grid, row_wise=True)]


def check(name: str, args: tuple, kwargs: dict[str, Any]) -> None:
    """GoldenError if the call is known to give wrong values on hardware."""
    bias = kwargs.get("bias")
    if name == "ttnn.linear" and bias is not None and not bias.memory_config().is_sharded():
        weight = args[1] if len(args) > 1 else kwargs["input_tensor_b"]
        memory = weight.memory_config()
        if memory.is_sharded() and memory.buffer_type == ttnn.BufferType.DRAM:
            raise GoldenError(
                "ttnn.linear: with a DRAM-sharded weight the kernels read the bias bank by bank like the weight, so an "
                "interleaved bias gives wrong values on Wormhole (PCC 0.10 where a sharded one gives 0.999997): "
                "shard the bias over the DRAM banks as the weight is"
            )
