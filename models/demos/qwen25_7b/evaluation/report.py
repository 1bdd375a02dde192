"""Reports of scores: tables, JSON files and plots."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from models.common.options import path
from models.common.output_file import write_whole
from models.demos.qwen25_7b.evaluation.divergence import Score, Summary
from models.demos.qwen25_7b.evaluation.model import Split

if TYPE_CHECKING:
    from models.demos.qwen25_7b.evaluation.recipes import Ablation

OUT = Path("generated/evaluation")  # git ignores it
HEADER = ("KL mean", "KL max", "top-1", "top-5", "NLL", "NLL of Hugging Face", "tokens")
LEGEND = (
    "KL(Hugging Face in float32 || recipe) and NLL in nats a token. top-1, top-5: the recipe's first choice is Hugging "
    "Face's first choice, is among its first five."
)
BLUE, ORANGE, GREEN, LINE = "#2b6cb0", "#dd6b20", "#2f855a", "#55595f"
GRID = "#e6e8eb"
COLORS = {"bfloat16": GREEN, "bfloat8_b": BLUE, "bfloat4_b": ORANGE}
FLOOR = 1e-7  # nats: the left end of a logarithmic axis
MIDDLE_HALF = dict(color=BLUE, alpha=0.35, zorder=2)
MEDIAN = dict(marker="|", markersize=14, markeredgewidth=2, color=BLUE, linestyle="none", zorder=3)
MEAN = dict(marker="o", markersize=7, color=ORANGE, linestyle="none", zorder=4)


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("output").add_argument(
        "--out",
        type=path("--out"),
        default=OUT,
        metavar="DIR",
        help=f"directory for JSON and plots (default: {OUT})",
    )


def result_file(out: Path, model: str, split: Split, what: str, kind: str) -> Path:
    """The path of a result. A model's name may have dots, so the suffix is no with_suffix."""
    where = f"{split.kind.name}-tp{split.tp}"
    return out / f"{model.replace(' ', '-')}-{where}-{what}.{kind}"


def summary_row(s: Summary) -> tuple[str, ...]:
    """The cells under HEADER."""
    divergence = (f"{s.kl_mean:.3g}", f"{s.kl_max:.3g}", f"{s.top1:.2%}", f"{s.top5:.2%}")
    return (*divergence, f"{s.nll:.4f}", f"{s.reference_nll:.4f}", str(s.tokens))


def plot_recipes(file: Path, title: str, scores: list[tuple[str, Score]]) -> None:
    """A row for each named score: the distribution of its tokens' KL, and its shares and NLL as text."""
    figure = Figure(figsize=(9, 1.5 + 0.55 * len(scores)), dpi=150, layout="constrained")
    axes, text = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1.5))
    for row, (_, score) in enumerate(scores):
        _draw_distribution(axes, row, score)
    axes.set_yticks(range(len(scores)), [name for name, _ in scores], fontsize=10)
    axes.set_ylim(len(scores) - 0.5, -0.7)
    axes.set_xscale("log")
    axes.set_xlim(left=max(FLOOR, axes.get_xlim()[0]))
    axes.set_xlabel("KL of a token, nats")
    _clean(axes)
    marks = [
        Line2D([], [], label="mean", **MEAN),
        Line2D([], [], label="median", **MEDIAN),
        Patch(label="middle half", **MIDDLE_HALF),
        Line2D([], [], label="1 % to 99 %", color=LINE, linewidth=1.2),
    ]
    figure.legend(handles=marks, loc="outside lower left", ncols=4, fontsize=9, frameon=False)
    _write_columns(text, [score.summary() for _, score in scores])
    _save(figure, title, file)


def _draw_distribution(axes: Axes, row: int, score: Score) -> None:
    kl = score.kl.clamp_min(FLOOR)
    low, quarter, median, three_quarters, high = (
        float(kl.quantile(q)) for q in (0.01, 0.25, 0.5, 0.75, 0.99)
    )
    mean = max(float(score.kl.mean()), FLOOR)
    axes.plot([low, high], [row, row], color=LINE, linewidth=1.2, zorder=1)
    axes.barh(row, three_quarters - quarter, left=quarter, height=0.24, **MIDDLE_HALF)
    axes.plot([median], [row], **MEDIAN)
    axes.plot([mean], [row], **MEAN)
    _label(axes, f"{mean:.2g}", (mean, row), above=True)


