"""Draw KL against the bytes of a decode step, with growing shares of the MLP in 4 bits.

    python -m models.demos.qwen25_7b.quantize.pareto --model DIR --calibration FILE --text OTHER_FILE --out DIR

The command rounds gate and up, or down, of one layer at a time. It ranks them by KL for each byte saved, on the first 512
tokens of the calibration text. Then it puts growing shares of the MLP in 4 bits, the cheapest first. It writes each share's
recipe, and its checkpoint by `quantize`. KL is of the weights alone: the arithmetic is float32. The whole model must fit into
memory twice in float32.
"""

import argparse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Callable, Iterator, Sequence

from models.common.command import quiet_libraries, run, status_of
from models.demos.qwen25_7b.config import PERFORMANCE, RECIPES, Group, ParallelPlan, QwenConfig
from models.demos.qwen25_7b.config.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2ForCausalLM

    from models.demos.qwen25_7b.evaluation.divergence import Summary
    from models.demos.qwen25_7b.weights import Checkpoint

FOUR, EIGHT = Group("bfloat4_b"), Group("bfloat8_b")
MATRICES = {"mlp_in": 2, "mlp_out": 1}  # of one size
SHARES = (1 / 3, 1 / 2, 2 / 3, 1)  # of the MLP in 4 bits; gate and up alone are 2 / 3
HEADER = ("recipe", "weights", "MB a step", "KL, nats a token", "same first choice", "NLL")
FILES = "kl_by_bytes"
ROUNDED, QUANTIZED = "rounded", "by quantize"  # a point's weights


@dataclass(frozen=True)
class Cell:
    """gate and up (mlp_in) or down (mlp_out) of a layer."""

    layer: int
    group: str


@dataclass(frozen=True)
class Point:
    """A recipe's place in the picture."""

    recipe: str
    weights: str  # ROUNDED or QUANTIZED
    bytes: int  # of weights that a step reads
    kl: float  # nats a token
    top1: float  # share of 1
    nll: float  # nats a token

    @property
    def row(self) -> tuple[str, ...]:
        numbers = f"{self.bytes / 1e6:.1f}", f"{self.kl:.4f}", f"{self.top1:.1%}", f"{self.nll:.4f}"
        return self.recipe, self.weights, *numbers


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _pareto(argv))


