"""What a model takes of each chip's DRAM, summed before anything is loaded."""

from dataclasses import dataclass

import ttnn

from models.common.errors import UserError
from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.blocks import BLOCK
from models.demos.qwen25_7b.plans.decode_matmul import streamed_tiles
from models.demos.qwen25_7b.plans.gate_up_plan import GateUpPlan
from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES, ceil_div
from models.demos.qwen25_7b.plans.lm_head_plan import pieces_of

BF16 = 2  # bytes


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes of one chip's DRAM."""

    weights: int  # projections with the padding of their banks, embedding, norms, rotary tables
    cache: int
    activations: int  # logits of a step; all others live in L1

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations

    def __str__(self) -> str:
        return (
            f"weights {self.weights / 1e9:.2f} GB + cache {self.cache / 1e9:.2f} GB + activations "
            f"{self.activations / 1e9:.2f} GB = {self.total / 1e9:.2f} GB"
        )


def memory_budget(
    config: QwenConfig, plan: ParallelPlan, recipe: Recipe, max_seq_len: int, blocks: int = 0, block: int = BLOCK
) -> MemoryBudget:
    """The budget of a model for texts of up to max_seq_len tokens, with a cache of `blocks` blocks."""
    return MemoryBudget(
        weights=weight_bytes(config, plan, recipe, max_seq_len),
        cache=blocks * block_bytes(config, plan, recipe, block),
        activations=TILE * plan.vocab * BF16,
    )


def block_bytes(config: QwenConfig, plan: ParallelPlan, recipe: Recipe, block: int) -> int:
    """Of a block of all layers' keys and values, on one chip."""
    tiles = plan.kv_heads * ceil_div(block, TILE) * ceil_div(config.head_dim, TILE)
    return config.num_hidden_layers * 2 * tiles * TILE_BYTES[recipe.kv_cache]


def weight_bytes(config: QwenConfig, plan: ParallelPlan, recipe: Recipe, max_seq_len: int) -> int:
    hidden, head_dim = config.hidden_size, config.head_dim
    bias_and_norms = streamed_bytes(TILE, plan.qkv_width(head_dim), "bfloat16") + 2 * hidden * BF16
    return (
        sum(matmul.times * matmul.read for matmul in decode_matmuls(config, plan, recipe))
        + config.num_hidden_layers * bias_and_norms
        + config.vocab_size * hidden * BF16  # the embedding, whole on every chip
        + 2 * max_seq_len * head_dim * BF16  # rotary tables
    )


@dataclass(frozen=True)
class DecodeWeight:
    """A weight that a chip streams in a decode step."""

    name: str
    rows: int
    columns: int
    format: str
    times: int  # a step: a layer's in each layer, the LM head's for each piece
    needed: int  # bytes of the model's own rows and columns, without any padding; a KV head counts on each of its chips

    @property
    def read(self) -> int:
        """Bytes each time, with what fills up the DRAM banks."""
        return streamed_bytes(self.rows, self.columns, self.format)


def decode_matmuls(config: QwenConfig, plan: ParallelPlan, recipe: Recipe) -> list[DecodeWeight]:
    hidden, layers = config.hidden_size, config.num_hidden_layers
    pieces = pieces_of(plan.vocab // TILE, recipe.lm_head)
    product = GateUpPlan.make(config, plan, recipe)
    mlp = product.tiles * TILE
    gate_up = [("gate + up", 2 * plan.mlp, 2 * mlp)] if product.joined else [(n, plan.mlp, mlp) for n in ("gate", "up")]
    qkv, q = plan.qkv_width(config.head_dim), plan.q_width(config.head_dim)
    queries = config.num_attention_heads * config.head_dim // plan.tp  # without zero heads, a chip on average
    shapes = [  # name, rows and columns as they are held, format, times, rows and columns of the model's own if fewer
        ("QKV", hidden, qkv, recipe.attention, layers, (hidden, qkv - q + queries)),
        ("O", q, hidden, recipe.attention, layers, (queries, hidden)),
        *((name, hidden, held, recipe.mlp_in, layers, (hidden, own)) for name, own, held in gate_up),
        ("down", mlp, hidden, recipe.mlp_out, layers, (plan.mlp, hidden)),
        ("LM head", hidden, plan.vocab // pieces, recipe.lm_head, pieces, None),
    ]
    return [
        DecodeWeight(name, rows, columns, format, times, tile_bytes(*(own or (rows, columns)), format))
        for name, rows, columns, format, times, own in shapes
    ]


def tile_bytes(rows: int, columns: int, format: str) -> int:
    return ceil_div(rows, TILE) * ceil_div(columns, TILE) * TILE_BYTES[format]


def streamed_bytes(rows: int, columns: int, format: str) -> int:
    """A weight [rows, columns] cut over the DRAM banks: each bank takes as many whole tiles as the fullest."""
    return ceil_div(rows, TILE) * streamed_tiles(ceil_div(columns, TILE)) * TILE_BYTES[format]


def check_fits(mesh_device: ttnn.MeshDevice, budget: MemoryBudget) -> None:
    """UserError with the sum unless the budget fits a chip's DRAM as it is now."""
    view = ttnn.get_memory_view(mesh_device, ttnn.BufferType.DRAM)
    free = view.num_banks * view.total_bytes_free_per_bank
    if budget.total > free:
        raise UserError(
            f"the model does not fit: a chip needs {budget}, and has {free / 1e9:.2f} GB: use fewer users, a shorter "
            "context, a smaller recipe, or more chips a replica"
        )
