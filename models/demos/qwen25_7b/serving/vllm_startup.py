"""The start of a vLLM engine: checks that name the flag to change, and the warm-up of every kind of step."""

import difflib
import logging
import sys
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Sequence

import ttnn

from models.common.errors import UserError
from models.common.mesh import traces_available
from models.demos.qwen25_7b.config import (
    ACCURACY,
    BFP8,
    MAX_USERS,
    PERFORMANCE,
    QwenConfig,
    Recipe,
)
from models.demos.qwen25_7b.config.sampling import GREEDY, SamplingParams
from models.demos.qwen25_7b.plans.blocks import BLOCKS, INACTIVE, attention_tables
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.plans.memory_budget import block_bytes, free_dram
from models.demos.qwen25_7b.plans.prefill_plan import q_chunk_size
from models.demos.qwen25_7b.serving.prefill_batch import (
    PrefillBatch,
    PrefillChunk,
    PrefillKind,
    Prompt,
)
from models.demos.qwen25_7b.serving.prefill_packing import prefill_kinds
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.tt.transformer import TtTransformer

logger = logging.getLogger("vllm.qwen25_7b")  # vLLM shows loggers below its own
LOG_EVERY = 10.0  # seconds between two lines while weights load
TRACED = {False: "", True: ", into traces"}

# the plugin's tt.optimizations
OPTIMIZATIONS = {None: BFP8, "performance": PERFORMANCE, "accuracy": ACCURACY}
# for the warm-up
PENALIZED = SamplingParams(repetition_penalty=1.05)
FULL = SamplingParams(temperature=1.0, top_k=0)
RECIPE_OPTION = (
    'leave it out and choose a recipe, --additional-config \'{"tt": {"optimizations": ...}}\''
)
DTYPES = "bfloat16", "float32"  # of the logits that vLLM sees; "auto" gives one of them
CACHE_DTYPES = "auto", "bfloat16"
TT_VALUES = {
    "trace_mode": ("all", "decode_only", "none"),
    "optimizations": ("performance", "accuracy"),
    "sample_on_device_mode": ("all", "decode_only"),
}
# Keys of additional_config["tt"] that the plugin reads, at the commit in scripts/vllm_venv.sh.
TT_KEYS = {
    *TT_VALUES, "always_compat_sampling", "config_pkl_dir", "dispatch_core_axis",
    "enable_model_warmup", "env_passthrough", "extra_ttrun_args", "fabric_config",
    "fabric_reliability_mode", "l1_small_size", "mpi_args", "rank_binding",
    "register_test_models", "trace_region_size", "worker_l1_size",
}  # fmt: skip


def recipe_of(optimizations: Optional[str]) -> Recipe:
    if optimizations not in OPTIMIZATIONS:
        raise UserError(
            f"--additional-config tt.optimizations must be performance or accuracy, or left out, got {optimizations!r}"
        )
    return OPTIMIZATIONS[optimizations]


def check_start(
    mesh_device: ttnn.MeshDevice,
    config: QwenConfig,
    max_num_seqs: int,
    max_model_len: int,
    data_parallel: int,
) -> None:
    rows, chips = mesh_device.shape
    if data_parallel != 1:
        raise UserError(
            f"{data_parallel} replicas in one process were asked for, this model is served by one process a replica: "
            f"start vllm serve with --data-parallel-size {data_parallel} --api-server-count 1"
        )
    if rows != 1:
        raise UserError(
            f"MESH_DEVICE opened {rows}x{chips} chips, the model is split over one row: use MESH_DEVICE=N150, N300 or T3K, "
            "or TG with --data-parallel-size 4 --api-server-count 1"
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


def current_vllm_config() -> Any:
    """Return the VllmConfig that vLLM has set for this call; None where there is none."""
    vllm = sys.modules.get("vllm.config")
    return None if vllm is None else vllm.get_current_vllm_config_or_none()


def check_vllm_options(vllm_config: Any) -> None:
    """Raise UserError for an option of vLLM that this model would ignore.

    vllm_config: vLLM's VllmConfig, or None. The recipe decides all number formats, and the weights come from the
    checkpoint's own files.
    """
    if vllm_config is None:
        return
    model, load = vllm_config.model_config, vllm_config.load_config
    for option, value, allowed, instead in (
        ("--logprobs-mode", model.logprobs_mode, ("raw_logprobs",), "the plugin ignores it"),
        ("--enable-prompt-embeds", model.enable_prompt_embeds, (False,), "prompts are token ids"),
        ("--quantization", model.quantization, (None,), RECIPE_OPTION),
        ("--dtype", str(model.dtype).removeprefix("torch."), DTYPES, RECIPE_OPTION),
        ("--kv-cache-dtype", vllm_config.cache_config.cache_dtype, CACHE_DTYPES, RECIPE_OPTION),
        ("--load-format", load.load_format, ("auto", "hf", "safetensors"), "leave it out"),
        ("--code-revision", model.code_revision, (None,), "leave it out"),
        ("--hf-config-path", model.hf_config_path, (None,), "leave it out"),
        # vLLM fills it with --revision.
        (
            "--tokenizer-revision",
            model.tokenizer_revision,
            (None, model.revision),
            "use --revision",
        ),
    ):
        if value not in allowed:
            raise UserError(f"{option} {value}: this model does not take it: {instead}")
    tt = (vllm_config.additional_config or {}).get("tt", {})
    for key in tt:
        if key not in TT_KEYS:
            close = difflib.get_close_matches(key, TT_KEYS, 1)
            meant = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(TT_KEYS))}"
            raise UserError(f"--additional-config tt.{key} is unknown: {meant}")
    for key, values in TT_VALUES.items():
        if key in tt and tt[key] not in values:
            expected = ", ".join(values[:-1]) + f" or {values[-1]}"
            raise UserError(f"--additional-config tt.{key} must be {expected}, got {tt[key]!r}")


