"""Large block floats on the host: a code of 8 bits for each value, and a power of two for each 16 neighbors.

They take 1.125 bytes a value, as bfloat16 two. A product widens a few rows at a time.
"""

import weakref
from typing import Optional

import torch

from golden_mesh.rounding import BLOCK

LEAST = 1 << 20  # values that are held as codes: fewer are not worth it
BITS = 7  # of bfloat8_b's codes without their sign; bfloat4_b's 3 are the first of these
_ROWS = 64  # packed at a time
_EXPONENT, _SPECIAL = 23, 255  # bits below a float32's exponent; the exponent of infinity and NaN


class BlockFloats:
    """The bfloat16 values [1, ..., K, N] of a bfloat8_b or bfloat4_b tensor.

    codes: int8 [K, 16, N / 16]; column n of a row is codes[n % 16, n // 16], so that a whole row of steps multiplies.
    steps: bfloat16 [K, 1, N / 16]. A value is code * step.
    """

    dtype = torch.bfloat16

    def __init__(self, shape: torch.Size, codes: torch.Tensor, steps: torch.Tensor):
        self.shape, self.codes, self.steps = shape, codes, steps
        self._unpacked: Optional[weakref.ref] = None

    @classmethod
    def pack(cls, values: torch.Tensor) -> "BlockFloats | torch.Tensor":
        """Hold the bfloat16 values of a block float as codes. Returns `values` where they are few or special."""
        if values.dim() < 2 or values.numel() < LEAST or values.shape[-1] % (2 * BLOCK):
            return values
        if values.numel() != values.shape[-2] * values.shape[-1]:
            return values
        packed = cls._empty(values.shape)
        rows = values.reshape(values.shape[-2:]).split(_ROWS)
        for part, codes, steps in zip(rows, packed.codes.split(_ROWS), packed.steps.split(_ROWS)):
            blocks = part.unflatten(1, (-1, BLOCK)).mT.contiguous().float()  # in the order of codes
            exponents = blocks.abs().amax(1).view(torch.int32) >> _EXPONENT
            if ((exponents == _SPECIAL) | (exponents < BITS) & (exponents > 0)).any():
                return values
            exponents[exponents == 0] = 127  # a block of zeros
            inverse = ((254 + BITS - 1 - exponents) << _EXPONENT).view(torch.float32)
            codes.copy_(blocks.mul_(inverse[:, None]))
            steps[:, 0] = ((exponents - BITS + 1) << _EXPONENT).view(torch.float32)
        return packed

    @classmethod
    def _empty(cls, shape: torch.Size) -> "BlockFloats":
        rows, blocks = shape[-2], shape[-1] // BLOCK
        storage = torch.empty(rows * blocks * (BLOCK + 2), dtype=torch.int8)
        codes, steps = storage.split((rows * blocks * BLOCK, rows * blocks * 2))
        return cls(shape, codes.view(rows, BLOCK, blocks), steps.view(torch.bfloat16).view(rows, 1, blocks))

    def split(self, columns: int, dim: int) -> list["BlockFloats"]:
        """Return views of that many columns each (dim 1), as torch's split of a matrix."""
        parts = (x.split(columns // BLOCK, 2) for x in (self.codes, self.steps))
        return [BlockFloats(codes.shape[:1] + (codes[0].numel(),), codes, steps) for codes, steps in zip(*parts)]

    def widen(self, at: slice, place: torch.Tensor) -> None:
        """Write these rows to float32 `place` [rows, N]. Their columns are in the order of `codes`."""
        place.unflatten(1, (BLOCK, -1)).copy_(self.codes[at]).mul_(self.steps[at].float())

    def in_order(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [M, N] with columns in the order of `codes` in that of the values."""
        return x.unflatten(1, (BLOCK, -1)).mT.flatten(1)

    def unpacked(self) -> torch.Tensor:
        """Return the values. Replicas that are unpacked in a row are one tensor."""
        values = self._unpacked and self._unpacked()
        if values is None:
            values = torch.empty(self.shape, dtype=torch.bfloat16)
            flat = values.view(self.shape[-2:])
            place = torch.empty(_ROWS, flat.shape[1])
            for start in range(0, len(flat), _ROWS):
                part = place[: len(flat) - start]
                self.widen(slice(start, start + _ROWS), part)
                flat[start : start + _ROWS] = self.in_order(part)
            self._unpacked = weakref.ref(values)
        return values

    @property
    def mT(self) -> torch.Tensor:
        return self.unpacked().mT

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return self.codes.numel()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.codes.untyped_storage()
