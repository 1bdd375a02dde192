"""What a model takes of each chip's DRAM, summed before anything is loaded."""
from dataclasses import dataclass

import ttnn

from models.common.errors import UserError
from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.tt.grids import TILE, ceil_div, padded_prompt
from models.demos.qwen25_7b.tt.kv_cache import BLOCK, PagePlan
from models.demos.qwen25_7b.tt.lm_head import pieces_of
from models.demos.qwen25_7b.tt.matmul_plans import DRAM_BANKS, TILE_BYTES

BF16 = 2  # bytes


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes of one chip's DRAM."""

    weights: int  # projections with the padding of their banks, embedding, norms, rotary tables
    cache: int
    activations: int  # prefill's largest step, for the longest prompt

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations

    def __str__(self) -> str:
        return (
            f"weights {self.weights / 1e9:.2f} GB + cache {self.cache / 1e9:.2f} GB + activations "
            f"{self.activations / 1e9:.2f} GB = {self.total / 1e9:.2f} GB"
        )


def memory_budget(config: QwenConfig, plan: ParallelPlan, recipe: Recipe, users: int, max_seq_len: int) -> MemoryBudget:
    """The budget of a model for `users` users of up to max_seq_len tokens each."""
    rows = padded_prompt(max_seq_len)
    tiles = PagePlan.make(users, max_seq_len).blocks * plan.kv_heads * (BLOCK // TILE) * (config.head_dim // TILE)
    return MemoryBudget(
        weights=weight_bytes(config, plan, recipe, max_seq_len),
        cache=config.num_hidden_layers * 2 * tiles * TILE_BYTES[recipe.kv_cache],
        # the residual and its normed copy, with gate, up and their product beside them
        activations=rows * BF16 * (2 * config.hidden_size + 3 * plan.mlp),
    )


def weight_bytes(config: QwenConfig, plan: ParallelPlan, recipe: Recipe, max_seq_len: int) -> int:
    hidden, head_dim = config.hidden_size, config.head_dim
    qkv, rows = plan.qkv_width(head_dim), plan.q_width(head_dim)
    pieces = pieces_of(plan.vocab // TILE, recipe.lm_head)
    layer = (
        streamed_bytes(hidden, qkv, recipe.attention)
        + streamed_bytes(rows, hidden, recipe.attention)
        + 2 * streamed_bytes(hidden, plan.mlp, recipe.mlp_in)
        + streamed_bytes(plan.mlp, hidden, recipe.mlp_out)
        + streamed_bytes(TILE, qkv, "bfloat16")  # the bias
        + 2 * hidden * BF16  # norms
    )
    return (
        config.num_hidden_layers * layer
        + pieces * streamed_bytes(hidden, plan.vocab // pieces, recipe.lm_head)
        + config.vocab_size * hidden * BF16  # the embedding, whole on every chip
        + 2 * max_seq_len * head_dim * BF16  # rotary tables
    )


def streamed_bytes(rows: int, columns: int, format: str) -> int:
    """A weight [rows, columns] cut over the DRAM banks: each bank takes as many whole tiles as the fullest."""
    return ceil_div(columns, TILE * DRAM_BANKS) * DRAM_BANKS * ceil_div(rows, TILE) * TILE_BYTES[format]


def check_fits(mesh_device: ttnn.MeshDevice, budget: MemoryBudget) -> None:
    """UserError with the sum unless the budget fits a chip's DRAM as it is now."""
    view = ttnn.get_memory_view(mesh_device, ttnn.BufferType.DRAM)
    free = view.num_banks * view.total_bytes_free_per_bank
    if budget.total > free:
        raise UserError(
            f"the model does not fit: a chip needs {budget}, and has {free / 1e9:.2f} GB: use fewer users, a shorter "
            "context, a smaller recipe, or more chips a replica"
        )
