"""The command `eval`: the divergence of recipes from Hugging Face's float32, over a sample or by position."""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterator, Optional, Sequence

from ..cli.options import add_machine, add_recipes, number
from ..cli.terminal import complain, markdown, say
from ..config import RECIPES, Recipe, recipe_named
from ..errors import UserError
from ..files import check_directory, write_json
from ..plans.machines import Split
from ..tt.mesh import command_queues, open_replicas
from .by_position import Bucket, add_by_position, buckets_from
from .divergence import Score, score_decode, score_prefill, score_reading
from .model import EvaluatedModel, add_model, choose_backend, replicas_on, split_for
from .reference import HuggingFace
from .texts import add_sample, sample_from

OUT = Path("generated/evaluation")  # git ignores it
FOUR_BITS = "bfloat4_b"
TP_DEFAULT = "(default: as many as the model can be split over)"
LEGEND = (
    "KL(Hugging Face in float32 || recipe) and NLL in nats a token. top-1, top-5, top-100: the recipe's first "
    "choice is among Hugging Face's first 1, 5, 100."
)
POSITION_LEGEND = (
    "The last --steps tokens up to each position are scored. KL of weights: Hugging Face in float32 with weights in "
    "the recipe's formats."
)


def add_out(parser: argparse.ArgumentParser) -> None:
    text = f"directory for the results as JSON (default: {OUT})"
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=text)


def result_file(out: Path, model: str, split: Split, content: str) -> Path:
    """The path of a result. A model's name may have dots, so the suffix is no with_suffix."""
    return out / f"{model.replace(' ', '-')}-{split.kind.name}-tp{split.tp}-{content}.json"


@dataclass(frozen=True)
class Variant:
    """A recipe on a checkpoint's weights."""

    recipe: Recipe
    quantized: Optional[EvaluatedModel] = None  # weights rounded by `quantize`; None: the model's

    @property
    def name(self) -> str:
        return f"{self.recipe.name}, quantized" if self.quantized else self.recipe.name


@dataclass(frozen=True)
class Result:
    """A variant's score in one bucket."""

    variant: Variant
    phase: str  # "decode" or "prefill"
    end: int  # the bucket's end
    score: Score
    kl_of_weights: Optional[float]  # by position only

    def row(self) -> dict[str, str]:
        """The cells of a table by their column."""
        s, weights = self.score.summary(), self.kl_of_weights
        return {
            "recipe": self.variant.name,
            "phase": self.phase,
            "up to": f"{self.end}",
            "KL mean": f"{s.kl_mean:.3g}",
            "std. error": f"{s.kl_error:.1g}",
            **({} if weights is None else {"KL of weights": f"{weights:.3g}"}),
            "top-1": f"{s.top1:.2%}",
            "top-5": f"{s.top5:.2%}",
            "top-100": f"{s.top100:.2%}",
            "NLL": f"{s.nll:.4f}",
            "NLL of Hugging Face": f"{s.reference_nll:.4f}",
            "tokens": f"{s.tokens}",
        }

    def as_dict(self) -> dict:
        quantized = self.variant.quantized
        conditions = {
            "recipe": asdict(self.variant.recipe),
            "weights": quantized.name if quantized else "as they are",
            "phase": self.phase,
            "up to": self.end,
        }
        return conditions | asdict(self.score.summary()) | {"kl_of_weights": self.kl_of_weights}


