"""How the LM head's columns are cut."""

from models.demos.qwen25_7b.plans.decode_matmul import DECODE_L1, decode_l1_bytes
from models.demos.qwen25_7b.plans.grids import TILE, divisors

PIECE_TILES = 16384 // TILE  # TtSampler fills a piece up to a power of two; topk on all cores takes no more than 2**15


def pieces_of(vocab_tiles: int, format: str) -> int:
    """Into how many equal pieces a chip's columns are cut so that each one's matmul fits L1, and topk its cores."""
    return next(
        n
        for n in divisors(vocab_tiles)
        if vocab_tiles // n <= PIECE_TILES and decode_l1_bytes(vocab_tiles // n, 1, format) <= DECODE_L1
    )
