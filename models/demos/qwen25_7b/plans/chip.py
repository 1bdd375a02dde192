"""What plans know of a chip. A machine's table has it without a device, tt/placement.py's chip_of reads it from an open mesh."""

from dataclasses import dataclass

from .grids import Grid

# Bytes of a core's L1 beside the circular buffers of a decode matmul: activations, the buffers of the all-reduces and the
# rotary matrix.
BESIDE_MATMULS = 273_312


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A chip as a plan sees it."""

    architecture: str
    grid: Grid  # cores that plans use
    banks: int  # of DRAM
    bank_bytes: int  # as ttnn.get_memory_view reports them, the trace region included
    bandwidth: float  # of DRAM, bytes a second
    matmul_bandwidth: float  # of these, what matmuls that stream weights reach
    dram_alignment: int  # bytes
    l1: int  # bytes of a core that the runtime leaves for buffers, L1_SMALL included
    # Blocks of x are multicast one after the other, beside the weights of the block before. A multicast that takes longer
    # than those weights is waited for (tt-metal issue 55443). Seconds of weights that a block should have.
    hop: float
    ttnn: tuple[int, int]  # version of the library that runs the plans; (0, 0): unknown

    @property
    def dram_bytes(self) -> int:
        return self.banks * self.bank_bytes

    @property
    def bank_bandwidth(self) -> float:
        """Bytes a second that a matmul reads from a bank."""
        return self.matmul_bandwidth / self.banks

    @property
    def matmul_l1(self) -> int:
        """Bytes of a core's L1 for the circular buffers of a decode matmul."""
        return self.l1 - BESIDE_MATMULS

    @property
    def blocks_span_shards(self) -> bool:
        """Whether a block of x may span the shards of several cores: since tt-metal PR 55444, in ttnn 0.81."""
        return self.ttnn >= (0, 81)


# Bandwidths: golden_mesh/docs/perf.md. Published matmuls show that a multicast takes 1.44 us at most, and 2 us are what the
# plans of O, gate, up and down have. Cores: with ethernet dispatch.
WORMHOLE = Chip(
    architecture="WORMHOLE_B0", grid=Grid(8, 8), banks=12, bank_bytes=1_072_693_184, bandwidth=288e9, matmul_bandwidth=249.5e9,
    dram_alignment=32, l1=1_393_312, hop=2e-6, ttnn=(0, 81),
)  # fmt: skip
CHIPS = (WORMHOLE,)
