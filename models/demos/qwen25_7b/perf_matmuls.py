"""The tables of matmuls in PERF.md: python -m models.demos.qwen25_7b.perf_matmuls

What the planner chose for every weight of the 7B that a decode step streams, and what filling up the DRAM banks costs. Counts from
the plans, nothing measured.
"""

from models.demos.qwen25_7b.config import BFP8, QWEN25_7B, ParallelPlan, QwenConfig, Recipe


def decode_plans(config: QwenConfig, plan: ParallelPlan, recipe: Recipe, grid) -> dict:
    """A chip's decode matmuls by name, as the modules ask for them, each with how often a step runs it.

    grid: tt.grids.Grid of a chip.
    """
    from models.demos.qwen25_7b.tt.gate_up import HALF_CORES, GateUpPlan
    from models.demos.qwen25_7b.tt.grids import TILE, residual_grid
    from models.demos.qwen25_7b.tt.lm_head import pieces_of
    from models.demos.qwen25_7b.tt.matmul_plans import plan_decode

    hidden, vocab, head = config.hidden_size // TILE, plan.vocab // TILE, config.head_dim // TILE
    residual = residual_grid(hidden, grid, plan.tp).cores
    product = GateUpPlan.make(config, plan, recipe)
    pieces, layers = pieces_of(vocab, recipe.lm_head), config.num_hidden_layers
    qkv, q = plan.qkv_width(config.head_dim) // TILE, plan.q_width(config.head_dim) // TILE
    most = 2 * HALF_CORES if product.joined else grid.cores
    gate = plan_decode(hidden, product.weights()[0], residual, recipe.mlp_in, out_cores=most)
    between = max(n for n in range(1, grid.cores + 1) if product.tiles % n == 0)  # cores of gate times up
    wide = {"gate + up": (gate, layers)} if product.joined else {"gate": (gate, layers), "up": (gate, layers)}
    return {
        "QKV": (plan_decode(hidden, qkv, residual, recipe.attention, out_cores=grid.cores, divides=head), layers),
        "O": (plan_decode(q, hidden, plan.q_heads, recipe.attention, out_cores=residual), layers),
        **wide,
        "down": (plan_decode(product.tiles, hidden, between, recipe.mlp_out, out_cores=residual), layers),
        "LM head": (plan_decode(hidden, vocab // pieces, residual, recipe.lm_head, out_cores=grid.cores), pieces),
    }


def table(tp: int) -> str:
    from models.demos.qwen25_7b.tt.grids import Grid
    from models.demos.qwen25_7b.tt.matmul_plans import DRAM_BANKS, TILE_BYTES, streamed_tiles

    plans = decode_plans(QWEN25_7B, ParallelPlan.make(QWEN25_7B, tp), BFP8, Grid(8, 8))
    whole = sum(times * p.k_tiles * streamed_tiles(p.n_tiles) for p, times in plans.values())
    lines = [
        f"tp {tp}:",
        "",
        "| matmul | times | K x N, tiles | tiles a bank | padding | share of the step's reads | input cores, tiles at a time | "
        "output cores, tiles each | L1 of a streaming core |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (p, times) in plans.items():
        read = times * p.k_tiles * streamed_tiles(p.n_tiles)
        lost = read * p.padding / (1 + p.padding) * TILE_BYTES[p.weight]
        lines.append(
            f"| {name} | {times} | {p.k_tiles} x {p.n_tiles} | {streamed_tiles(p.n_tiles) // DRAM_BANKS} | {p.padding:.1%}, "
            f"{lost / 1e6:.1f} MB | {read / whole:.1%} | {p.in_cores}, {p.in0_block_w} | {p.out_cores}, {p.per_core_n} | "
            f"{p.l1_bytes:,} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print("\n\n".join(table(tp) for tp in (1, 2, 4, 8)))
