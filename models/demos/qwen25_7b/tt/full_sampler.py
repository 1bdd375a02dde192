"""TtFullSampler: samples from the whole vocabulary, without top-k and top-p. HF: softmax and multinomial."""

from typing import NamedTuple

import torch
import ttnn

from ..plans.grids import TILE, ceil_div
from ..plans.parallel_plan import MAX_USERS
from .inputs import UNIFORMS
from .model_config import TtModelConfig
from .placement import free, replicate, shard

L1 = ttnn.L1_MEMORY_CONFIG
MOST_PIECES = 18  # 2376 tiles of columns are then cut three times: into 18, 12 and 11 pieces


class Level(NamedTuple):
    """A row of numbers as pieces under each other. The sums of equal places are the row of the next level."""

    pieces: int
    width: int  # columns of a piece
    missing: int  # columns that the last piece lacks


class TtFullSampler:
    """Cuts a chip's columns into pieces, adds the pieces up, and cuts the sum again, down to a tile's width.

    Each number is exp(logit / temperature). Sampling goes the other way: a place of the narrowest sum of all chips,
    then a piece of each level at that place. Every choice has a uniform number of its own: it takes the first part
    whose cumulated sum reaches the uniform number times the whole sum, so a part of 0 is never taken. Sums are those of
    ttnn.cumsum along the first dim, which adds up in float32. ttnn.sum, which cuts a float32 to ten mantissa bits, only
    picks single numbers.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, model_config: TtModelConfig):
        self.chips = model_config.parallel.tp
        self.columns = model_config.parallel.vocab
        self.last = float(model_config.dims.vocab_size - 1)
        self.levels = levels_of(self.columns)
        assert len(self.levels) < UNIFORMS, "each level needs a uniform number, and the first place another"
        # [1, 1, 32, missing] each; 0 where nothing is missing
        self.fills = [
            level.missing and replicate(torch.zeros(1, 1, MAX_USERS, level.missing), mesh_device, ttnn.float32)
            for level in self.levels
        ]
        # [1, 1, 1, width] each: the places of a level
        self.places = [
            replicate(torch.arange(level.width).float()[None, None, None], mesh_device, ttnn.float32)
            for level in self.levels
        ]
        chips = torch.arange(self.chips).float()[None, None, None]
        self.chip = shard(chips.repeat_interleave(TILE, 3), mesh_device, 3, ttnn.float32)  # [1, 1, 1, 32]

    def forward(
        self, logits: ttnn.Tensor, largest: ttnn.Tensor, inverse_temperature: ttnn.Tensor, noise: ttnn.Tensor
    ) -> ttnn.Tensor:
        """Return token ids [1, 1, 32, 1] float32.

        logits: [1, 1, 32, vocab] bfloat16. largest: [1, 1, 32, 1] bfloat16, of the whole vocabulary.
        inverse_temperature: [1, 1, 32, 1] float32. noise: [1, 1, 32, CANDIDATES] float32, first UNIFORMS uniform ones.
        """
        odds = ttnn.subtract(logits, largest, dtype=ttnn.float32, memory_config=L1)
        ttnn.mul(odds, inverse_temperature, output_tensor=odds)
        ttnn.exp(odds, output_tensor=odds)  # 1 for the largest logit; 0 for padding columns
        cuts = []
        for level, fill in zip(self.levels, self.fills):
            cuts.append(_cut(odds, level, fill))  # [pieces, 1, 32, width]
            odds = _last(ttnn.cumsum(cuts[-1], dim=0))  # [1, 1, 32, width]
        # The narrowest sums of all chips, chip after chip, have the first place.
        if self.chips > 1:
            odds = ttnn.all_gather(odds, dim=3, cluster_axis=1, memory_config=L1)
        columns = ttnn.permute(odds, (3, 0, 2, 1))  # [chips * 32, 1, 32, 1]
        place = _first_to_reach(columns, _column(noise, 0))  # [1, 1, 32, 1]
        if self.chips > 1:
            chip = ttnn.floor(ttnn.mul(place, 1 / TILE))
            place = ttnn.subtract(place, ttnn.mul(chip, float(TILE)))
        for i in reversed(range(len(self.levels))):
            here = ttnn.eq(self.places[i], place, memory_config=L1)  # [1, 1, 32, width]
            picked = ttnn.mul(cuts[i], here, memory_config=L1)  # [pieces, 1, 32, width]
            ttnn.deallocate(cuts[i])
            parts = ttnn.sum(picked, dim=3, keepdim=True, memory_config=L1)  # [pieces, 1, 32, 1]
            ttnn.deallocate(picked)
            piece = _first_to_reach(parts, _column(noise, 1 + i))
            place = ttnn.add(place, ttnn.mul(piece, float(self.levels[i].width)))
        if self.chips > 1:
            place = self._of_chip(place, chip)
        return ttnn.minimum(place, self.last, memory_config=L1)

    def _of_chip(self, column: ttnn.Tensor, chip: ttnn.Tensor) -> ttnn.Tensor:
        """Each chip's own column -> the token id of the sampled chip's, on every chip. [1, 1, 32, 1] all."""
        first = ttnn.mul(chip, float(self.columns))
        token = ttnn.add(column, first)
        own = ttnn.eq(self.chip, chip, memory_config=L1)  # [1, 1, 32, 32]
        tile = ttnn.mul(own, token, memory_config=L1)
        tiles = ttnn.all_gather(tile, dim=3, cluster_axis=1, memory_config=L1)
        # ttnn.max would cut a large id to ten mantissa bits
        columns = ttnn.permute(tiles, (3, 0, 2, 1))
        return ttnn.mul(_last(ttnn.cumsum(columns, dim=0)), 1 / TILE)


def levels_of(columns: int) -> list[Level]:
    """Return the levels from a row of `columns` down to a tile's width."""
    levels, tiles = [], columns // TILE
    while tiles > 1 or not levels:
        most = min(MOST_PIECES, tiles)
        # the fewest missing columns, then the most pieces
        pieces = min(range(min(2, most), most + 1), key=lambda n: (-tiles % n, -n))
        width = ceil_div(tiles, pieces)
        levels.append(Level(pieces, width * TILE, (pieces * width - tiles) * TILE))
        tiles = width
    return levels


