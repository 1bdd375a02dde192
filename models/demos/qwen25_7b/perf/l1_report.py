"""A Picture of L1 as a table, and drawn."""

from pathlib import Path

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from models.demos.qwen25_7b.perf.l1 import Picture
from models.demos.qwen25_7b.plans.l1 import L1

GREY, DARK, LIGHT, RED = "#8a8f98", "#4a5568", "#cbd0d6", "#c53030"
COLOURS = colormaps["tab20"].colors  # more than a layer has names


def l1_table(picture: Picture) -> str:
    lines = [
        "| operation | tensors, planned | ttnn | circular buffers, planned | ttnn | with what stays, planned, of the core "
        "| what lies there |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in picture.rows:
        lying = ", ".join(f"{name} {size:,}" for name, size in row.planned.tensors)
        whole = picture.stays + row.planned.bytes
        lines.append(
            f"| {row.planned.op} | {row.planned_tensors:,} | {row.tensors:,} | {_told(row.planned.buffers)} | "
            f"{_told(row.buffers)} | {whole:,} ({whole / L1:.0%}) | {lying} |"
        )
    fullest = max(picture.rows, key=lambda row: row.planned.bytes)
    return "\n".join(
        [
            *lines,
            "",
            f"A core has {L1:,} bytes. Before the layer begins {picture.stays:,} are set aside for what stays there (the rotary "
            f"matrix, all-reduce buffers, what collectives keep and the holes between); ttnn had given out "
            f"{picture.stays_taken:,}. Fullest: {fullest.planned.op}, "
            f"{picture.stays + fullest.planned.bytes:,}. -: not counted, or not reported; ttnn reports the circular buffers of "
            "some operations only.",
        ]
    )


def _told(size: int) -> str:
    return f"{size:,}" if size else "-"


def draw(file: Path, title: str, picture: Picture) -> None:
    """Two bars an operation: as planned, tensor by tensor, with its circular buffers; and beside it as ttnn has it."""
    figure = Figure(figsize=(11, 1.6 + 0.42 * len(picture.rows)), dpi=150, layout="constrained")
    axes = figure.subplots()
    names = dict.fromkeys(name for row in picture.rows for name, _ in row.planned.tensors)
    colours = {name: COLOURS[i] for i, name in enumerate(names)}
    for y, row in enumerate(picture.rows):
        planned = [(size, colours[name]) for name, size in row.planned.tensors]
        _bar(axes, y - 0.2, [(picture.stays, GREY), *planned, (row.planned.buffers, LIGHT)])
        _bar(axes, y + 0.2, [(picture.stays_taken, GREY), (row.tensors, DARK), (row.buffers, LIGHT)])
    axes.axvline(L1 / 1024, color=RED, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(picture.rows)), [row.planned.op for row in picture.rows])
    axes.set_ylim(len(picture.rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.02 * L1 / 1024)
    axes.set_xlabel(
        "KiB of a core; dashed: all there is. Upper bar: planned. Lower bar: as ttnn gave it out; of circular buffers it reports "
        "some operations' only",
        fontsize=8,
    )
    entries = {"what stays": GREY, **colours, "ttnn: tensors": DARK, "circular buffers": LIGHT}
    axes.legend(
        handles=[Patch(color=colour, label=name) for name, colour in entries.items()],
        fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5),
    )  # fmt: skip
    axes.grid(axis="x", color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.suptitle(title, fontsize=9, x=0.01, ha="left", wrap=True)
    figure.savefig(file)


def _bar(axes, y: float, parts: list[tuple[int, object]]) -> None:
    at = 0.0
    for size, colour in parts:
        axes.barh(y, size / 1024, 0.36, left=at, color=colour, edgecolor="white", linewidth=0.4)
        at += size / 1024
