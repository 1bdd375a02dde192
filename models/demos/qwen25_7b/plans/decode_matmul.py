"""A decode matmul as a value: one tile row by a weight that streams from all DRAM banks."""

from dataclasses import dataclass

import ttnn

from models.demos.qwen25_7b.plans.grids import TILE_BYTES, ceil_div, divisors

DRAM_BANKS = 12  # Wormhole

# Bytes of a core's L1 that a matmul's circular buffers may take. A core has 1,499,136 bytes less what the runtime keeps
# (1,393,312 are left for buffers); decode leaves room for its activations, the all-reduce buffers and rotary tables.
DECODE_L1 = 1_120_000


@dataclass(frozen=True)
class DecodeMatmul:
    """[32, K] width-sharded in L1 times [K, N] width-sharded over the DRAM banks -> [32, N] width-sharded in L1.

    Twelve cores, each beside a DRAM bank, stream that bank's columns; `out_cores` only store the result.
    """

    k_tiles: int
    n_tiles: int
    in_cores: int  # cores that hold the input, k_tiles / in_cores tiles each
    in0_block_w: int  # tiles of K multiplied at a time; divides an input core's tiles
    per_core_n: int  # tiles of N on each output core
    weight: str  # its format

    @property
    def out_cores(self) -> int:
        return self.n_tiles // self.per_core_n

    @property
    def l1_bytes(self) -> int:
        """Of a streaming core, the fullest."""
        return decode_l1_bytes(self.n_tiles, self.in0_block_w, self.weight)

    @property
    def tiles_a_bank(self) -> int:
        """Columns that each DRAM bank gives out."""
        return ceil_div(self.n_tiles, DRAM_BANKS)

    @property
    def padding(self) -> float:
        """Of what is read, what fills up the banks: a share of the weight."""
        return self.tiles_a_bank * DRAM_BANKS / self.n_tiles - 1

    def __str__(self) -> str:
        return (
            f"K {self.k_tiles} tiles on {self.in_cores} cores, {self.in0_block_w} at a time; N {self.n_tiles} tiles from "
            f"{DRAM_BANKS} banks, {self.tiles_a_bank} each ({self.padding:.1%} padding), to {self.out_cores} cores, "
            f"{self.per_core_n} each; {self.l1_bytes:,} of {DECODE_L1:,} bytes of L1"
        )

    def program_config(self) -> ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig:
        return ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
            in0_block_w=self.in0_block_w, per_core_M=1, per_core_N=self.per_core_n, fused_activation=None
        )


def streamed_tiles(n_tiles: int) -> int:
    """Columns of a weight as it is read, in tiles: every DRAM bank gives out as many as the fullest."""
    return ceil_div(n_tiles, DRAM_BANKS) * DRAM_BANKS


def decode_l1_bytes(n_tiles: int, in0_block_w: int, weight: str) -> int:
    """Circular buffers of one streaming core: three blocks of its bank's columns in flight, a float32 and a bfloat16
    row of results, two blocks of the input."""
    bank_tiles = ceil_div(n_tiles, DRAM_BANKS)
    in1 = 3 * in0_block_w * bank_tiles * TILE_BYTES[weight]
    out = bank_tiles * (TILE_BYTES["float32"] + TILE_BYTES["bfloat16"])
    return in1 + out + 2 * in0_block_w * TILE_BYTES["bfloat16"]


def plan_decode(
    k_tiles: int, n_tiles: int, in_cores: int, weight: str, *, out_cores: int, divides: int = 0
) -> DecodeMatmul:
    """The plan with the most output cores, then with the longest block of K whose buffers fit; print it to see why.

    in_cores: where the input lies. weight: its format. out_cores: at most so many cores take the result.
    divides: a number of tiles that per_core_n must divide (a head's width, so that no head is cut by a core's border).
    ValueError when no choice fits L1.
    """
    per_core_n = next(p for p in divisors(n_tiles) if n_tiles // p <= out_cores and (not divides or divides % p == 0))
    blocks = [w for w in divisors(k_tiles // in_cores) if w <= 8 and decode_l1_bytes(n_tiles, w, weight) <= DECODE_L1]
    if not blocks:
        raise ValueError(
            f"decode matmul of {k_tiles} x {n_tiles} tiles in {weight} takes "
            f"{decode_l1_bytes(n_tiles, 1, weight)} bytes of a core's L1, {DECODE_L1} are there: split its columns"
        )
    return DecodeMatmul(k_tiles, n_tiles, in_cores, max(blocks), per_core_n, weight)
