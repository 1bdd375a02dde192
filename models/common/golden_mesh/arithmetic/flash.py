"""The steps of flash attention that prefill and decode share.

Keys come in chunks. Of each a core computes the scores, the weights relative to the largest score so far, their sum and
their product with the values; what it had before is multiplied by exp(old largest - new largest). The scale of the
scores is applied inside exp, and so to an additive mask, too.
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
    """exp((scores - largest) * scale), float32 as dest holds it. What is given has eleven bits at most."""
    if kernel.wide:
        return exp(engine.round_away(scores - largest, engine.SRC_B), scale, approximate=approximate)
    result = exp(engine.subtract(scores, largest), scale, approximate=approximate)
    return engine.keep(result, 8) if approximate else result.bfloat16().float()


def correction(old: torch.Tensor, new: torch.Tensor, scale: float) -> torch.Tensor:
    """exp((old - new) * scale); here the kernels have the scale in bfloat16, cut."""
    return torch.exp((old - new) * engine.keep(torch.tensor(scale), 8).item())


def times(values: torch.Tensor, factor: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """values * factor, a column, both packed to bfloat16 before, and the result after."""
    return engine.to_bfloat16_(engine.multiply(values, factor, kernel, engine.BFLOAT16))


def sum_of_rows(x: torch.Tensor, kernel: Kernel, bits: int = engine.FLOAT32) -> torch.Tensor:
    """[..., W] -> [..., 1], of what SrcB takes of x, as dest holds it."""
    if kernel.wide:
        return engine.source_b(x, kernel, bits).sum(-1, keepdim=True)
    return product(x, torch.ones(x.shape[-1], 1), kernel)
