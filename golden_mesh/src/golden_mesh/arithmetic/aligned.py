"""The matrix engine's sums in a float32 dest, almost to the bit.

The engine adds eight products at a time. It first rounds each product to a multiple of 2**-10 of the largest
product's power of two, ties away from zero. That power of two is the sum of the operands' exponents. A phase that
multiplies an operand's last bits counts the exponent of the bits' place, also where these bits are zero.

Records of matmuls are met to 2e-7, with bfloat8_b and bfloat4_b weights in LoFi and HiFi2 to the bit. The last
bits of longer sums depend on the order in which dest adds groups.
"""

import torch

from golden_mesh.arithmetic.engine import SRC_A, SRC_A_FIRST, SRC_B, SRC_B_FIRST, keep

GROUP = 8  # products that the engine adds at a time
HALF = 16  # rows of the inner dim of one instruction: two groups
PLACES = 10  # below the largest product's power of two
_EXPONENT = 0xFF << 23
_TIES_AWAY = 1 + 2**-16  # moves only ties: a product has 12 bits
# Adding 1.5 * 2**23 steps to a float32 rounds it to a step.
_ROUNDING = 1.5 * 2.0 ** (23 - PLACES)


def aligned_product(a: torch.Tensor, b: torch.Tensor, phases: int) -> torch.Tensor:
    """Return a [B, M, K] @ b [B, K, N] as dest holds it. a goes through SrcB, b through SrcA. All are float32."""
    batch, rows, inner = a.shape
    padding = -inner % HALF
    a = torch.nn.functional.pad(a, (0, padding)).transpose(1, 2)  # [B, K, M]
    b = torch.nn.functional.pad(b, (0, 0, 0, padding))
    left, right = _power(a), _power(b)
    parts = _phases(a, b)[:phases]
    parts = [part for part in parts if part[0].any() and part[1].any()]
    total = torch.zeros(batch, rows, b.shape[2])
    largest, other, start, group = (torch.empty_like(total) for _ in range(4))
    for first in range(0, inner + padding, GROUP):
        ks = range(first, first + GROUP)
        largest.zero_()
        for k in ks:
            torch.mul(left[:, k, :, None], right[:, k, None, :], out=other)
            torch.maximum(largest, other, out=largest)
        for of_a, of_b, place in parts:
            torch.mul(largest, _ROUNDING * place, out=start)
            group.copy_(start)
            for k in ks:
                group.addcmul_(of_a[:, k, :, None], of_b[:, k, None, :])
            total.add_(group.sub_(start))
    return total


def _power(x: torch.Tensor) -> torch.Tensor:
    """Return each value's power of two, 0 for 0."""
    return (x.contiguous().view(torch.int32) & _EXPONENT).view(torch.float32)


def _phases(a: torch.Tensor, b: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    """Return the operands of each phase (engine.py), and the place of their product's first bit."""
    first_a, first_b = keep(a, SRC_B_FIRST), keep(b, SRC_A_FIRST)
    rest_a, rest_b = keep(a, SRC_B) - first_a, keep(b, SRC_A) - first_b
    of_a, of_b = 2.0**-SRC_B_FIRST, 2.0**-SRC_A_FIRST
    return [
        (first_a * _TIES_AWAY, first_b, 1.0),
        (first_a * _TIES_AWAY, rest_b, of_b),
        (rest_a * _TIES_AWAY, first_b, of_a),
        (rest_a * _TIES_AWAY, rest_b, of_a * of_b),
    ]
