"""The host memory of a model whose chips are a golden mesh's, checked before a weight is packed."""

import resource
from contextlib import suppress
from pathlib import Path

from ..config import DecoderConfig, Recipe
from ..errors import UserError
from ..plans.machines import Split
from ..plans.model_table import ModelTable
from ..plans.parallel_plan import ParallelPlan

# Bytes of a value: a golden mesh holds large block floats as codes, anything else as bfloat16.
BYTES = {"bfloat8_b": 1.125, "bfloat4_b": 1.125, "bfloat16": 2}
# Bytes beside weights, caches and copies of the largest weight: the libraries and a step. Of the 7B on an N300 11.65 GB
# were resident at most, and 15.4 GB mapped.
RESIDENT, VIRTUAL = 1_400_000_000, 4_600_000_000
CGROUP = Path("/sys/fs/cgroup")


def check_host_memory(
    backend: str, config: DecoderConfig, split: Split, recipe: Recipe, *, replicas: int, users: int, max_seq_len: int
) -> None:
    """UserError unless the host has the memory for `replicas`, together with `users` sequences of max_seq_len tokens.

    backend: what was selected.
    """
    if backend != "golden":  # a card has memory of its own
        return
    parallel = ParallelPlan.make(config, split.tp)
    shards = ModelTable(config, parallel, recipe, split.kind.chip).shards
    values = [(rows * columns, shard.format) for shard in shards for rows, columns in [shard.slice.shape]]
    largest = max(count for count, _ in values) * BYTES["bfloat16"]
    weights = replicas * sum(count * BYTES[format] for count, format in values)
    kv_values = 2 * config.num_hidden_layers * parallel.kv_heads * split.tp * config.head_width
    caches = users * max_seq_len * kv_values * BYTES["bfloat16"]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)  # -1: none
    for needed, free, where in (
        (weights + caches + largest + RESIDENT, available_memory(), "of this machine are available"),
        (weights + caches + 2 * largest + VIRTUAL, limit, "are the limit of `ulimit -v`"),
    ):
        if needed > free >= 0:
            raise UserError(
                f"{split}, recipe {recipe}: without a card its chips take {needed / 1e9:.1f} GB of this host's memory "
                f"(weights {weights / 1e9:.1f}, caches {caches / 1e9:.1f}), and {free / 1e9:.1f} GB {where}: use "
                "another recipe, fewer users or a shorter context, or make room"
            )


def available_memory() -> int:
    """Bytes that this process may still take: of the machine, and of its container (cgroup 2)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) << 10
    with suppress(OSError, ValueError, LookupError):  # no limit, or another kind of container
        most, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        free = min(free, most - used + int(stat["file"]))
    return free
