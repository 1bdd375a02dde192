"""The vector unit's exp, exact and approximate; all else of it is torch's own functions, rounded to nearest even."""

import torch

# The kernels' constants (ckernel_sfpu_exp.h): 2**8 / ln 2, and 127 * 2**8 less what makes the mean error small.
_SLOPE, _OFFSET = 256 / 0.6931471805599453, 32500.818359375
_LEAST, _SMALLEST = -87.33, 1.19e-38  # exp of the first is a normal float32, and below the second


def exp(x: torch.Tensor, scale: float, *, approximate: bool) -> torch.Tensor:
    """exp(x * scale) of float32 x <= 0.

    The approximate form (Schraudolph's) writes x * scale / ln 2 with eight bits behind the point into a float's bits,
    so that it is a straight line between two powers of two: 2.2 % too small at 0, within 3 % elsewhere. What falls
    below the smallest power comes out negative, and the packer makes zero of it.
    """
    if not approximate:
        # Zero, as on chips, where a float32 would be denormal: torch takes ten times as long for those, and for what is below.
        return torch.threshold_(torch.exp((x * scale).clamp_(min=_LEAST)), _SMALLEST, 0)
    code = torch.round(x.mul(_SLOPE * scale).add_(_OFFSET)).clamp_(min=0).int()
    return (code << 15).view(torch.float32)
