"""Calls that the library accepts and a Wormhole chip gets wrong, as seen on simulated chips: refused here."""
from typing import Any

import ttnn

from models.common.golden_mesh.errors import GoldenError

DRAM_SHARDED = ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig


def check(name: str, args: tuple, kwargs: dict[str, Any]) -> None:
    """GoldenError if the call is known to give wrong values on hardware."""
    if name in ("ttnn.linear", "ttnn.matmul"):
        bias = kwargs.get("bias")
        if (
            isinstance(kwargs.get("program_config"), DRAM_SHARDED)
            and bias is not None
            and not bias.memory_config().is_sharded()
        ):
            raise GoldenError(
                f"{name}: a DRAM-sharded matmul with an interleaved bias gives wrong values on Wormhole "
                "(PCC 0.10 where a bias that is DRAM-width-sharded like the weight gives 0.999997): shard the bias"
            )
