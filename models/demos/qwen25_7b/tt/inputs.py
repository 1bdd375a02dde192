"""What a step or a pass reads, as device tensors that stay allocated and are written anew each time."""

from typing import NamedTuple

import ttnn


class DecodeInputs(NamedTuple):
    """A step: one token of each text; a text is a row of the batch."""

    tokens: ttnn.Tensor  # [1, 1, 1, 32] uint32
    positions: ttnn.Tensor  # [batch] int32: where each token stands in its text; NOWHERE for an idle row
    rotary_positions: (
        ttnn.Tensor
    )  # [1, 32 * rotary_users] uint32, the same as the rotary tables want them (rotary_rows)
    page_table: ttnn.Tensor  # [batch, blocks of the longest text] int32

    @property
    def writes(self) -> tuple[ttnn.Tensor, ...]:
        """Where rows' keys and values are written: the positions of each update of the cache."""
        return (self.positions,)


class VerifyInputs(NamedTuple):
    """A step over several tokens of each text: each has a row of its own, with the text's row of the page table."""

    tokens: ttnn.Tensor
    positions: ttnn.Tensor
    rotary_positions: ttnn.Tensor
    page_table: ttnn.Tensor  # as in DecodeInputs
    # [batch] int32 each: the i-th has the positions of every text's i-th row, NOWHERE for all others. On a chip rows of one
    # update that lie in one tile of the cache, as a text's do, overwrite each other.
    writes: tuple[ttnn.Tensor, ...]


class PromptInputs(NamedTuple):
    """A pass over whole prompts side by side, each from its beginning. S rows, padding among them."""

    tokens: ttnn.Tensor  # [1, 1, 1, S] uint32
    positions: ttnn.Tensor  # [1, S] uint32: each row's in its prompt; of padding, any that the rotary tables have
    fill_table: ttnn.Tensor  # [1, S / block] int32: the block that each block of rows is written to, or NO_BLOCK
    rows: ttnn.Tensor  # [1, 32] uint32: the rows whose logits are wanted
    windows: ttnn.Tensor  # [S / 32 + 1] int32: rows where prompts begin, ascending from 0, then S repeated


class ContinuedInputs(NamedTuple):
    """A pass over a piece of one text that a cache holds the beginning of."""

    tokens: ttnn.Tensor
    positions: ttnn.Tensor
    fill_table: ttnn.Tensor
    rows: ttnn.Tensor  # as in PromptInputs
    start: ttnn.Tensor  # [1] int32: the position of row 0, a multiple of the plan's chunk
    page_table: ttnn.Tensor  # [1, W] int32: the text's blocks, then some that exist; W a multiple of 8
