"""Calls that the library accepts and a Wormhole chip gets wrong, as seen on simulated chips: refused here."""
from typing import Any

import ttnn

from models.common.golden_mesh.errors import GoldenError


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