def _pareto(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.errors import UserError
    from models.common.markdown import table_at_end
    from models.common.options import Parser
    from models.common.output_file import write_json, write_whole
    from models.common.terminal import Progress, complain, say
    from models.common.user_file import read_text
    from models.demos.qwen25_7b.quantize.options import check_effort

    parser = Parser(
        prog="python -m models.demos.qwen25_7b.quantize.pareto",
        description=__doc__.splitlines()[0],
        examples=(
            "python -m models.demos.qwen25_7b.quantize.pareto --model DIR --calibration text.txt --text other.txt --out points",
        ),
    )
    _add_options(parser)
    args = parser.parse_args(argv)
    check_effort(args)
    if args.score_tokens < 1:
        raise UserError(f"--score-tokens must be 1 or more, got {args.score_tokens}")
    with Progress("loading torch and transformers"):
        from models.demos.qwen25_7b.quantize.quantizer import TEXT_LIMIT, sequences
        from models.demos.qwen25_7b.weights import Checkpoint

    checkpoint = Checkpoint.open(args.model)
    calibration, ids = (
        sequences(read_text(file, TEXT_LIMIT, option), f"{option} {file}", checkpoint, tokens)
        for option, file, tokens in (
            ("--calibration", args.calibration, args.tokens),
            ("--text", args.text, args.score_tokens),
        )
    )
    try:
        args.out.mkdir(parents=True)
    except OSError as error:
        raise UserError(
            f"--out {args.out}: cannot be made ({error.strerror}); give a new directory"
        ) from error
    title = f"{checkpoint.directory.name}: {ids.numel()} tokens of {args.text.name}, arithmetic in float32"
    plot, data = (args.out / f"{FILES}.{kind}" for kind in ("png", "json"))
    points: list[Point] = []
    with table_at_end(HEADER, lambda: [point.row for point in points]):
        for point in _points(checkpoint, args, calibration[:1], ids):
            points.append(point)
            complain(", ".join(point.row))
            write_json(data, {"title": title, "points": [vars(point) for point in points]})
    write_whole(plot, lambda part: draw(points, title).savefig(part, format="png"))
    say(f"\n{title}\n{data}, {plot}")


def _points(
    checkpoint: "Checkpoint",
    args: argparse.Namespace,
    ranking: "torch.Tensor",
    ids: "torch.Tensor",
) -> "Iterator[Point]":
    """Each point as soon as it is known. Its recipe and its checkpoint are then in --out.

    ranking, ids: [sequences, tokens], of --calibration to rank with, and of --text to score on.
    """
    from models.common.output_file import write_json
    from models.common.terminal import Progress
    from models.demos.qwen25_7b.quantize.compare import float_model
    from models.demos.qwen25_7b.quantize.quantizer import quantize
    from models.demos.qwen25_7b.weights import Checkpoint

    reference = float_model(checkpoint)
    with Progress("ranking", "parts of the MLP") as progress:
        order = ranked(cell_costs(reference, ranking, progress))
    for recipe in RECIPES.values():
        if recipe.kv_cache == "bfloat16":  # the others have the weights of one of these
            yield _point(reference, checkpoint, recipe, ROUNDED, ids)
    for recipe in (PERFORMANCE, *recipes_by_share(order, checkpoint.config)):
        yield _point(reference, checkpoint, recipe, ROUNDED, ids)
        write_json(args.out / f"{recipe.name}.json", recipe_file_of(recipe))
        out = args.out / recipe.name
        with Progress(recipe.name, "layers") as progress:
            quantize(args.model, args.calibration, out, recipe, args.tokens, progress, args.steps)
        yield _point(reference, Checkpoint.open(out), recipe, QUANTIZED, ids)


def _add_options(parser: argparse.ArgumentParser) -> None:
    from models.common.options import path
    from models.demos.qwen25_7b.quantize.options import add_effort

    option = parser.add_argument
    option("--model", required=True, help="directory or hub id of the checkpoint")
    texts = ("calibration", "what `quantize` reads"), ("text", "what KL is scored on")
    for name, use in texts:
        option(f"--{name}", type=path(f"--{name}"), required=True, help=f"UTF-8 text: {use}")
    option("--out", type=path("--out"), required=True, help="new directory for all results")
    add_effort(parser)
    option("--score-tokens", type=int, default=2048, help="of --text (default: %(default)s)")


def cell_costs(
    model: "Qwen2ForCausalLM", ids: "torch.Tensor", progress: Callable[[int, int], None]
) -> dict[Cell, float]:
    """The KL of the model with one cell rounded to 4 bits, and all else as it is.

    ids: [sequences, tokens]. Only the layers from the cell on are computed again.
    """
    import torch

    from models.demos.qwen25_7b.reference.rounded import in_format

    rotation = model.model.rotary_emb(torch.zeros(1), torch.arange(ids.shape[1])[None])

    def after(layers, x):
        for layer in layers:
            x = layer(x, position_embeddings=rotation)
        return x

    def log_probabilities(x):
        return model.lm_head(model.model.norm(x)).log_softmax(-1)

    layers, costs = model.model.layers, {}
    with torch.no_grad():
        streams = [model.model.embed_tokens(ids)]
        for layer in layers:
            streams.append(after([layer], streams[-1]))
        exact = log_probabilities(streams[-1])
        for i, layer in enumerate(layers):
            for group in MATRICES:
                held = {p: p.weight.data for p in _projections(layer, group)}
                for projection, weight in held.items():
                    projection.weight.data = in_format(weight, FOUR.format)
                rounded = log_probabilities(after(layers[i:], streams[i]))
                for projection, weight in held.items():
                    projection.weight.data = weight
                costs[Cell(i, group)] = float((exact.exp() * (exact - rounded)).sum(-1).mean())
                progress(len(costs), len(layers) * len(MATRICES))
    return costs


def _projections(layer: "torch.nn.Module", group: str) -> "list[torch.nn.Module]":
    mlp = layer.mlp
    return [mlp.gate_proj, mlp.up_proj] if group == "mlp_in" else [mlp.down_proj]


def ranked(costs: dict[Cell, float]) -> list[Cell]:
    """The cells by KL for each byte saved, the cheapest first."""
    return sorted(costs, key=lambda cell: costs[cell] / MATRICES[cell.group])


def recipes_by_share(order: Sequence[Cell], config: QwenConfig) -> Iterator[Recipe]:
    """For each of SHARES: `performance` with that share of the MLP in 4 bits, and the rest in 8 bits."""
    whole = config.num_hidden_layers * sum(MATRICES.values())
    for share in SHARES:
        left, cells = round(share * whole), []
        for cell in order:
            if MATRICES[cell.group] <= left:
                left -= MATRICES[cell.group]
                cells.append(cell)
        yield recipe_with(cells, f"mlp-{share:.0%}".rstrip("%"))


def recipe_with(cells: Sequence[Cell], name: str) -> Recipe:
    """`performance` with these cells in 4 bits, and the rest of the MLP in 8 bits."""
    base = replace(PERFORMANCE, name=name, mlp_in=EIGHT, mlp_out=EIGHT)
    groups: dict[int, dict[str, Group]] = {}
    for cell in cells:
        groups.setdefault(cell.layer, {})[cell.group] = FOUR
    return replace(base, different=tuple((i, replace(base, **groups[i])) for i in sorted(groups)))


def recipe_file_of(recipe: Recipe) -> dict:
    """The recipe as a recipe file's contents: `performance`, and the formats of each layer's MLP."""
    contents = {"base": PERFORMANCE.name, **{g: getattr(recipe, g).format for g in MATRICES}}
    layers = {
        f"{i}": {group: getattr(of_layer, group).format for group in MATRICES}
        for i, of_layer in recipe.different
    }
    return contents | {"layers": layers}


def _point(
    reference: "Qwen2ForCausalLM",
    source: "Checkpoint",
    recipe: Recipe,
    weights: str,
    ids: "torch.Tensor",
) -> Point:
    from models.demos.qwen25_7b.quantize.compare import float_model, scored
    from models.demos.qwen25_7b.reference.rounded import round_model

    model = float_model(source)
    round_model(model, recipe)
    score: "Summary" = scored(reference, model, ids).summary()
    bytes_ = step_weight_bytes(source.config, recipe)
    return Point(recipe.name, weights, bytes_, score.kl_mean, score.top1, score.nll)


def step_weight_bytes(config: QwenConfig, recipe: Recipe) -> int:
    """Bytes of weights that a decode step reads on one chip, without padding."""
    from models.demos.qwen25_7b.plans.memory_budget import decode_matmuls

    plan = ParallelPlan.make(config, 1)
    return sum(m.times * m.needed for m in decode_matmuls(config, plan, recipe))


def draw(points: Sequence[Point], title: str):
    """KL over bytes: a line for weights by `quantize`, and one for rounded weights."""
    from matplotlib.figure import Figure

    from models.demos.qwen25_7b.evaluation.report import BLUE, GRID, ORANGE

    figure = Figure(figsize=(9, 5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for weights, color in ((ROUNDED, ORANGE), (QUANTIZED, BLUE)):
        line = sorted((p for p in points if p.weights == weights), key=lambda p: p.bytes)
        axes.plot(
            [p.bytes / 1e6 for p in line], [p.kl for p in line], "o-", color=color, label=weights
        )
        right = color == ORANGE
        for p in line:
            over = right or any(p.bytes == other.bytes and p.kl > other.kl for other in line)
            axes.annotate(
                f"{p.recipe}, {p.top1:.1%}",
                (p.bytes / 1e6, p.kl),
                xytext=(6 if right else -6, 2 if over else -4),
                textcoords="offset points",
                ha="left" if right else "right",
                va="bottom" if over else "top",
                fontsize=7,
                color=color,
            )
    axes.set_xlabel("weights that a decode step reads, MB")
    axes.set_ylabel("KL, nats a token (labels: share of equal first choices)")
    axes.grid(color=GRID)
    axes.margins(0.15, 0.08)
    axes.legend(frameon=False)
    axes.set_title(title, fontsize=9)
    return figure


if __name__ == "__main__":
    run(main)
