"""A Picture of L1 as a table, and drawn."""

from pathlib import Path

from matplotlib.figure import Figure

from models.demos.qwen25_7b.perf.l1 import Picture
from models.demos.qwen25_7b.plans.l1 import L1

GREY, BUFFERS = "#8a8f98", "#cbd0d6"
COLOURS = ("#2b6cb0", "#dd6b20", "#2f855a", "#b7791f", "#6b46c1", "#c53030", "#0987a0", "#97266d")


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
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    for y, row in enumerate(picture.rows):
        parts = [("stays", picture.stays, GREY), *((name, size, colours[name]) for name, size in row.planned.tensors)]
        _bar(axes, y - 0.2, [*parts, ("buffers", row.planned.buffers, BUFFERS)], named=True)
        of_ttnn = [("stays", picture.stays_taken, GREY), ("ttnn", row.tensors, "#4a5568"), ("", row.buffers, BUFFERS)]
        _bar(axes, y + 0.2, of_ttnn, named=False)
    axes.axvline(L1 / 1024, color=COLOURS[5], linewidth=1, linestyle="--")
    axes.set_yticks(range(len(picture.rows)), [row.planned.op for row in picture.rows])
    axes.set_ylim(len(picture.rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.02 * L1 / 1024)
    axes.set_xlabel(
        "KiB of a core. Upper bar: planned, tensor by tensor; lower, dark: tensors as ttnn gave them out; light: circular "
        "buffers (ttnn reports some operations' only); grey: what stays; dashed: all there is",
        fontsize=8,
    )
    axes.grid(axis="x", color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.suptitle(title, fontsize=9, x=0.01, ha="left", wrap=True)
    figure.savefig(file)


def _bar(axes, y: float, parts: list[tuple[str, int, str]], *, named: bool) -> None:
    at = 0.0
    for name, size, colour in parts:
        width = size / 1024
        axes.barh(y, width, 0.36, left=at, color=colour, edgecolor="white", linewidth=0.4)
        if named and width > 11 * len(name) + 8:  # KiB that a letter takes at this size
            axes.text(
                at + width / 2,
                y,
                name,
                ha="center",
                va="center",
                fontsize=6,
                color="white" if name != "buffers" else "black",
            )
        at += width
