"""The bytes of a model in each chip's DRAM, summed before anything is loaded."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Callable

from .blocks import BLOCK, blocks_for
from .grids import TILE, TILE_BYTES, ceil_div
from .model_table import ModelTable

BF16, FLOAT32 = 2, 4  # bytes
# Left out of plans: traces (128 MiB, TRACE_REGION_BYTES of tt/mesh.py), programs, inputs of steps.
RESERVED_BYTES = 256 << 20


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes of one chip's DRAM."""

    weights: int  # weight_bytes: tables of rotary factors and token counts, too
    cache: int
    activations: int  # logits of a step; all other activations lie in L1

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations

    def __str__(self) -> str:
        return (
            f"weights {self.weights / 1e9:.2f} GB + cache {self.cache / 1e9:.2f} GB + activations "
            f"{self.activations / 1e9:.2f} GB = {self.total / 1e9:.2f} GB"
        )


def memory_budget(table: ModelTable, max_seq_len: int, blocks: int = 0, block: int = BLOCK) -> MemoryBudget:
    """The budget of a model for sequences of up to max_seq_len tokens, with a cache of `blocks` blocks."""
    return MemoryBudget(
        weights=weight_bytes(table, max_seq_len),
        cache=blocks * block_bytes(table, block),
        activations=TILE * table.parallel.vocab * BF16,
    )


def cache_tokens(table: ModelTable, max_seq_len: int) -> int:
    """Tokens of all sequences that a cache can hold beside the model on a chip; 0 if the model does not fit."""
    room = table.chip.dram_bytes - RESERVED_BYTES - memory_budget(table, max_seq_len).total
    return max(0, room // block_bytes(table, TILE)) * TILE


def block_bytes(table: ModelTable, block: int) -> int:
    """Bytes of a block: all layers' keys and values, on one chip."""
    tiles = table.parallel.kv_heads * ceil_div(block, TILE) * ceil_div(table.dims.head_width, TILE)
    return 2 * tiles * cached_tile_bytes(table)


def cached_tile_bytes(table: ModelTable) -> int:
    """Bytes of a tile of keys in every layer."""
    return sum(TILE_BYTES[layer.recipe.kv_cache] * times for layer, times in table.kinds)


def weight_bytes(table: ModelTable, max_seq_len: int) -> int:
    config, parallel = table.dims, table.parallel
    hidden, head_dim = config.hidden_size, config.head_width
    return (
        sum(times * (linear.streamed_bytes + linear.copy_bytes) for linear, times in table.step)
        + sum(
            times * (sum(linear.bias_bytes for linear in layer.linears) + sum(n.shards[0].bytes for n in layer.norms))
            for layer, times in table.kinds
        )
        + config.vocab_size * hidden * BF16  # the embedding, whole on every chip
        + 2 * max_seq_len * head_dim * BF16  # rotary tables
        # centered keys, counted whether or not the layers' biases have outliers
        + len(config.centered_layers) * max_seq_len * parallel.kv_heads * head_dim * BF16
        + TILE * parallel.vocab * (3 * BF16 + FLOAT32)  # TtPenalties: two tables, their rows, each column's token
    )


def fits(dram_bytes: int, table: ModelTable, users: int, tokens: int, block: int = BLOCK) -> bool:
    """Whether users with `tokens` tokens each fit `dram_bytes` of a chip's DRAM, with the model."""
    return memory_budget(table, tokens, blocks_for(users, tokens, block), block).total <= dram_bytes


def largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `limit` that fits; 0 if 1 does not."""
    return bisect_left(range(1, limit + 1), True, key=lambda n: not fits(n))


def smaller_sizes(table: ModelTable, users: int, max_seq_len: int, block: int, free: int) -> str:
    """Describe what fits `free` bytes: the most users of this context, the longest context of these users."""
    fewer = largest(users - 1, lambda n: fits(free, table, n, max_seq_len, block))
    shorter = largest(max_seq_len - 1, lambda n: fits(free, table, users, n, block))
    sizes = (fewer, max_seq_len), (users, shorter)
    return " or ".join(f"{n} users of {tokens} tokens" for n, tokens in sizes if n and tokens)
