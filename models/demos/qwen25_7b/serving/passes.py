"""Prompts cut and packed into prefill passes: pure functions."""

from dataclasses import dataclass
from typing import Iterator, Sequence

import torch

from models.demos.qwen25_7b.config import MAX_USERS
from models.demos.qwen25_7b.plans.blocks import NO_BLOCK, attention_table, continued_width, fill_table
from models.demos.qwen25_7b.plans.grids import TILE, ceil_div, padded_rows
from models.demos.qwen25_7b.plans.prefill_plan import attention_chunk


@dataclass(frozen=True)
class Prompt:
    """A text whose tokens from `start` on are to be computed; the cache holds those before."""

    row: int  # of the batch, whose options and noise choose what follows
    tokens: Sequence[int]  # all of them
    start: int
    blocks: Sequence[int]  # the text's, from its beginning


@dataclass(frozen=True)
class Piece:
    """What a pass computes of a prompt: its positions from `first` to before `end`.

    From `write` on they are written to the cache; rows before that are there for the pass to begin where attention can
    (at a multiple of its chunk), and are in the cache already.
    """

    prompt: Prompt
    first: int
    write: int
    end: int

    @property
    def last(self) -> bool:
        return self.end == len(self.prompt.tokens)

    @property
    def tokens(self) -> Sequence[int]:
        return self.prompt.tokens[self.first : self.end]


@dataclass(frozen=True)
class Pass:
    """continued: one piece, of a text that the cache holds the beginning of; else whole prompts, or the beginning of one."""

    rows: int
    pieces: tuple[Piece, ...]
    continued: bool
    asked: tuple[
        int, ...
    ] = ()  # rows of the pass, up to 32; what follows them goes to the batch's rows 0, 1, ... instead

    @property
    def answered(self) -> list[int]:
        """Rows of the batch that get an answer: those whose prompts end in this pass."""
        if self.asked:
            return list(range(len(self.asked)))
        return [piece.prompt.row for piece in self.pieces if piece.last]


def plan_passes(prompts: Sequence[Prompt], longest: int, block: int) -> list[Pass]:
    """In the order of the prompts: short ones from their beginning side by side, others in pieces.

    longest: rows of the longest pass. block: tokens of a cache's block; every prompt begins at a row where one begins.
    """
    passes, company, used = [], [], 0

    def pack() -> None:
        nonlocal company, used
        if company:
            pieces = tuple(Piece(prompt, 0, 0, len(prompt.tokens)) for prompt in company)
            alone = padded_rows(len(company[0].tokens))
            passes.append(Pass(alone if len(company) == 1 else padded_rows(used), pieces, continued=False))
        company, used = [], 0

    for prompt in prompts:
        rows = ceil_div(len(prompt.tokens), block) * block
        if prompt.start or len(prompt.tokens) > longest:
            pack()
            passes += _pieces(prompt, longest, block)
            continue
        if used + rows > longest or len(company) == MAX_USERS:
            pack()
        company.append(prompt)
        used += rows
    pack()
    return passes


def pass_sizes(longest: int) -> list[int]:
    """Rows that a pass may have, up to `longest`."""
    return [TILE << i for i in range((longest // TILE).bit_length())]


def _pieces(prompt: Prompt, longest: int, block: int) -> Iterator[Pass]:
    """A prompt by itself, pass by pass."""
    at, end = prompt.start, len(prompt.tokens)
    while at < end:
        if at == 0:
            rows, first = longest, 0
        else:
            fitting = (rows for rows in pass_sizes(longest) if end - begin(at, rows, block) <= rows)
            rows = next(fitting, longest)
            first = begin(at, rows, block)
        piece = Piece(prompt, first, at // block * block, min(end, first + rows))
        yield Pass(rows, (piece,), continued=first > 0)
        at = piece.end


def begin(at: int, rows: int, block: int) -> int:
    """Where a pass of `rows` rows begins that computes position `at`: attention begins at multiples of its chunk, and rows
    are written by whole blocks."""
    step = max(block, attention_chunk(rows))
    return at // step * step


@dataclass(frozen=True)
class PassValues:
    """A pass as its input tensors want it, on the host; of PromptInputs or ContinuedInputs, in their order."""

    tokens: torch.Tensor
    positions: torch.Tensor
    fill_table: torch.Tensor
    rows: torch.Tensor
    where: tuple[torch.Tensor, ...]  # (windows,), or (start, page_table)

    @classmethod
    def of(cls, work: Pass, block: int, width: int) -> "PassValues":
        """width: entries of a text's table in decode."""
        tokens = torch.zeros(1, 1, 1, work.rows, dtype=torch.int32)
        positions = torch.zeros(1, work.rows, dtype=torch.int32)  # of padding: the tables have position 0
        wanted = torch.zeros(1, MAX_USERS, dtype=torch.int32)
        blocks, starts, at = [], [], 0
        for piece in work.pieces:
            size = piece.end - piece.first
            tokens[..., at : at + size] = torch.tensor(list(piece.tokens), dtype=torch.int32)
            positions[:, at : at + size] = torch.arange(piece.first, piece.end)
            wanted[:, piece.prompt.row] = at + size - 1
            blocks += _written(piece, block)
            starts.append(at)
            at += ceil_div(size, block) * block
        wanted[0, : len(work.asked)] = torch.tensor(work.asked, dtype=torch.int32)
        if work.continued:
            (piece,) = work.pieces
            table = attention_table(piece.prompt.blocks, continued_width(width, work.rows, block))[None]
            where = torch.tensor([piece.first], dtype=torch.int32), table
        else:
            bounds = [*starts, min(at, work.rows)]  # the padding is a window of its own
            windows = torch.full((work.rows // TILE + 1,), work.rows, dtype=torch.int32)
            windows[: len(bounds)] = torch.tensor(bounds, dtype=torch.int32)
            where = (windows,)
        return cls(tokens, positions, fill_table(blocks, ceil_div(work.rows, block))[None], wanted, where)


def _written(piece: Piece, block: int) -> list[int]:
    """The block that each block of the piece's rows is written to."""
    inside = range(piece.first // block, ceil_div(piece.end, block))
    return [piece.prompt.blocks[i] if i * block >= piece.write else NO_BLOCK for i in inside]
