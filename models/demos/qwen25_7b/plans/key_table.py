"""KeyTable: the order of rows in a table of centered keys, and the rows that a step or a prefill batch looks up."""

from typing import NamedTuple

import torch

from .grids import TILE


class KeyTable(NamedTuple):
    """A chip's table (tt/centered_keys.py) has `positions` rows for each of its KV heads, head after head."""

    kv_heads: int
    positions: int

    def decode_rows(self, positions: torch.Tensor) -> torch.Tensor:
        """[slots] positions from 0 on -> [1, 32 * slots]: a row for each of the 32 rows of a slot's tile of keys.

        A step later all of them are larger by 1. Rows of the tile past kv_heads are not read and take head 0's.
        """
        heads = torch.arange(TILE)
        firsts = torch.where(heads < self.kv_heads, heads * self.positions, 0)
        return (positions[:, None] + firsts).view(1, -1)

    def prefill_rows(self, positions: torch.Tensor, sequences: int = 1) -> torch.Tensor:
        """[1, S / B] positions, alike in all B sequences -> [1, B * kv_heads * S / B], in the order of k."""
        firsts = torch.arange(self.kv_heads)[:, None] * self.positions
        return (positions + firsts).repeat(sequences, 1).view(1, -1)
