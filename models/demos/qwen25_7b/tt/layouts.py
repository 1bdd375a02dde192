"""ttnn's memory and program configs, made of plans."""

from typing import Optional

import ttnn

from ..plans.decode_plan import DecodeMatmul
from ..plans.grids import Grid, Shards
from ..plans.prefill_plan import PrefillMatmul

LAYOUTS = {
    "width": ttnn.TensorMemoryLayout.WIDTH_SHARDED,
    "height": ttnn.TensorMemoryLayout.HEIGHT_SHARDED,
    "block": ttnn.TensorMemoryLayout.BLOCK_SHARDED,
}


def rectangle(grid: Grid) -> ttnn.CoreRangeSet:
    """All cores of the grid."""
    end = ttnn.CoreCoord(grid.x - 1, grid.y - 1)
    return ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), end)})


def memory_config(shards: Optional[Shards]) -> ttnn.MemoryConfig:
    """L1, cut over cores; None: interleaved."""
    if shards is None:
        return ttnn.L1_MEMORY_CONFIG
    cores = rectangle(shards.grid)
    if shards.cores < shards.grid.cores:
        first = ttnn.CoreCoord(0, 0)
        cores = ttnn.num_cores_to_corerangeset_in_subcoregrids(first, shards.cores, cores, row_wise=True)
    spec = ttnn.ShardSpec(cores, shards.shape, ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(LAYOUTS[shards.layout], ttnn.BufferType.L1, spec)


def decode_program(matmul: DecodeMatmul) -> ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig:
    readers = matmul.chip.readers_per_bank  # the argument is new in ttnn 0.81
    return ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
        in0_block_w=matmul.in0_block_w,
        per_core_M=1,
        per_core_N=matmul.per_core_n,
        fused_activation=None,
        **({"num_workers_per_dram_bank": readers} if readers > 1 else {}),
    )


def prefill_program(matmul: PrefillMatmul) -> ttnn.MatmulMultiCoreReuseMultiCastProgramConfig:
    return ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=(matmul.grid.x, matmul.grid.y),
        in0_block_w=matmul.in0_block_w,
        out_subblock_h=matmul.subblock_h,
        out_subblock_w=matmul.subblock_w,
        per_core_M=matmul.per_core_m,
        per_core_N=matmul.per_core_n,
        transpose_mcast=False,
        fused_activation=None,
        fuse_batch=True,
    )


def norm_program(cores: Grid, row_tiles: int, column_tiles: int) -> ttnn.LayerNormShardedMultiCoreProgramConfig:
    """row_tiles, column_tiles: of each core's shard."""
    return ttnn.LayerNormShardedMultiCoreProgramConfig(
        compute_with_storage_grid_size=(cores.x, cores.y),
        # dest holds 4 tiles with fp32 accumulation
        subblock_w=max(w for w in (1, 2, 3, 4) if column_tiles % w == 0),
        block_h=row_tiles,
        block_w=column_tiles,
        inplace=False,
    )


def attention_program(grid: Grid, q_chunk_size: int, k_chunk_size: int) -> ttnn.SDPAProgramConfig:
    """Attention of a prefill. Chunk sizes in tokens."""
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(grid.x, grid.y),
        q_chunk_size=q_chunk_size,
        k_chunk_size=k_chunk_size,
        exp_approx_mode=False,
    )
