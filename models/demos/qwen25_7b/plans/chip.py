"""What plans know of a chip: a machine's table has it, and chip_of (tt/placement.py) reads it from a mesh."""

from dataclasses import dataclass, replace

from .grids import Grid

# Bytes of a core's L1 beside the circular buffers of a decode matmul: activations, the buffers of the all-reduces and
# the rotary matrix.
BESIDE_MATMULS = 273_312


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A chip as a plan sees it."""

    architecture: str
    grid: Grid  # cores that plans use
    banks: int  # DRAM banks
    bank_bytes: int  # as ttnn.get_memory_view reports them, the trace region included
    bandwidth: float  # DRAM's bytes a second
    matmul_bandwidth: float  # bytes a second that matmuls stream weights at
    dram_alignment: int  # bytes
    l1: int  # bytes of a core that the runtime leaves for buffers, L1_SMALL included
    readers_per_bank: int  # cores that stream a decode matmul's weights from a bank of DRAM
    links: int  # ethernet links to a neighbor that collectives may use, at most
    k_chunk: int  # keys that a step's attention takes at a time, at most

    @property
    def dram_bytes(self) -> int:
        return self.banks * self.bank_bytes

    @property
    def readers(self) -> int:
        """Cores that stream a decode matmul's weights."""
        return self.banks * self.readers_per_bank

    @property
    def matmul_cores(self) -> int:
        """The most cores that may hold x or the result of a decode matmul.

        A bank's second reader needs a core that holds neither and is no first reader. First readers lie anywhere.
        """
        return self.grid.cores - (self.readers if self.readers_per_bank > 1 else 0)

    @property
    def matmul_l1(self) -> int:
        """Bytes of a core's L1 for the circular buffers of a decode matmul."""
        return self.l1 - BESIDE_MATMULS


# Cores: with ethernet dispatch of a Wormhole. A Blackhole has as many columns as its firmware leaves, see chip_of.
# Bandwidths: lab/prices.md.
WORMHOLE = Chip(
    architecture="WORMHOLE_B0", grid=Grid(8, 8), banks=12, bank_bytes=1_072_693_184, bandwidth=288e9,
    matmul_bandwidth=249.5e9, dram_alignment=32, l1=1_393_312, readers_per_bank=1, links=4, k_chunk=512,
)  # fmt: skip
# One reader a bank streams 260 GB/s whatever the format, two stream 90 % of DRAM (tt-metal PR 54242). Attention of a
# step hangs with chunks other than 128 (tt-metal issue 32652), and collectives deadlock more often over more links.
BLACKHOLE = Chip(
    architecture="BLACKHOLE", grid=Grid(11, 10), banks=8, bank_bytes=4_277_141_376, bandwidth=512e9,
    matmul_bandwidth=460e9, dram_alignment=64, l1=1_461_120, readers_per_bank=2, links=2, k_chunk=128,
)  # fmt: skip
P100 = replace(BLACKHOLE, banks=7, bandwidth=448e9, matmul_bandwidth=403e9)
CHIPS = WORMHOLE, BLACKHOLE, P100
