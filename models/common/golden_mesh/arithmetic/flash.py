"""The steps of flash attention that prefill and decode share.

Keys come in chunks. Of each a core computes the scores, the weights relative to the largest score so far, their sum and their
product with the values; what it had before is multiplied by exp(old largest - new largest). The scale of the scores is applied
inside exp, and so to an additive mask, too.
"""

import torch
import ttnn

from models.common.golden_mesh.arithmetic import engine
from models.common.golden_mesh.arithmetic.kernel import Kernel
from models.common.golden_mesh.arithmetic.product import product
from models.common.golden_mesh.arithmetic.vector import exp

HIDDEN = -3.0e38  # the score of what a query may not see; finite, so that the difference of two is a number


def exp_is_approximate(program_config: ttnn.SDPAProgramConfig | None) -> bool:
    """Unless a program config says exp_approx_mode=False: that is ttnn's default, with and without a config."""
    return program_config is None or program_config.exp_approx_mode is not False


def weights(scores, largest, scale: float, kernel: Kernel, approximate: bool) -> torch.Tensor:
    """exp((scores - largest) * scale), float32 as dest holds it."""
    if kernel.wide:
        return exp(engine.add_in_float32_dest(scores, -largest), scale, approximate=approximate)
    result = exp(engine.subtract(scores, largest).float(), scale, approximate=approximate)
    return engine.keep(result, 8) if approximate else result.bfloat16().float()


def correction(old: torch.Tensor, new: torch.Tensor, scale: float) -> torch.Tensor:
    """exp((old - new) * scale), float32; here the kernels have the scale in bfloat16, cut."""
    return torch.exp((old - new) * engine.keep(torch.tensor(scale), 8).item())


def times(values: torch.Tensor, factor: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """values * factor, a column, packed to bfloat16."""
    return engine.to_bfloat16(engine.multiply(values, factor, kernel))


def sum_of_rows(x: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """[..., W] -> [..., 1], of what SrcB takes of x, as dest holds it."""
    if kernel.wide:
        return engine.source_b(x, kernel).sum(-1, keepdim=True)
    return product(x, torch.ones(x.shape[-1], 1), kernel)