@dataclass(frozen=True)
class Evaluation:
    """One model on one split: everything that a score depends on but the recipe."""

    model: EvaluatedModel
    split: Split
    buckets: Sequence[Bucket]
    by_position: bool
    backend: str  # what is below ttnn

    def __str__(self) -> str:
        sample = self.buckets[-1].sample
        how = "by position" if self.by_position else "decode"
        each = " in each bucket" if self.by_position else ""
        return (
            f"{self.model.name}, {self.split}, {how}: {sample.tokens} tokens of {len(sample.texts)} texts{each}, "
            f"{sample.source}; below ttnn: {self.backend}"
        )

    def as_dict(self) -> dict:
        sample = self.buckets[-1].sample
        return {
            "model": self.model.name,
            "mesh": self.split.kind.name,
            "tp": self.split.tp,
            "dp": self.split.dp,
            "below ttnn": self.backend,
            "text": sample.source,
            "texts": len(sample.texts),
        }

    def results(self, variants: Sequence[Variant]) -> Iterator[Result]:
        """Each result as soon as it is known. The mesh is open until the iteration ends."""
        readings = self._read(self.model)
        with open_replicas(self.split, queues=command_queues()) as devices:
            for variant in variants:
                weights = [None] * len(self.buckets)
                if self.by_position:
                    in_formats = self._read(variant.quantized or self.model, variant.recipe)
                    weights = [
                        float(score_reading(ours, bucket.sample, reading).kl.mean())
                        for ours, bucket, reading in zip(in_formats, self.buckets, readings)
                    ]
                yield from self._results(variant, devices, readings, weights)

    def _read(self, model: EvaluatedModel, recipe: Optional[Recipe] = None) -> list:
        """Hugging Face's reading of each bucket."""
        hugging_face = HuggingFace(model.directory, recipe)
        return [hugging_face.read(bucket.sample.texts) for bucket in self.buckets]

    def _results(self, variant: Variant, devices: list, readings: list, weights: list) -> Iterator[Result]:
        checkpoint = (variant.quantized or self.model).checkpoint
        texts = self.buckets[-1].sample.texts
        # One context for all buckets: the chunks of attention depend on it.
        with replicas_on(
            devices,
            checkpoint,
            variant.recipe,
            texts=len(texts),
            max_seq_len=len(texts[0]) - 1,
            queues=command_queues(),
        ) as replicas:
            for bucket, reading, kl_of_weights in zip(self.buckets, readings, weights):
                for phase in ("decode", "prefill") if self.by_position else ("decode",):
                    if phase == "prefill":
                        score = score_prefill(replicas[0], bucket.sample, reading)
                    else:
                        score = score_decode(replicas, bucket.sample, reading)
                    yield Result(variant, phase, bucket.end, score, kl_of_weights)


class EvalCommand:
    """The divergence of each recipe from Hugging Face's float32 on held-out text: KL, top-1, top-5, top-100, NLL."""

    EXAMPLES = (
        f"python -m {__package__} eval --recipes bf16,bfp8",
        f"python -m {__package__} eval --model smollm2 --quantized smollm2-4bit",
        f"python -m {__package__} eval --by-position 128,512,1024 --texts 8 --steps 32",
        f"python -m {__package__} eval --model Qwen/Qwen2.5-7B-Instruct --mesh T3K --recipes bfp8,mine.json",
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        models = parser.add_argument_group("model and recipes")
        add_model(models)
        text = "--model after `quantize`: recipes with 4-bit weights run with these weights, too"
        models.add_argument("--quantized", metavar="DIR", help=text)
        add_recipes(models, default=",".join(RECIPES))
        machine = parser.add_argument_group("machine")
        add_machine(machine)
        machine.add_argument("--tp", **number(), help=f"chips of a replica {TP_DEFAULT}")
        add_by_position(add_sample(parser))
        add_out(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> None:
        names = dict.fromkeys(args.recipes.split(","))
        recipes = [recipe_named(name, "--recipes") for name in names]
        by_position = args.by_position is not None
        model = EvaluatedModel.open(args.model)
        for recipe in recipes:
            recipe.check_layers(model.config.num_hidden_layers)
        variants = _variants(recipes, _open_quantized(args.quantized, model))
        split = split_for(model.config, args.mesh, args.tp)
        if by_position:
            buckets = buckets_from(args, model)
        else:
            sample = sample_from(args, model.tokenizer(), model.directory, model.config.context)
            buckets = [Bucket(len(sample.texts[0]) - 1, sample)]
        check_directory("--out", args.out)
        backend = choose_backend(args.backend, split)
        evaluation = Evaluation(model, split, buckets, by_position, backend)
        say(f"{evaluation}\n{LEGEND}{f' {POSITION_LEGEND}' * by_position}\n")
        content = "by-position" if by_position else "decode"
        _report(evaluation, variants, result_file(args.out, model.name, split, content))


def _report(evaluation: Evaluation, variants: Sequence[Variant], file: Path) -> None:
    """Write the JSON after each result, and the table at the end or at an interrupt."""
    results: list[Result] = []
    try:
        for result in evaluation.results(variants):
            results.append(result)
            where = f", {result.phase} up to {result.end}" if evaluation.by_position else ""
            complain(f"{result.variant.name}{where}: KL {result.score.summary().kl_mean:.3g}")
            entries = [each.as_dict() for each in results]
            write_json(file, evaluation.as_dict() | {"results": entries})
    finally:
        if results:
            results.sort(key=lambda result: result.phase)  # stable: by recipe and position
            rows = [result.row() for result in results]
            say(markdown(list(rows[0]), [list(row.values()) for row in rows], aligned=True))
    say(f"\n{file}")


def _open_quantized(name: Optional[str], model: EvaluatedModel) -> Optional[EvaluatedModel]:
    if name is None:
        return None
    quantized = EvaluatedModel.open(name)
    if quantized.config != model.config:
        raise UserError(
            f"--quantized {name}: its config.json is not that of {model.directory}; give what `quantize` made of "
            "--model"
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
