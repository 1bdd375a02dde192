"""Draw the pictures of the documents: python -m models.demos.qwen25_7b.docs.pictures

It writes architecture.svg and decode_step.svg beside this file. The shapes, cores and bytes are the plans' own numbers.
"""

from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from models.common.command import quiet_libraries, run, status_of
from models.common.errors import UserError
from models.common.options import Parser, path
from models.demos.qwen25_7b.config import BFP8, MAX_USERS, QWEN25_7B, ParallelPlan
from models.demos.qwen25_7b.config.sampling import CANDIDATES

HERE = Path(__file__).parent
INK = "#1a202c"
MUTED = "#5a6472"
COLORS = {
    "program": "#e2e8f0",
    "serving": "#c6dcf5",
    "chips": "#cdebd6",
    "plans": "#fbe3bf",
    "loading": "#e6d9f5",
    "below": "#f4d3d3",
}


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and lines of text; x, y is its lower left corner."""

    x: float
    y: float
    width: float
    height: float
    title: str
    lines: tuple[str, ...] = ()
    color: str = "program"

    def draw(self, axes: Axes) -> None:
        axes.add_patch(
            FancyBboxPatch(
                (self.x, self.y),
                self.width,
                self.height,
                boxstyle="round,pad=0,rounding_size=0.08",
                facecolor=COLORS[self.color],
                edgecolor=INK,
                linewidth=0.8,
            )
        )
        middle = self.x + self.width / 2
        top = self.y + self.height - 0.27
        if not self.lines:
            top = self.y + self.height / 2
        axes.text(
            middle, top, self.title, ha="center", va="center", weight="bold", size=10, color=INK
        )
        for i, line in enumerate(self.lines):
            y = top - 0.33 - 0.28 * i
            axes.text(middle, y, line, ha="center", va="center", size=8.5, color=INK)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], label: str = ""
) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=MUTED, linewidth=1)
    )
    if label:
        x = (start[0] + end[0]) / 2
        y = (start[1] + end[1]) / 2
        axes.text(
            x, y, label, ha="center", va="center", size=8, color=MUTED, backgroundcolor="white"
        )


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with axes in the units of the boxes, 0.8 inch each."""
    figure = Figure(figsize=(0.8 * width, 0.8 * height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")
    return figure, axes


def save(figure: Figure, file: Path) -> None:
    # Text stays text, and the same drawing gives the same bytes.
    options = {"svg.fonttype": "none", "svg.hashsalt": file.name, "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(options):
        figure.savefig(file, format="svg", metadata={"Date": None})


def architecture() -> Figure:
    """Calls between programs, serving, modules, plans, loading and the backend."""
    figure, axes = canvas(13.4, 9.4)
    boxes = (
        Box(0.3, 8.3, 2.9, 0.8, "demo/demo.py"),
        Box(3.5, 8.3, 3.2, 0.8, "vLLM + Tenstorrent's plugin"),
        Box(7.0, 8.3, 2.9, 0.8, "evaluation/, quantize/"),
        Box(10.2, 8.3, 2.9, 0.8, "perf/"),
        Box(
            0.3,
            5.75,
            6.4,
            1.9,
            "serving/",
            (
                "Generator: the decode loop over replicas",
                "Scheduler: slots, cache blocks, preemption, prefill batches",
                "Replica: device inputs and traces of one model",
                "QwenForCausalLM: the class that vLLM drives",
            ),
            "serving",
        ),
        Box(
            0.3,
            2.35,
            6.4,
            2.75,
            "tt/",
            (
                "TtTransformer: TtEmbedding, 28 x TtDecoderLayer, TtRMSNorm, TtLMHead",
                "TtDecoderLayer: TtRMSNorm, TtQwenAttention, add, TtRMSNorm, TtQwenMLP, add",
                "TtQwenAttention: TtLinear, TtRotary, TtKVCache",
                "TtQwenMLP: down(silu(gate) * up)",
                "TtAllReduce: the sum of the chips' partial sums",
                "TtSampler, TtPenalties: logits shards -> token ids",
            ),
            "chips",
        ),
        Box(
            7.0,
            5.75,
            5.6,
            1.9,
            "loading/, weights/",
            (
                "Hugging Face checkpoint -> what each chip holds",
                "tiled and packed on the host, kept in a cache",
                "streamed onto the chips",
            ),
            "loading",
        ),
        Box(
            7.0,
            2.35,
            6.1,
            2.75,
            "plans/, config/",
            (
                "QwenConfig, ParallelPlan, Recipe, SamplingParams",
                "DecodePlan, PrefillPlan: cores, shards, program configs",
                "MemoryBudget: DRAM in bytes",
                "Frozen values, computed before anything runs",
            ),
            "plans",
        ),
        Box(0.3, 1.3, 12.8, 0.7, "ttnn", (), "below"),
        Box(0.3, 0.3, 4.1, 0.7, "silicon: N150, N300, T3K", (), "below"),
        Box(4.65, 0.3, 4.1, 0.7, "simulator: ttsim", (), "below"),
        Box(9.0, 0.3, 4.1, 0.7, "golden mesh: mock + torch", (), "below"),
    )
    arrows = (
        ((1.75, 8.3), (1.75, 7.65), ""),
        ((5.1, 8.3), (5.1, 7.65), ""),
        ((8.45, 8.3), (6.3, 7.65), ""),
        ((12.9, 8.3), (12.9, 5.1), ""),
        ((3.5, 5.75), (3.5, 5.1), "inputs, traces"),
        ((6.7, 6.7), (7.0, 6.7), ""),
        ((8.5, 5.75), (6.7, 4.9), ""),
        ((6.7, 3.7), (7.0, 3.7), ""),
        ((10.0, 5.75), (10.0, 5.1), ""),
        ((3.5, 2.35), (3.5, 2.0), ""),
    )
    for start, end, label in arrows:
        arrow(axes, start, end, label)
    for box in boxes:
        box.draw(axes)
    return figure


@dataclass(frozen=True)
class Op:
    """An operation of a decode step on one chip."""

    name: str
    result: str
    reads: str = ""  # from DRAM
    writes: str = ""  # to DRAM
    joins: bool = False  # chips send each other their partial sums


def decode_ops() -> tuple[list[Op], list[Op], list[Op]]:
    """A step on one chip of an N300, 32 users, recipe bfp8: before the layers, a layer's 18 operations, after them."""
    # These import ttnn, which logs unless it is told not to.
    from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
    from models.demos.qwen25_7b.plans.grids import Grid
    from models.demos.qwen25_7b.plans.memory_budget import decode_matmuls

    config = QWEN25_7B
    plan = ParallelPlan.make(config, 2)
    decode = DecodePlan.make(config, plan, Grid(8, 8), users=MAX_USERS)
    read = {m.name: f"{m.read / 1e6:.1f} MB" for m in decode_matmuls(config, plan, BFP8)}
    head = config.head_dim
    hidden = f"[32, {config.hidden_size}] on {decode.residual.cores} cores"
    heads = f"[32, {plan.q_heads}, {head}]"
    wide = f"[32, {plan.mlp}]"
    lm_head = sum(
        m.times * m.read for m in decode_matmuls(config, plan, BFP8) if "LM head" in m.name
    )
    first = [Op("embedding", hidden, "a row a user")]
    last = [
        Op("RMSNorm", hidden),
        Op("LM head matmuls", f"[32, {plan.vocab}] in shards", f"Wlm {lm_head / 1e6:.1f} MB"),
        Op("topk", f"{CANDIDATES} candidates of each shard"),
        Op("all-gather, sample", "a token id a slot", joins=True),
    ]
    layer = [
        Op("RMSNorm", hidden),
        Op("QKV matmul + bias", f"[32, {plan.qkv_width(head)}]", f"Wqkv {read['QKV']}"),
        Op("create heads", f"q {heads}, k and v [32, {plan.kv_heads}, {head}]"),
        Op("rotary q, k", "a user a core"),
        Op("cache update k, v", "in place", writes="KV cache, written"),
        Op("attention (SDPA)", heads, "KV cache, read"),
        Op("interleaved to sharded", "a user a core"),
        Op("concat heads", f"[32, {plan.q_width(head)}] on {plan.q_heads} cores"),
        Op("O matmul", "a partial sum", f"Wo {read['O']}"),
        Op("all-reduce", hidden, joins=True),
        Op("add to the residual", hidden),
        Op("RMSNorm", hidden),
        Op("gate matmul", wide, f"Wgate {read['gate']}"),
        Op("up matmul", wide, f"Wup {read['up']}"),
        Op("silu(gate) * up", wide),
        Op("down matmul", "a partial sum", f"Wdown {read['down']}"),
        Op("all-reduce", hidden, joins=True),
        Op("add to the residual", hidden),
    ]
    return first, layer, last


def draw_op(axes: Axes, op: Op, x: float, y: float, color: str, *, left: bool) -> None:
    """left: of the two chips this is the left one, so its DRAM is on the left."""
    width, height, middle = 3.3, 0.46, y + 0.23
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.05",
            facecolor=COLORS[color],
            edgecolor=INK,
            linewidth=0.6,
        )
    )
    axes.text(x + width / 2, y + 0.315, op.name, ha="center", va="center", size=8, weight="bold")
    axes.text(x + width / 2, y + 0.125, op.result, ha="center", va="center", size=7, color=MUTED)
    inner, outer, label = (
        (x, x - 0.35, x - 0.4) if left else (x + width, x + width + 0.35, x + width + 0.4)
    )
    if op.reads:
        arrow(axes, (outer, middle), (inner, middle))
    if op.writes:
        arrow(axes, (inner, middle), (outer, middle))
    align = "right" if left else "left"
    axes.text(label, middle, op.reads or op.writes, ha=align, va="center", size=7.5, color=INK)
    if op.joins and left:
        ends = (x + width, middle), (x + 4.7, middle)
        axes.add_patch(FancyArrowPatch(*ends, arrowstyle="<|-|>", mutation_scale=11, color=MUTED))
        axes.text(x + 4.0, middle + 0.08, "ethernet", ha="center", va="bottom", size=7.5)


def decode_step() -> Figure:
    """One decode step on the two chips of an N300, from token ids to token ids."""
    first, layer, last = decode_ops()
    ops = first + layer + last
    gap = 0.62
    figure, axes = canvas(14.0, gap * len(ops) + 1.5)
    top = gap * len(ops) + 0.35
    for chip, x in enumerate((3.0, 7.7)):
        axes.text(x + 1.65, top + 0.75, f"chip {chip}", ha="center", weight="bold", size=11)
        for i, op in enumerate(ops):
            color = "loading" if op.joins else "chips" if 0 < i <= len(layer) else "serving"
            draw_op(axes, op, x, top - gap * (i + 1) + 0.5, color, left=chip == 0)
    bottom = top - gap * (len(layer) + 1) + 0.47
    axes.plot(
        (12.75, 12.95, 12.95, 12.75), (top - gap + 0.42,) * 2 + (bottom,) * 2, color=INK, lw=1
    )
    axes.text(
        13.05, (top + bottom) / 2, f"x {QWEN25_7B.num_hidden_layers}\nlayers", va="center", size=9
    )
    axes.text(0.2, top + 0.75, "DRAM of chip 0", size=9, color=MUTED)
    axes.text(11.35, top + 0.75, "DRAM of chip 1", size=9, color=MUTED)
    return figure


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _draw(argv))


def _draw(argv: list[str] | None) -> None:
    parser = Parser(prog="python -m models.demos.qwen25_7b.docs.pictures", description=__doc__)
    parser.add_argument(
        "--out",
        type=path("--out"),
        default=HERE,
        metavar="DIR",
        help="directory to write to (default: beside this file)",
    )
    folder = parser.parse_args(argv).out
    if not folder.is_dir():
        raise UserError(f"--out {folder}: not a directory; make it first")
    quiet_libraries()
    save(architecture(), folder / "architecture.svg")
    save(decode_step(), folder / "decode_step.svg")


if __name__ == "__main__":
    run(main)