def _write_columns(axes: Axes, summaries: list[Summary]) -> None:
    """Numbers beside the rows. Most recipes share one value, so an axis would show nothing."""
    columns = {
        "top-1": [f"{s.top1:.1%}" for s in summaries],
        "top-5": [f"{s.top5:.1%}" for s in summaries],
        "NLL over HF's": [f"{s.nll - s.reference_nll:+.4f}" for s in summaries],
    }
    for place, (name, cells) in zip((0.12, 0.42, 0.8), columns.items()):
        across = axes.get_yaxis_transform()  # x in shares of the axes, y in rows
        style = dict(transform=across, ha="center", va="center", fontsize=9)
        axes.text(place, -0.55, name, color=LINE, **style)
        for row, cell in enumerate(cells):
            axes.text(place, row, cell, **style)
    axes.set_axis_off()


class PositionPoint(NamedTuple):
    """What a recipe has at a position."""

    recipe: str
    phase: str
    position: int
    kl: float  # nats
    kl_error: float  # standard error of the mean
    kl_of_weights: float  # of the recipe's weights with arithmetic in float32
    top1: float  # share of 1
    nll: float  # nats over Hugging Face's


def plot_positions(file: Path, title: str, points: Sequence[PositionPoint]) -> None:
    """A column for each phase, with KL, top-1 and NLL over the position: a line for each recipe."""
    recipes = list(dict.fromkeys(point.recipe for point in points))
    phases = list(dict.fromkeys(point.phase for point in points))
    positions = sorted({point.position for point in points})
    figure = Figure(figsize=(10, 7.5), dpi=150, layout="constrained")
    panels = figure.subplots(3, len(phases), sharex=True, sharey="row", squeeze=False)
    for phase, (kl, top1, nll) in zip(phases, panels.T):
        kl.set_yscale("log")
        kl.set_xscale("log", base=2)
        for i, recipe in enumerate(recipes):
            some = [p for p in points if (p.recipe, p.phase) == (recipe, phase)]
            at = [p.position for p in some]
            style = dict(color=f"C{i}", marker="o", markersize=4, linewidth=1.2, label=recipe)
            values = [max(p.kl, FLOOR) for p in some]
            kl.errorbar(at, values, [p.kl_error for p in some], capsize=2, **style)
            weights = [p.kl_of_weights for p in some]
            kl.plot(at, weights, color=f"C{i}", linestyle=":", linewidth=1.2)
            top1.plot(at, [100 * p.top1 for p in some], **style)
            nll.plot(at, [p.nll for p in some], **style)
        kl.set_title(phase, fontsize=10)
        kl.set_ylim(bottom=max(FLOOR, kl.get_ylim()[0]))
        nll.set_xticks(positions, positions)
        nll.set_xlim(0.8 * positions[0], 1.25 * positions[-1])
        nll.xaxis.set_minor_locator(NullLocator())
        nll.set_xlabel("position, tokens")
        for axes in (kl, top1, nll):
            _clean(axes)
    for axes, label in zip(
        panels[:, 0], ("mean KL, nats (dotted: of weights)", "top-1, %", "NLL over HF's, nats")
    ):
        axes.set_ylabel(label, fontsize=9)
    lines = [Line2D([], [], color=f"C{i}", marker="o", label=r) for i, r in enumerate(recipes)]
    figure.legend(handles=lines, loc="outside lower left", ncols=5, fontsize=9, frameon=False)
    _save(figure, title, file)


