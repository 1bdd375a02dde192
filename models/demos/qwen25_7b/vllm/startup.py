"""The start of a vLLM engine: checks that name the flag to change, and the warm-up of every kind of step."""

import sys
from typing import Any

import ttnn
from tqdm import tqdm

from ..config import ACCURACY, BFP8, PERFORMANCE
from ..config.sampling import GREEDY, SamplingParams
from ..engine.prefill_batch import PrefillBatch, PrefillChunk, PrefillKind, Prompt, prefill_kinds
from ..engine.replica import Replica
from ..engine.sampling import SamplingMode
from ..errors import UserError
from ..plans.blocks import BLOCKS, INACTIVE, attention_tables, check_block, table_width
from ..plans.grids import TILE
from ..plans.memory_budget import block_bytes, cache_tokens
from ..plans.model_table import ModelTable
from ..plans.prefill_plan import chunk_step
from ..tt.model_config import TtModelConfig

OPTIMIZATIONS = {None: BFP8, "performance": PERFORMANCE, "accuracy": ACCURACY}  # the plugin's tt.optimizations
PENALIZED = SamplingParams(repetition_penalty=1.05)
FULL = SamplingParams(temperature=1.0, top_k=0)


def check_mesh(mesh_device: ttnn.MeshDevice) -> None:
    rows, chips = mesh_device.shape
    if rows != 1:
        raise UserError(
            f"MESH_DEVICE opened {rows}x{chips} chips, the model is split over one row: use MESH_DEVICE of one row, "
            "such as T3K, or TG with --data-parallel-size 4 --api-server-count 1"
        )


def current_vllm_config() -> Any:
    """Return vLLM's config, which MeshWorker sets while the model loads; None where no vLLM is imported."""
    vllm = sys.modules.get("vllm.config")
    config = vllm and vllm.get_current_vllm_config_or_none()
    if vllm and config is None:
        raise UserError("the worker hides vLLM's options: start with --worker-cls qwen25_7b_worker.MeshWorker")
    return config


def check_number_formats(vllm_config: Any) -> None:
    """Raise UserError for a number format, because the recipe decides all of them."""
    model = vllm_config.model_config
    for option, value, allowed in (
        ("--quantization", model.quantization, (None,)),
        # of the logits that vLLM sees; "auto" gives one of the two
        ("--dtype", f"{model.dtype}".removeprefix("torch."), ("bfloat16", "float32")),
        ("--kv-cache-dtype", vllm_config.cache_config.cache_dtype, ("auto", "bfloat16")),
    ):
        if value not in allowed:
            raise UserError(
                f"{option} {value}: leave it out and choose a recipe, --additional-config "
                '\'{"tt": {"optimizations": ...}}\''
            )


def full_cache_tokens(table: ModelTable, max_seq_len: int, sequences: int) -> int:
    """All sequences' full contexts, or what the DRAM takes. Decode attention reads whole chunks of a table."""
    room = cache_tokens(table, max_seq_len) - sequences * max(BLOCKS)
    width = table_width(max_seq_len, max(BLOCKS)) * max(BLOCKS)
    return max(0, min(room, max(width, sequences * max_seq_len)))


def check_cache(model_config: TtModelConfig, free: int, blocks: int, block: int) -> None:
    """blocks of `block` tokens: of the cache, as vLLM computes them. free: bytes of a chip's DRAM."""
    check_block(block, "--block-size")
    size = blocks * block_bytes(model_config, block)
    if size > free:
        raise UserError(
            f"a cache of {blocks} blocks of {block} tokens takes {size / 1e9:.2f} GB of a chip, {free / 1e9:.2f} GB "
            "are free: start with a smaller --max-num-seqs, --max-model-len or --num-gpu-blocks-override"
        )
    usable = (blocks - 1) * block  # vLLM gives block 0 to no sequence
    if usable < model_config.max_seq_len:
        raise UserError(
            f"a cache of {blocks} blocks of {block} tokens holds {usable} tokens, fewer than one sequence of "
            f"--max-model-len {model_config.max_seq_len}: start with a smaller --max-model-len"
        )


def warm_up_prefill(replica: Replica) -> None:
    """Compile every kind of prefill, so that a request compiles nothing. Only block 0 is written.

    The second call, with traces, captures them and computes nothing.
    """
    kinds, traced = prefill_kinds(replica.model.max_prefill_rows, replica.slots), replica.traces.enabled
    for kind in tqdm(kinds, f"Warm-up: prefill{', into traces' * traced}", mininterval=5):
        if traced:
            replica.capture_prefill(kind)
        elif (batch := _warm_up_batch(replica, kind)) is not None:
            replica.compile_prefill(batch)
    if traced:
        return
    # These modes sample after a prefill of any size.
    for params in (PENALIZED, FULL):
        replica.inputs.write_sampling_params([params])
        batch = _warm_up_batch(replica, PrefillKind(TILE, chunked=False))
        replica.prefill(batch, SamplingMode.of([params]))
        replica.read_tokens()
    replica.inputs.write_sampling_params([])


def warm_up_decode(replica: Replica) -> None:
    """Run a step in each sampling mode. All slots are inactive, so it writes nothing to the caches."""
    slots, modes = replica.slots, (PENALIZED, FULL, SamplingParams(temperature=1.0), GREEDY)
    replica.inputs.write_slots([0] * slots, [INACTIVE] * slots, attention_tables([[]] * slots, replica.width))
    for params in tqdm(modes, f"Warm-up: decode{', into traces' * replica.traces.enabled}", mininterval=5):
        replica.inputs.write_sampling_params([params])
        replica.launch_decode(SamplingMode.of([params]))
        replica.read_tokens()


def _warm_up_batch(replica: Replica, kind: PrefillKind) -> PrefillBatch | None:
    """Return a batch of this kind with one token, or None if no sequence is long enough for it."""
    start = chunk_step(kind.rows // kind.sequences, replica.block) if kind.chunked else 0  # after a prefix
    if start >= replica.model.model_config.max_seq_len:
        return None
    # A batch samples nothing if its prompt continues in the next batch.
    tokens = [0] * (start + 1 if kind.samples else start + 2)
    prompt = Prompt(0, tokens, start, [0] * replica.width)
    chunk = PrefillChunk(prompt, start, start, start + 1)
    return PrefillBatch(kind.rows, (chunk,), kind.chunked, kind.sequences)
