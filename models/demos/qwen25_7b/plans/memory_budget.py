"""The bytes of a model in each chip's DRAM, summed before anything is loaded."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from typing import Callable

from ..config import QwenConfig, Recipe
from .blocks import BLOCK, blocks_for
from .chip import Chip
from .decode_plan import GateUpLayout, lm_head_shards, streamed_tiles
from .grids import TILE, TILE_BYTES, ceil_div
from .parallel_plan import ParallelPlan

BF16, FLOAT32 = 2, 4  # bytes
# Left out of plans: traces (128 MiB, TRACE_REGION_BYTES of tt/mesh.py), programs, inputs of steps.
RESERVED_BYTES = 256 << 20


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes of one chip's DRAM."""

    # projections with bank padding, embedding, norms, tables of rotary factors and centered keys, token counts of penalties
    weights: int
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


def memory_budget(
    config: QwenConfig,
    parallel: ParallelPlan,
    recipe: Recipe,
    chip: Chip,
    max_seq_len: int,
    blocks: int = 0,
    block: int = BLOCK,
) -> MemoryBudget:
    """The budget of a model for sequences of up to max_seq_len tokens, with a cache of `blocks` blocks."""
    return MemoryBudget(
        weights=weight_bytes(config, parallel, recipe, chip, max_seq_len),
        cache=blocks * block_bytes(config, parallel, recipe, block),
        activations=TILE * parallel.vocab * BF16,
    )


