"""The part of an op's compute_kernel_config that changes numbers, and ttnn's defaults without a config."""

from dataclasses import dataclass

import ttnn

from golden_mesh.arithmetic.plain import in_float32
from golden_mesh.arithmetic.special import on_blackhole

PHASES = {"LoFi": 1, "HiFi2": 2, "HiFi3": 3, "HiFi4": 4}


def finest() -> str:
    """The library's finest fidelity with a float32 dest: a Wormhole's HiFi4 is wrong (HAZARDS.md)."""
    return "HiFi4" if on_blackhole() else "HiFi3"


@dataclass(frozen=True)
class Kernel:
    """The settings of a compute kernel config that change numbers.

    - phases: fidelity phases, of four (math fidelity).
    - wide: dest holds float32, not bfloat16.
    - approximate: math_approx_mode. Some ops use it for their exp.
    - in_l1: packer_l1_acc. A matmul adds blocks of the inner dim in L1. Else dest goes on from the last block.
    - spills: the block float in which a bfloat16 dest waits between these blocks, if it is not itself.
    """

    phases: int
    wide: bool
    approximate: bool = False
    in_l1: bool = True
    spills: ttnn.DataType | None = None

    @staticmethod
    @in_float32(lambda *config, **defaults: Kernel(4, wide=True))
    def of(config, fidelity: str, *, wide: bool = False, approximate: bool = False, in_l1: bool = True) -> "Kernel":
        """Return the kernel of `config`. Without one it is the op's own default, given by the other arguments."""
        if config is None:
            return Kernel(PHASES[fidelity], wide, approximate, in_l1)
        return Kernel(
            PHASES[config.math_fidelity.name], config.fp32_dest_acc_en, config.math_approx_mode, config.packer_l1_acc
        )
