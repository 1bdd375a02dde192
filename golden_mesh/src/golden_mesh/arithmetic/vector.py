"""The vector unit's exp, exact and approximate.

The vector unit's other functions are torch's own, rounded to nearest even.
"""

import torch

# The kernels' constants (ckernel_sfpu_exp.h): 2**8 / ln 2, and 127 * 2**8 less a term that makes the mean error small.
_SLOPE, _OFFSET = 256 / 0.6931471805599453, 32500.818359375
_LEAST, _SMALLEST = -87.33, 1.19e-38  # exp(_LEAST) is a normal float32 and below _SMALLEST


def exp(x: torch.Tensor, scale: float, *, approximate: bool) -> torch.Tensor:
    """Return exp(x * scale) of float32 x <= 0.

    The approximate form (Schraudolph's) writes x * scale / ln 2, with eight bits behind the point, into a
    float's bits. It is a straight line between two powers of two: 2.2 % too small at 0, within 3 % elsewhere.
    A result below the smallest power comes out negative, and the packer makes it zero.
    """
    if not approximate:
        # A denormal result becomes zero, as on chips. Torch takes ten times as long for denormals and for smaller results.
        return torch.threshold_((x * scale).clamp_(min=_LEAST).exp_(), _SMALLEST, 0)
    code = x.mul(_SLOPE * scale).add_(_OFFSET).round_().clamp_(min=0).int()
    return code.bitwise_left_shift_(15).view(torch.float32)
