"""What of an op's compute_kernel_config changes numbers, and what ttnn takes where an op is given none."""

from dataclasses import dataclass

PHASES = {"LoFi": 1, "HiFi2": 2, "HiFi3": 3, "HiFi4": 4}


@dataclass(frozen=True)
class Kernel:
    """phases: how many of its four passes the multiplier makes (math fidelity). wide: dest holds float32, not bfloat16.
    approximate: math_approx_mode, which some ops take for their exp."""

    phases: int
    wide: bool
    approximate: bool = False

    @staticmethod
    def of(config, fidelity: str, *, wide: bool = False, approximate: bool = False) -> "Kernel":
        """The kernel that `config` asks for; without one, the op's own default, given by the other arguments."""
        if config is None:
            return Kernel(PHASES[fidelity], wide, approximate)
        return Kernel(PHASES[config.math_fidelity.name], config.fp32_dest_acc_en, config.math_approx_mode)
