"""Pictures of scores."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.evaluation.ablation import Variant
from models.demos.qwen25_7b.evaluation.score import Score, Summary

BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#8a8f98"
COLOURS = {"bfloat16": "#2f855a", "bfloat8_b": BLUE, "bfloat4_b": ORANGE}
FLOOR = 1e-7  # nats; what lies below has no place on a logarithmic axis


def plot_recipes(file: Path, title: str, scores: list[tuple[Recipe, Score]]) -> None:
    """A line for each recipe: how the KL of its tokens is spread, and how often its choice is Hugging Face's."""
    figure = Figure(figsize=(11, 1.9 + 0.55 * len(scores)), dpi=150, layout="constrained")
    spread, agreement = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for row, (_, score) in enumerate(scores):
        _draw_spread(spread, row, score)
        _draw_agreement(agreement, row, score)
    spread.set_yticks(range(len(scores)), [recipe.name for recipe, _ in scores])
    spread.set_ylim(len(scores) - 0.4, -0.6)
    spread.set_xscale("log")
    lowest = 100 * min(float(score.top1.double().mean()) for _, score in scores)
    agreement.set_xlim(min(98.0, lowest - 0.1 * (100 - lowest)), 100.2)
    spread.set_xlabel(
        "KL of a token, nats: mean (dot), median (tick), middle half (bar), 1 % to 99 % (line), largest (x)"
    )
    agreement.set_xlabel("first choice is Hugging Face's first (dot), among its first five (ring), %")
    for axes in (spread, agreement):
        _clean(axes)
    figure.suptitle(title, fontsize=9, x=0.01, ha="left", wrap=True)
    save(figure, file)


def _draw_spread(axes: Axes, row: int, score: Score) -> None:
    kl = score.kl.clamp_min(FLOOR)
    low, quarter, middle, three_quarters, high = (float(kl.quantile(q)) for q in (0.01, 0.25, 0.5, 0.75, 0.99))
    axes.plot([low, high], [row, row], color=GREY, linewidth=1.2, zorder=1)
    axes.plot(
        [quarter, three_quarters], [row, row], color=BLUE, linewidth=8, alpha=0.35, solid_capstyle="butt", zorder=2
    )
    axes.plot([middle], [row], marker="|", markersize=13, color=BLUE, zorder=3)
    axes.plot([float(kl.max())], [row], marker="x", markersize=6, color=GREY, zorder=3)
    mean = float(score.kl.mean())
    axes.plot([max(mean, FLOOR)], [row], marker="o", markersize=6, color=ORANGE, zorder=4)
    axes.annotate(f"{mean:.2g}", (max(mean, FLOOR), row), (0, 8), textcoords="offset points", ha="center", fontsize=9)


def _draw_agreement(axes: Axes, row: int, score: Score) -> None:
    first, among = (100 * float(x.double().mean()) for x in (score.top1, score.top5))
    axes.plot([first, among], [row, row], color=GREY, linewidth=1.2, zorder=1)
    axes.plot([among], [row], marker="o", markersize=7, markerfacecolor="white", color=BLUE, zorder=2)
    axes.plot([first], [row], marker="o", markersize=6, color=BLUE, zorder=3)
    axes.annotate(f"{first:.1f}", (first, row), (0, 8), textcoords="offset points", ha="center", fontsize=9)


def plot_ablation(file: Path, title: str, base: Summary, results: list[tuple[Variant, Summary]]) -> None:
    """A panel for the groups, one for the layers, and one a format for the groups of layers: what of these was measured."""
    groups = [(v, s) for v, s in results if v.layer is None]
    layers = [(v, s) for v, s in results if v.layer is not None and v.group is None]
    cells = [(v, s) for v, s in results if v.layer is not None and v.group is not None]
    by_format = {f: [(v, s) for v, s in cells if v.format == f] for f in dict.fromkeys(v.format for v, _ in cells)}
    panels = [(_draw_groups, groups)] * bool(groups) + [(_draw_layers, layers)] * bool(layers)
    panels += [(_draw_cells, of_format) for of_format in by_format.values()]
    figure = Figure(figsize=(9, 0.6 + 2.9 * len(panels)), dpi=150, layout="constrained")
    for axes, (draw, some) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels):
        draw(axes, base, some)
    figure.suptitle(title, fontsize=9, x=0.01, ha="left", wrap=True)
    save(figure, file)


def _draw_groups(axes: Axes, base: Summary, results: list[tuple[Variant, Summary]]) -> None:
    names = list(dict.fromkeys(v.group for v, _ in results))
    for variant, summary in results:
        place = summary.kl_mean, names.index(variant.group)
        axes.plot(*place, marker="o", markersize=7, color=COLOURS[variant.format], linestyle="none")
        axes.annotate(f"{summary.kl_mean:.2g}", place, (0, 8), textcoords="offset points", ha="center", fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.7)
    axes.set_xscale("log")
    axes.axvline(base.kl_mean, color=GREY, linestyle="--", linewidth=1)
    axes.set_xlabel("mean KL, nats, with one group of all layers in a lower format")
    _clean(axes)
    _name_formats(axes, results)


def _draw_layers(axes: Axes, base: Summary, results: list[tuple[Variant, Summary]]) -> None:
    for format in dict.fromkeys(v.format for v, _ in results):
        points = [(v.layer, s.kl_mean) for v, s in results if v.format == format]
        axes.plot(*zip(*points), marker="o", markersize=4, linewidth=1.2, color=COLOURS[format])
    axes.axhline(base.kl_mean, color=GREY, linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer whose weights are in a lower format")
    axes.set_ylabel("mean KL, nats", fontsize=8)
    _clean(axes)
    axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)
    _name_formats(axes, results)


def _draw_cells(axes: Axes, base: Summary, results: list[tuple[Variant, Summary]]) -> None:
    groups = list(dict.fromkeys(v.group for v, _ in results))
    layers = list(dict.fromkeys(v.layer for v, _ in results))
    grid = [[next(s.kl_mean for v, s in results if (v.group, v.layer) == (g, i)) for i in layers] for g in groups]
    image = axes.imshow(grid, aspect="auto", cmap="YlOrRd", norm="log")
    axes.set_yticks(range(len(groups)), groups)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(f"layer whose group is in {results[0][0].format}; base {base.kl_mean:.2g}")
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label("mean KL, nats", fontsize=8)
    _clean(axes)
    axes.grid(False)


def _name_formats(axes: Axes, results: list[tuple[Variant, Summary]]) -> None:
    lines = [Line2D([], [], marker="o", linestyle="none", color=COLOURS[f], label=f) for f in
             dict.fromkeys(v.format for v, _ in results)]  # fmt: skip
    lines.append(Line2D([], [], linestyle="--", color=GREY, label="base"))
    axes.legend(handles=lines, fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _clean(axes: Axes) -> None:
    axes.grid(axis="x", color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.xaxis.label.set_fontsize(8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def save(figure: Figure, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