def plot_ablation(
    file: Path, title: str, base: Summary, results: list[tuple["Ablation", Summary]]
) -> None:
    """A panel for groups, one for layers, and one for the cells of each format: those that `results` has."""
    groups = [(a, s) for a, s in results if a.layer is None]
    layers = [(a, s) for a, s in results if a.layer is not None and a.group is None]
    cells = [(a, s) for a, s in results if a.layer is not None and a.group is not None]
    by_format = {
        f: [(a, s) for a, s in cells if a.format == f]
        for f in dict.fromkeys(a.format for a, _ in cells)
    }
    panels = [(_draw_groups, groups)] * bool(groups) + [(_draw_layers, layers)] * bool(layers)
    panels += [(_draw_cells, of_format) for of_format in by_format.values()]
    figure = Figure(figsize=(9, 0.6 + 3.2 * len(panels)), dpi=150, layout="constrained")
    for axes, (draw, some) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels):
        draw(axes, base, some)
    _save(figure, title, file)


def _draw_groups(axes: Axes, base: Summary, results: list[tuple["Ablation", Summary]]) -> None:
    names = list(dict.fromkeys(a.group for a, _ in results))
    formats = list(dict.fromkeys(a.format for a, _ in results))
    for ablation, summary in results:
        place = summary.kl_mean, names.index(ablation.group)
        axes.plot(*place, marker="o", markersize=7, color=COLORS[ablation.format])
        above = formats.index(ablation.format) % 2 == 0
        _label(axes, f"{summary.kl_mean:.2g}", place, above, COLORS[ablation.format])
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.7)
    axes.set_xscale("log")
    _number_by_1_2_5(axes.xaxis)
    axes.axvline(base.kl_mean, color="black", linestyle="--", linewidth=1.2)
    axes.set_xlabel("mean KL, nats, with one group of all layers in another format")
    _clean(axes)
    _name_formats(axes, results)


def _draw_layers(axes: Axes, base: Summary, results: list[tuple["Ablation", Summary]]) -> None:
    for format in dict.fromkeys(a.format for a, _ in results):
        points = [(a.layer, s.kl_mean) for a, s in results if a.format == format]
        axes.plot(*zip(*points), marker="o", markersize=4, linewidth=1.2, color=COLORS[format])
    axes.axhline(base.kl_mean, color="black", linestyle="--", linewidth=1.2)
    axes.set_yscale("log")
    _number_by_1_2_5(axes.yaxis)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer whose weights are in another format")
    axes.set_ylabel("mean KL, nats", fontsize=9)
    _clean(axes)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    _name_formats(axes, results)


def _draw_cells(axes: Axes, base: Summary, results: list[tuple["Ablation", Summary]]) -> None:
    groups = list(dict.fromkeys(a.group for a, _ in results))
    layers = list(dict.fromkeys(a.layer for a, _ in results))
    kl = {(a.group, a.layer): s.kl_mean for a, s in results}
    grid = [[kl[group, layer] for layer in layers] for group in groups]
    image = axes.imshow(grid, aspect="auto", cmap="YlOrRd", norm="log")
    axes.set_yticks(range(len(groups)), groups)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"layer whose group is in {results[0][0].format}; base {base.kl_mean:.2g}")
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label("mean KL, nats", fontsize=9)
    _clean(axes)
    axes.grid(False)


def _name_formats(axes: Axes, results: list[tuple["Ablation", Summary]]) -> None:
    formats = dict.fromkeys(a.format for a, _ in results)
    lines = [Line2D([], [], marker="o", ls="none", color=COLORS[f], label=f) for f in formats]
    lines.append(Line2D([], [], linestyle="--", color="black", label="base"))
    axes.legend(
        handles=lines, fontsize=9, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )


def _label(
    axes: Axes, text: str, place: tuple[float, float], above: bool, color: str = "black"
) -> None:
    style = dict(textcoords="offset points", ha="center", va="bottom" if above else "top", zorder=5)
    style["bbox"] = dict(facecolor="white", edgecolor="none", pad=0.5)  # lines do not cross it
    axes.annotate(text, place, (0, 6 if above else -6), fontsize=9, color=color, **style)


def _number_by_1_2_5(axis: Axis) -> None:
    """Ticks of a logarithmic axis that spans few decades."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-")))
    axis.set_minor_locator(NullLocator())


def _clean(axes: Axes) -> None:
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.xaxis.label.set_fontsize(9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _save(figure: Figure, title: str, file: Path) -> None:
    figure.suptitle(title, fontsize=9, x=0.01, ha="left", wrap=True)
    write_whole(file, figure.savefig)
