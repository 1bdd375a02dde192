"""The commands `eval` and `ablate`: the divergence of recipes, and of recipes that differ in one place."""

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Optional, get_args

from models.common.errors import UserError
from models.common.markdown import table_at_end
from models.common.output_file import check_directory, write_json
from models.common.terminal import complain, say
from models.demos.qwen25_7b.config import RECIPES, Group, Recipe, recipe_named
from models.demos.qwen25_7b.config.recipe import Format
from models.demos.qwen25_7b.config.recipe_file import add_recipe, add_recipes
from models.demos.qwen25_7b.evaluation.by_position import add_by_position, evaluate_by_position
from models.demos.qwen25_7b.evaluation.divergence import Evaluation, Score, Summary, Variant
from models.demos.qwen25_7b.evaluation.model import EvaluatedModel, Split, add_machine, add_model
from models.demos.qwen25_7b.evaluation.report import (
    HEADER,
    LEGEND,
    add_out,
    plot_ablation,
    plot_recipes,
    result_file,
    summary_row,
)
from models.demos.qwen25_7b.evaluation.texts import add_sample, sample_from

GROUPS = ("attention", "mlp_in", "mlp_out", "lm_head", "kv_cache")
LAYER_GROUPS = ("attention", "mlp_in", "mlp_out", "kv_cache")
FORMATS = get_args(Format)
CACHE_FORMATS = ("bfloat16", "bfloat8_b")
BY = ("group", "layer", "cell")
FOUR_BITS = "bfloat4_b"