def _cut(row: ttnn.Tensor, level: Level, fill: ttnn.Tensor | None) -> ttnn.Tensor:
    """[1, 1, 32, columns] -> [pieces, 1, 32, width]. Frees row. A level of one piece is the row."""
    if fill:
        whole = ttnn.concat([row, fill], dim=3, memory_config=L1)
        ttnn.deallocate(row)
        row = whole
    if level.pieces == 1:
        return row
    starts = range(0, level.pieces * level.width, level.width)
    pieces = [_columns(row, start, start + level.width) for start in starts]
    ttnn.deallocate(row)
    cut = ttnn.concat(pieces, dim=0, memory_config=L1)
    free(*pieces)
    return cut


def _first_to_reach(parts: ttnn.Tensor, uniform: ttnn.Tensor) -> ttnn.Tensor:
    """[parts, 1, 32, 1] -> [1, 1, 32, 1]: each row's first part whose cumulated sum reaches the uniform share."""
    sums = ttnn.cumsum(parts, dim=0)
    target = ttnn.mul(_last(sums), uniform, memory_config=L1)
    below = ttnn.lt(sums, target, memory_config=L1)
    return _last(ttnn.cumsum(below, dim=0))


def _last(x: ttnn.Tensor) -> ttnn.Tensor:
    """The last index along the first dim, which stays."""
    return ttnn.slice(x, [x.shape[0] - 1, 0, 0, 0], list(x.shape), memory_config=L1)


def _columns(x: ttnn.Tensor, start: int, end: int) -> ttnn.Tensor:
    return ttnn.slice(x, [0, 0, 0, start], [*list(x.shape)[:3], end], memory_config=L1)


def _column(noise: ttnn.Tensor, i: int) -> ttnn.Tensor:
    return _columns(noise, i, i + 1)
