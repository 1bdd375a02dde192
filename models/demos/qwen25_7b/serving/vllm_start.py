"""What vLLM can be started with: everything else is refused here, in a line that names the flag to mend."""

from contextlib import contextmanager
from typing import Iterator, Optional, Sequence

import ttnn

from models.common.errors import UserError
from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import ACCURACY, BFP8, MAX_USERS, PERFORMANCE, ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.blocks import BLOCKS
from models.demos.qwen25_7b.plans.memory_budget import block_bytes, free_dram

OPTIMIZATIONS = {None: BFP8, "performance": PERFORMANCE, "accuracy": ACCURACY}  # the plugin's tt.optimizations


def recipe_of(optimizations: Optional[str]) -> Recipe:
    if optimizations not in OPTIMIZATIONS:
        raise UserError(
            f"--additional-config tt.optimizations must be performance or accuracy, or left out, got {optimizations!r}"
        )
    return OPTIMIZATIONS[optimizations]


def check_start(
    mesh_device: ttnn.MeshDevice, config: QwenConfig, max_num_seqs: int, max_model_len: int, data_parallel: int
) -> None:
    rows, chips = mesh_device.shape
    if data_parallel != 1:
        raise UserError(
            f"{data_parallel} replicas in one process were asked for, this model is served by one process a replica: "
            f"start vllm serve with --data-parallel-size {data_parallel} --api-server-count 1"
        )
    if rows != 1:
        raise UserError(
            f"MESH_DEVICE opened {rows}x{chips} chips, the model is split over one row: use MESH_DEVICE=N150, N300 or T3K"
        )
    if not 1 <= max_num_seqs <= MAX_USERS:
        raise UserError(
            f"--max-num-seqs {max_num_seqs}: a decode step has 1 to {MAX_USERS} rows: start with --max-num-seqs "
            f"{MAX_USERS} or fewer"
        )
    if max_model_len > config.context:
        raise UserError(
            f"--max-model-len {max_model_len} is beyond the model's {config.context} tokens: start with --max-model-len "
            f"{config.context} or less"
        )


def check_caches(
    mesh_device: ttnn.MeshDevice,
    config: QwenConfig,
    plan: ParallelPlan,
    recipe: Recipe,
    shape: Sequence[int],
    layers: int,
) -> None:
    """shape: (blocks, KV heads of a chip, tokens of a block, head_dim), as vLLM has reckoned it."""
    blocks, kv_heads, block, head_dim = shape
    if block not in BLOCKS:
        raise UserError(f"--block-size {block}: start with --block-size 32, 64 or 128")
    expected = plan.kv_heads, config.head_dim, config.num_hidden_layers
    if (kv_heads, head_dim, layers) != expected:
        raise UserError(
            f"vLLM asks for caches of {kv_heads} KV heads x {head_dim} in {layers} layers a chip, the model has "
            "{} x {} in {}: is --model the checkpoint that it was started with?".format(*expected)
        )
    asked, free = blocks * block_bytes(config, plan, recipe, block), free_dram(mesh_device)
    if asked > free:
        raise UserError(
            f"a cache of {blocks} blocks of {block} tokens takes {asked / 1e9:.2f} GB of a chip, {free / 1e9:.2f} GB are "
            "free: start with a smaller --max-num-seqs or --max-model-len"
        )


def can_trace(mesh_device: ttnn.MeshDevice) -> bool:
    view = ttnn.get_memory_view(mesh_device, ttnn.BufferType.TRACE)
    return traces_available() and view.num_banks * view.total_bytes_per_bank > 0


@contextmanager
def capturing(possible: bool) -> Iterator[None]:
    """UserError where the mesh was opened without room for traces, or with too little for what is captured inside."""
    mend = "raise trace_region_size in --additional-config '{\"tt\": {...}}' (bytes), or set trace_mode to none there"
    if not possible:
        raise UserError(f"vLLM asks for traces, and this mesh has no room for any (or slow dispatch): {mend}")
    try:
        yield
    except RuntimeError as error:
        if "trace region" in str(error) or "trace_region_size" in str(error):
            raise UserError(f"the trace region is too small for this model's steps: {mend}") from error
        raise