class EvalCommand:
    """The divergence of each recipe from Hugging Face's float32 on held-out text: KL, top-1, top-5, NLL."""

    EXAMPLES = (
        "python -m models.demos.qwen25_7b.evaluation eval --recipes bf16,bfp8",
        "python -m models.demos.qwen25_7b.evaluation eval --model smollm2 --quantized smollm2-4bit",
        "python -m models.demos.qwen25_7b.evaluation eval --by-position 128,512,1024 --texts 8 --steps 32",
        "python -m models.demos.qwen25_7b.evaluation eval --model Qwen/Qwen2.5-7B-Instruct --mesh T3K --recipes bfp8,mine.json",
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        models = parser.add_argument_group("model and recipes")
        add_model(models)
        models.add_argument(
            "--quantized",
            metavar="NAME|DIR",
            help="--model after `quantize`: recipes with 4-bit weights run with these weights, too",
        )
        add_recipes(models, default=",".join(RECIPES))
        add_machine(parser)
        texts = add_sample(parser, steps=64)
        texts.add_argument(
            "--prefill", action="store_true", help="score prefill instead of decode steps"
        )
        add_by_position(texts)
        add_out(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> None:
        names = dict.fromkeys(args.recipes.split(","))
        recipes = [recipe_named(name, "--recipes") for name in names]
        model = EvaluatedModel.open(args.model)
        for recipe in recipes:
            recipe.check_layers(model.config.num_hidden_layers)
        quantized = _open_quantized(args.quantized, model)
        variants = _variants(recipes, quantized)
        split = Split.from_options(args, model.config)
        if args.by_position is not None:
            return evaluate_by_position(args, model, split, variants)
        sample = sample_from(args, model.tokenizer(), model.directory, model.config.context)
        check_directory("--out", args.out)
        evaluation = Evaluation.on(args.backend, model, split, sample, args.prefill)
        say(f"{evaluation}\n{LEGEND}\n")
        plot, data = (
            result_file(args.out, model.name, split, evaluation.phase, kind)
            for kind in ("png", "json")
        )
        scores: list[tuple[Variant, Score]] = []

        def rows() -> list[tuple[str, ...]]:
            return [(v.name, *summary_row(s.summary())) for v, s in scores]

        with table_at_end(("recipe", *HEADER), rows):
            for variant, score in evaluation.scores(variants):
                scores.append((variant, score))
                complain(f"{variant.name}: KL {score.summary().kl_mean:.3g}")
                entries = [v.as_dict() | asdict(s.summary()) for v, s in scores]
                write_json(data, evaluation.as_dict() | {"recipes": entries})
        plot_recipes(plot, f"{evaluation}", [(v.name, s) for v, s in scores])
        say(f"\n{data}, {plot}")


def _open_quantized(name: Optional[str], model: EvaluatedModel) -> Optional[EvaluatedModel]:
    if name is None:
        return None
    quantized = EvaluatedModel.open(name)
    if not quantized.config.is_like(model.config):
        raise UserError(
            f"--quantized {name}: its config.json is not that of {model.directory}; give what `quantize` made of --model"
        )
    return quantized


def _variants(recipes: list[Recipe], quantized: Optional[EvaluatedModel]) -> list[Variant]:
    variants = []
    for recipe in recipes:
        variants.append(Variant(recipe))
        if quantized and _has_four_bits(recipe):
            variants.append(Variant(recipe, quantized))
    return variants


def _has_four_bits(recipe: Recipe) -> bool:
    parts = [recipe, *(of_layer for _, of_layer in recipe.different)]
    weights = ("attention", "mlp_in", "mlp_out")
    return any(getattr(part, group).format == FOUR_BITS for part in parts for group in weights)


class AblateCommand:
    """The divergence that each group's and each layer's format costs: recipes that differ from one in a single place."""

    EXAMPLES = (
        "python -m models.demos.qwen25_7b.evaluation ablate --by group --formats bfloat4_b",
        "python -m models.demos.qwen25_7b.evaluation ablate --model smollm2 --base bfp8 --by cell",
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        models = parser.add_argument_group("model and recipes")
        add_model(models)
        add_recipe(models, "--base", default="bf16")
        models.add_argument(
            "--by",
            default="group,layer",
            metavar="PLACES",
            help=f"comma-separated: {', '.join(BY)}. group: in all layers, layer: all its weights, "
            "cell: one group of one layer (default: %(default)s)",
        )
        models.add_argument(
            "--formats",
            default="bfloat8_b,bfloat4_b",
            metavar="FORMATS",
            help=f"comma-separated: {', '.join(FORMATS)} (default: %(default)s)",
        )
        add_machine(parser)
        add_sample(parser, steps=32)
        add_out(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> None:
        formats = _words("--formats", args.formats, FORMATS)
        kinds = _words("--by", args.by, BY)
        model = EvaluatedModel.open(args.model)
        args.base.check_layers(model.config.num_hidden_layers)
        split = Split.from_options(args, model.config)
        sample = sample_from(args, model.tokenizer(), model.directory, model.config.context)
        check_directory("--out", args.out)
        ablations = [
            ablation
            for kind in kinds
            for ablation in ablations_by(kind, args.base, formats, model.config.num_hidden_layers)
        ]
        evaluation = Evaluation.on(args.backend, model, split, sample)
        title = f"{evaluation}; all else as in {args.base.name}"
        say(f"{title}\n{LEGEND}\n")
        plot, data = (
            result_file(args.out, model.name, split, "ablation", kind) for kind in ("png", "json")
        )
        summaries = _ablate(evaluation, args.base, ablations, data)
        plot_ablation(plot, title, summaries[0], list(zip(ablations, summaries[1:])))
        say(f"\n{data}, {plot}")


@dataclass(frozen=True)
class Ablation:
    """`group` of `layer` in `format`, the rest as in the base. None: every group of weights, every layer."""

    group: str | None
    layer: int | None
    format: str
    recipe: Recipe

    def __str__(self) -> str:
        where = self.group or "weights"
        return f"{where} of layer {self.layer}" if self.layer is not None else where


def ablations_by(kind: str, base: Recipe, formats: list[str], layers: int) -> list[Ablation]:
    """kind: "group" of every layer, "layer" with all its weights, or "cell", a group of a layer."""
    if kind == "group":
        places = [(group, None) for group in GROUPS]
    elif kind == "layer":
        places = [(None, layer) for layer in range(layers)]
    else:
        places = [(group, layer) for group in LAYER_GROUPS for layer in range(layers)]
    return [
        Ablation(group, layer, format, _changed(base, group, layer, format))
        for format in formats
        for group, layer in places
        if group != "kv_cache" or format in CACHE_FORMATS
    ]


def _changed(base: Recipe, group: str | None, layer: int | None, format: str) -> Recipe:
    if layer is None:
        return replace(_with_format(base, group, format), name=f"{group} {format}")
    of_layer = base.of_layer(layer)
    for changed in [group] if group else ["attention", "mlp_in", "mlp_out"]:
        of_layer = _with_format(of_layer, changed, format)
    others = tuple((i, recipe) for i, recipe in base.different if i != layer)
    name = f"{group or 'weights'} {format} in layer {layer}"
    return replace(base, name=name, different=(*others, (layer, of_layer)))


def _with_format(recipe: Recipe, group: str, format: str) -> Recipe:
    """The recipe with this group's format in every layer, also in layers with their own recipe."""
    change = {group: format if group == "kv_cache" else Group(format)}
    different = tuple((i, replace(of_layer, **change)) for i, of_layer in recipe.different)
    return replace(recipe, **change, different=different)


def _ablate(
    evaluation: Evaluation, base: Recipe, ablations: list[Ablation], data: Path
) -> list[Summary]:
    """The base's summary, then each ablation's. The JSON is written after each, and the table at the end."""
    recipes = [base, *(ablation.recipe for ablation in ablations)]
    summaries: list[Summary] = []
    header = ("change", "format", "KL over the base", *HEADER)
    with table_at_end(header, lambda: _ablation_rows(base, ablations, summaries)):
        for variant, score in evaluation.scores(map(Variant, recipes)):
            summaries.append(score.summary())
            complain(f"{variant.name}: KL {summaries[-1].kl_mean:.3g}")
            entries = [_ablation_entry(*each) for each in zip(ablations, summaries[1:])]
            first = {"recipe": asdict(base), **asdict(summaries[0])}
            write_json(data, evaluation.as_dict() | {"base": first, "ablations": entries})
    return summaries


def _ablation_rows(
    base: Recipe, ablations: list[Ablation], summaries: list[Summary]
) -> list[tuple[str, ...]]:
    if not summaries:
        return []
    first, *others = summaries
    rows = [(base.name, "", "", *summary_row(first))]
    for ablation, summary in zip(ablations, others):
        more = f"{summary.kl_mean - first.kl_mean:+.2g}"
        rows.append((f"{ablation}", ablation.format, more, *summary_row(summary)))
    return rows


def _ablation_entry(ablation: Ablation, summary: Summary) -> dict:
    place = {"group": ablation.group, "layer": ablation.layer, "format": ablation.format}
    return {**place, "recipe": asdict(ablation.recipe), **asdict(summary)}


def _words(option: str, value: str, known: tuple[str, ...]) -> list[str]:
    """A comma-separated option's words, each once. UserError: an unknown word."""
    words = list(dict.fromkeys(value.split(",")))
    for word in words:
        if word not in known:
            raise UserError(f"{option} takes {', '.join(known)}, separated by commas; got {word!r}")
    return words