def cache_tokens(config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip, max_seq_len: int) -> int:
    """Tokens of all sequences that a cache can hold beside the model on a chip; 0 if the model does not fit."""
    room = chip.dram_bytes - RESERVED_BYTES - memory_budget(config, parallel, recipe, chip, max_seq_len).total
    return max(0, room // block_bytes(config, parallel, recipe, TILE)) * TILE


def block_bytes(config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, block: int) -> int:
    """Of a block of all layers' keys and values, on one chip."""
    tiles = parallel.kv_heads * ceil_div(block, TILE) * ceil_div(config.head_dim, TILE)
    return 2 * tiles * cached_tile_bytes(config, recipe)


def cached_tile_bytes(config: QwenConfig, recipe: Recipe) -> int:
    """Of one tile of keys in each layer."""
    return sum(TILE_BYTES[of_layer.kv_cache] * times for of_layer, times in layer_recipes(config, recipe).items())


def layer_recipes(config: QwenConfig, recipe: Recipe) -> Counter[Recipe]:
    """The recipes that a model's layers follow, and how many layers follow each."""
    return Counter(recipe.of_layer(i) for i in range(config.num_hidden_layers))


def weight_bytes(config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip, max_seq_len: int) -> int:
    hidden, head_dim = config.hidden_size, config.head_dim
    bias = config.qkv_bias * streamed_bytes(TILE, parallel.qkv_width(head_dim), "bfloat16", chip.readers)
    bias_and_norms = bias + 2 * (hidden + config.head_norms * head_dim) * BF16
    return (
        sum(matmul.times * matmul.read for matmul in decode_matmuls(config, parallel, recipe, chip))
        + config.num_hidden_layers * bias_and_norms
        + config.vocab_size * hidden * BF16  # the embedding, whole on every chip
        + 2 * max_seq_len * head_dim * BF16  # rotary tables
        # centered keys, counted whether or not the layers' biases have outliers
        + len(config.centered_layers) * max_seq_len * parallel.kv_heads * head_dim * BF16
        + TILE * parallel.vocab * (3 * BF16 + FLOAT32)  # TtPenalties: two tables, their rows, each column's token
    )


@dataclass(frozen=True)
class DecodeWeight:
    """A weight that a chip streams in a decode step."""

    name: str
    rows: int
    columns: int
    format: str
    times: int  # a step: a layer's in each layer, the LM head's for each logits shard
    readers: int  # cores that stream it
    needed: int  # bytes of the model's own rows and columns, without any padding; a KV head counts on each of its chips

    @property
    def read(self) -> int:
        """Bytes each time, with what fills up the DRAM banks."""
        return streamed_bytes(self.rows, self.columns, self.format, self.readers)


def decode_matmuls(config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip) -> list[DecodeWeight]:
    """All of a step's; layers that follow another recipe are listed apart from the others."""
    lm_head = Counter(columns for _, columns in lm_head_shards(parallel.vocab, recipe.lm_head.format, chip))
    whole, hidden = max(lm_head), config.hidden_size
    return [
        *(
            weight
            for of_layer, times in layer_recipes(config, recipe).items()
            for weight in _layer_matmuls(config, parallel, of_layer, chip, times)
        ),
        *(
            _decode_weight(
                f"LM head{', the rest' * (n < whole)}", hidden, n, recipe.lm_head.format, times, chip, (hidden, n)
            )
            for n, times in lm_head.items()
        ),
    ]


def _layer_matmuls(
    config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip, layers: int
) -> list[DecodeWeight]:
    hidden = config.hidden_size
    product = GateUpLayout.make(config, parallel, recipe, chip)
    mlp = product.tiles * TILE
    gate_up = (
        [("gate + up", 2 * parallel.mlp, 2 * mlp)]
        if product.joined
        else [(n, parallel.mlp, mlp) for n in ("gate", "up")]
    )
    qkv, q = parallel.qkv_width(config.head_dim), parallel.q_width(config.head_dim)
    queries = config.num_attention_heads * config.head_dim // parallel.tp  # without zero heads, a chip on average
    return [
        _decode_weight("QKV", hidden, qkv, recipe.attention.format, layers, chip, (hidden, qkv - q + queries)),
        _decode_weight("O", q, hidden, recipe.attention.format, layers, chip, (queries, hidden)),
        *(
            _decode_weight(name, hidden, held, recipe.mlp_in.format, layers, chip, (hidden, own))
            for name, own, held in gate_up
        ),
        _decode_weight("down", mlp, hidden, recipe.mlp_out.format, layers, chip, (parallel.mlp, hidden)),
    ]


def _decode_weight(
    name: str, rows: int, columns: int, format: str, times: int, chip: Chip, size: tuple[int, int]
) -> DecodeWeight:
    """size: (rows, columns) without padding."""
    return DecodeWeight(name, rows, columns, format, times, chip.readers, tile_bytes(*size, format))


def tile_bytes(rows: int, columns: int, format: str) -> int:
    return ceil_div(rows, TILE) * ceil_div(columns, TILE) * TILE_BYTES[format]


def streamed_bytes(rows: int, columns: int, format: str, readers: int) -> int:
    """Bytes of a weight [rows, columns] over the DRAM banks: every bank counts as the fullest bank."""
    return ceil_div(rows, TILE) * streamed_tiles(ceil_div(columns, TILE), readers) * TILE_BYTES[format]


def fits_in(
    room: int, config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip, block: int = BLOCK
) -> Callable[[int, int], bool]:
    """Return whether (users, tokens of each) fit `room` bytes of a chip's DRAM, with the model."""

    def fits(users: int, tokens: int) -> bool:
        blocks = blocks_for(users, tokens, block)
        return memory_budget(config, parallel, recipe, chip, tokens, blocks, block).total <= room

    return fits


def largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `limit` that fits; 0 if 1 does not."""
    return bisect_left(range(1, limit + 1), True, key=lambda n: not fits(n))


def smaller_sizes(
    config: QwenConfig,
    parallel: ParallelPlan,
    recipe: Recipe,
    chip: Chip,
    users: int,
    max_seq_len: int,
    block: int,
    free: int,
) -> str:
    """Describe what fits `free` bytes: the most users of this context, the longest context of these users."""

    fits = fits_in(free, config, parallel, recipe, chip, block)
    fewer = largest(users - 1, lambda n: fits(n, max_seq_len))
    shorter = largest(max_seq_len - 1, lambda n: fits(users, n))
    sizes = (fewer, max_seq_len), (users, shorter)
    return " or ".join(f"{n} users of {tokens} tokens" for n, tokens in sizes if n and tokens)


@dataclass(frozen=True)
class StepBytes:
    """Of one chip, one step."""

    weights: int  # read from DRAM, padding of the banks included
    padding: int  # of these, read for nothing
    cache: int  # read from DRAM


def step_bytes(
    config: QwenConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip, users: int, position: int
) -> StepBytes:
    """A step of `users` users, each with `position` tokens before the new one."""
    matmuls = decode_matmuls(config, parallel, recipe, chip)
    read = sum(matmul.times * matmul.read for matmul in matmuls)
    needed = sum(matmul.times * matmul.needed for matmul in matmuls)
    blocks = users * ceil_div(position + 1, TILE)
    tiles = blocks * parallel.kv_heads * (config.head_dim // TILE)
    return StepBytes(weights=read, padding=read - needed, cache=2 * tiles * cached_tile_bytes(config, recipe))
