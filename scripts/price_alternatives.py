"""Alternatives of a decode step's plan by the laws of golden_mesh.perf: what each saves of a step, and the error of
its price.

Qwen2.5-7B, recipe performance. The error is the ninetieth percentile of each operation's kind on unseen rows, added up
by squares. Run it as python -m scripts.price_alternatives.
"""

from dataclasses import replace
from math import hypot

from golden_mesh.perf.constants import price
from golden_mesh.perf.kinds import DTYPES
from golden_mesh.perf.laws import GAP, Case, ceil_div

from models.demos.qwen25_7b.config import PERFORMANCE, QWEN25_7B
from models.demos.qwen25_7b.plans.chip import BLACKHOLE, WORMHOLE, Chip
from models.demos.qwen25_7b.plans.decode_plan import DecodeMatmul
from models.demos.qwen25_7b.plans.grids import TILE_BYTES, divisors
from models.demos.qwen25_7b.plans.model_table import ModelTable
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan

LAYERS = QWEN25_7B.num_hidden_layers
HIDDEN = QWEN25_7B.hidden_size // 32
PARTIAL_SUM = HIDDEN * TILE_BYTES["bfloat16"]
ROWS = (("N150x4", 4, WORMHOLE, 1, True), ("T3K", 8, WORMHOLE, 1, True), ("GALAXY", 8, WORMHOLE, 4, True),
        ("P150x4", 4, BLACKHOLE, 2, True), ("P150x8", 8, BLACKHOLE, 2, True))  # fmt: skip


def arch_of(chip: Chip) -> str:
    return chip.architecture.lower().split("_")[0]


def streamed(p: DecodeMatmul) -> Case:
    return Case("dram_sharded", arch_of(p.chip), w=DTYPES[p.weight], fp32=True, k=p.k_tiles, n=p.n_tiles,
                width=p.in0_block_w, readers=p.chip.readers_per_bank)  # fmt: skip


def multicast(p: DecodeMatmul) -> Case:
    """The cheapest 1D multicast program with an interleaved weight that fits L1."""
    per_core = ceil_div(p.n_tiles, p.chip.grid.cores)
    case = Case("rows_matmul", arch_of(p.chip), w=DTYPES[p.weight], fp32=True, k=p.k_tiles, n=p.n_tiles,
                cores=ceil_div(p.n_tiles, per_core), x_dram=False, out_dram=False)  # fmt: skip
    room = p.chip.matmul_l1 - per_core * (TILE_BYTES["float32"] + TILE_BYTES["bfloat16"])
    block = 2 * (per_core * TILE_BYTES[p.weight] + TILE_BYTES["bfloat16"])
    fitting = (replace(case, width=w) for w in divisors(p.k_tiles) if w * block <= room)
    return min(fitting, key=lambda c: price(c).us)


def line(what: str, machine: str, now: list[Case], then: list[Case], calls: int) -> str:
    """A row of the table. calls: of both in a step."""
    us = [sum(price(case).us + GAP for case in cases) for cases in (now, then)]
    error = hypot(*(price(case).us * price(case).error for case in (*now, *then)))
    saved = [1e-3 * calls * t for t in (us[0] - us[1], error)]
    return f"| {what} | {machine} | {us[0]:.1f} | {us[1]:.1f} | {saved[0]:+.2f} | {saved[1]:.2f} |"


def main() -> None:
    print(
        "| instead of the plan | machine | now, us | then, us | saves, ms a step | error, ms |",
        "|---" * 6 + "|",
        sep="\n",
    )
    for machine, tp, chip, links, ring in ROWS:
        table = ModelTable(QWEN25_7B, ParallelPlan.make(QWEN25_7B, tp), PERFORMANCE, chip)
        for name, plan in table.decode_matmuls.items():
            if not name.startswith("LM head") and machine != "GALAXY":
                print(line(f"{name} by 1D multicast", machine, [streamed(plan)], [multicast(plan)], LAYERS))
        call = Case("collective", arch_of(chip), chips=tp, ring=ring, links=links, bytes=PARTIAL_SUM)
        scatter, gather, whole = (replace(call, name=n) for n in ("reduce_scatter", "all_gather", "all_reduce_async"))
        narrow = replace(whole, x="bfp8", bytes=HIDDEN * TILE_BYTES["bfloat8_b"])
        two = [scatter, gather]
        planned = two if machine == "T3K" else [whole] if machine == "GALAXY" else [narrow]
        others = {"all_reduce_async of bfloat16": [whole], "all_reduce_async of bfloat8_b": [narrow],
                  "reduce-scatter and all-gather": two}  # fmt: skip
        for what, cases in others.items():
            if cases != planned:
                print(line(what, machine, planned, cases, 2 * LAYERS))
        add = Case("binary", arch_of(chip), "add", result=HIDDEN, cores=16)
        norm = Case("norm", arch_of(chip), tiles=HIDDEN, cores=16, sharded=True)
        part = HIDDEN / tp
        statistics = replace(gather, bytes=tp * TILE_BYTES["bfloat16"])
        short = replace(add, result=part)
        parts = [scatter, short, replace(norm, tiles=part), statistics, short, gather]
        print(line("residual in parts", machine, [*planned, add, norm], parts, 2 * LAYERS))


if __name__ == "__main__":
    main()
