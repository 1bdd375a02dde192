"""How the LM head's columns are cut."""

from models.demos.qwen25_7b.plans.decode_matmul import DECODE_L1, decode_l1_bytes
from models.demos.qwen25_7b.plans.grids import TILE

PIECE_TILES = (
    32768 // TILE
)  # topk works on all cores for powers of two up to 2**15 columns, and on a single one otherwise


def piece_tiles(vocab_tiles: int, format: str) -> list[int]:
    """Tiles of each piece of a chip's columns, in their order: what is left over, then as many largest pieces as there are.

    The largest is a power of two that topk takes as it is and whose matmul fits L1; only the first piece has to be filled up
    for topk, and what fills it up has the numbers of columns that follow it.
    """
    most = PIECE_TILES
    while decode_l1_bytes(most, 1, format) > DECODE_L1:
        most //= 2
    rest = vocab_tiles % most
    return [rest] * (rest > 0) + [most] * (vocab_tiles // most)


def column_pieces(vocab: int, format: str) -> list[tuple[int, int]]:
    """(first column, columns) of each piece of a chip's `vocab` columns."""
    widths = [tiles * TILE for tiles in piece_tiles(vocab // TILE, format)]
    return [(sum(widths[:i]), width) for i, width in enumerate(widths)]