def check_caches(model: TtTransformer, shape: Sequence[int], layers: int) -> None:
    """shape: (blocks, KV heads of a chip, tokens of a block, head_dim), as vLLM has computed it."""
    blocks, kv_heads, block, head_dim = shape
    config = model.config
    if block not in BLOCKS:
        raise UserError(f"--block-size {block}: start with --block-size 32, 64 or 128")
    qwen = config.qwen
    expected = config.parallel.kv_heads, qwen.head_dim, qwen.num_hidden_layers
    if (kv_heads, head_dim, layers) != expected:
        raise UserError(
            f"vLLM asks for caches of {kv_heads} KV heads x {head_dim} in {layers} layers a chip, the model has "
            "{} x {} in {}: is --model the checkpoint that it was started with?".format(*expected)
        )
    size = blocks * block_bytes(qwen, config.parallel, config.recipe, block)
    free = free_dram(model.mesh_device)
    if size > free:
        raise UserError(
            f"a cache of {blocks} blocks of {block} tokens takes {size / 1e9:.2f} GB of a chip, {free / 1e9:.2f} GB are "
            "free: start with a smaller --max-num-seqs or --max-model-len"
        )
    usable = (blocks - 1) * block  # vLLM gives block 0 to no sequence
    if usable < config.max_seq_len:
        raise UserError(
            f"a cache of {blocks} blocks of {block} tokens holds {usable} tokens, fewer than one sequence of "
            f"--max-model-len {config.max_seq_len}: start with a smaller --max-model-len"
        )


def log_loading() -> Callable[[int, int], None]:
    """Return a function of (bytes on the chips, bytes in all). It logs a line at times, and one at the end."""
    began = logged = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal logged
        now = time.monotonic()
        if done >= total or now - logged >= LOG_EVERY:
            logged = now
            amounts = f"{done / 1e9:.2f} of {total / 1e9:.2f} GB"
            logger.info("Weights on the chips: %s, %.0f s", amounts, now - began)

    return progress


def can_trace(mesh_device: ttnn.MeshDevice) -> bool:
    view = ttnn.get_memory_view(mesh_device, ttnn.BufferType.TRACE)
    return traces_available() and view.num_banks * view.total_bytes_per_bank > 0


@contextmanager
def capturing(possible: bool) -> Iterator[None]:
    """UserError where the mesh was opened without room for traces, or with too little for what is captured inside."""
    mend = "raise trace_region_size in --additional-config '{\"tt\": {...}}' (bytes), or set trace_mode to none there"
    if not possible:
        raise UserError(
            f"vLLM asks for traces, and this mesh has no room for any (or slow dispatch): {mend}"
        )
    try:
        yield
    except RuntimeError as error:
        if "trace region" in str(error) or "trace_region_size" in str(error):
            raise UserError(
                f"the trace region is too small for this model's steps: {mend}"
            ) from error
        raise


def warm_up_prefill(replica: Replica, *, traced: bool, scratch: int = 0) -> None:
    """Run every kind of prefill once, so that a request compiles nothing.

    scratch: the block that the prefills write.
    """
    largest = replica.model.max_prefill_rows
    logger.info("Warm-up: prefill of up to %d rows%s", largest, TRACED[traced])
    for kind in prefill_kinds(largest, replica.batch):
        batch = _warm_up_batch(replica, kind, scratch)
        if batch is not None:
            replica.prefill(batch, traced=traced)
            if kind.samples:
                replica.read_tokens()
    # These modes sample behind a prefill of any size.
    for params in (PENALIZED, FULL):
        replica.inputs.write_sampling_params([params])
        batch = _warm_up_batch(replica, PrefillKind(TILE, chunked=False), scratch)
        replica.prefill(batch, traced=traced)
        replica.read_tokens()
    replica.inputs.write_sampling_params([])


def warm_up_decode(replica: Replica, *, traced: bool) -> None:
    """Run a step in each sampling mode. All slots are inactive, so it writes nothing to the caches."""
    slots = replica.batch
    logger.info("Warm-up: decode of %d slots%s", slots, TRACED[traced])
    tables = attention_tables([[]] * slots, replica.width)
    replica.inputs.write_slots([0] * slots, [INACTIVE] * slots, tables)
    for params in (PENALIZED, FULL, SamplingParams(temperature=1.0), GREEDY):
        replica.inputs.write_sampling_params([params])
        replica.launch_decode(traced=traced)
        replica.read_tokens()


def _warm_up_batch(replica: Replica, kind: PrefillKind, scratch: int) -> PrefillBatch | None:
    """Return a batch of this kind with one token, or None if no sequence is long enough for it."""
    # the earliest start of a chunk behind a prefix
    earliest = max(replica.block, q_chunk_size(kind.rows // kind.sequences))
    start = earliest if kind.chunked else 0
    if start >= replica.model.config.max_seq_len:
        return None
    # A batch samples nothing if its prompt continues in the next batch.
    tokens = [0] * (start + 1 if kind.samples else start + 2)
    prompt = Prompt(0, tokens, start, [scratch] * replica.width)
    chunk = PrefillChunk(prompt, start, start, start + 1)
    return PrefillBatch(kind.rows, (chunk,), kind.chunked, kind.sequences)
