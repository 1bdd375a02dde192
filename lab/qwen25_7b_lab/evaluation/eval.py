"""The command `eval`: the divergence of recipes from Hugging Face's float32, over a sample or by position."""

import argparse
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Iterator, Optional, Sequence

from models.demos.qwen25_7b.cli.options import add_machine, number, path
from models.demos.qwen25_7b.cli.terminal import complain, say
from models.demos.qwen25_7b.config import BFP8, RECIPES, Recipe
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import write_json
from models.demos.qwen25_7b.plans.blocks import BLOCK
from models.demos.qwen25_7b.plans.grids import ceil_div
from models.demos.qwen25_7b.plans.machines import Split
from models.demos.qwen25_7b.tt.mesh import command_queues, open_replicas

from ..options import Command, add_recipes, check_result, markdown
from .divergence import score_along, score_decode, score_prefill, score_reading
from .large import HALF, digest, earlier_results, minutes, read_once, words, write_refpt
from .model import TP_DEFAULT, EvaluatedModel, add_model, choose_backend, replicas_on, split_for
from .reference import WHOLE, HuggingFace, parameters
from .texts import Sample, add_samples, buckets_from, sample

OUT = Path("generated/evaluation")  # git ignores it
FOUR_BITS = "bfloat4_b"
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
    parser.add_argument("--out", type=path, default=OUT, metavar="DIR", help=text)


def result_file(out: Path, model: str, split: Split, content: str) -> Path:
    """The path of a result. A model's name may have dots, so the suffix is no with_suffix."""
    return out / f"{model.replace(' ', '-')}-{split.kind.name}-tp{split.tp}-{content}.json"


@dataclass(frozen=True)
class Evaluation:
    """One model on one split: everything that a score depends on but the recipe."""

    model: EvaluatedModel
    quantized: Optional[EvaluatedModel]  # the model after `quantize`
    split: Split
    buckets: Sequence[Sample]
    by_position: bool
    backend: str  # what is below ttnn
    halves: Optional[Sample] = None  # of a large model: a text of 1024 tokens, of which the second half is scored
    reading: Optional[Path] = None  # a file of Hugging Face's reading, for the next start

    def __str__(self) -> str:
        sample = self.buckets[-1]
        how, each = ("by position", " in each bucket") if self.by_position else ("decode", "")
        return (
            f"{self.model.name}, {self.split}, {how}: {sample.tokens} tokens of {len(sample.texts)} texts{each}, "
            f"{sample.source}; below ttnn: {self.backend}"
        )

    def as_dict(self) -> dict:
        sample = self.buckets[-1]
        return {
            "model": self.model.name,
            "mesh": self.split.kind.name,
            "tp": self.split.tp,
            "dp": self.split.dp,
            "below ttnn": self.backend,
            "text": sample.source,
            "texts": len(sample.texts),
            **({"digest": digest(self.model.checkpoint, [*self.buckets, self.halves])} if self.halves else {}),
        }

    def results(self, recipes: Sequence[Recipe]) -> Iterator[dict]:
        """The score of each recipe in each bucket as soon as it is known. The mesh is open until the iteration ends.

        Recipes with 4 bits have a second score, with the quantized weights.
        """
        if self.halves:
            readings = read_once(self.reading, self.model, [*self.buckets, self.halves])
            write_refpt(self.reading.with_suffix(".refpt"), self.halves, readings[-1])
        else:
            readings = self._read(self.model)
        if not recipes:
            return
        with open_replicas(self.split, queues=command_queues()) as devices:
            for recipe in recipes:
                yield from self._results(recipe, self.model, "as they are", devices, readings)
                if self.quantized and _has_four_bits(recipe):
                    yield from self._results(recipe, self.quantized, self.quantized.name, devices, readings)

    @property
    def users(self) -> int:
        """Sequences at a time. A slot steps through a block of the second half, after the one that is prefilled."""
        texts = len(self.buckets[-1].texts)
        return max(texts, 1 + ceil_div(HALF, BLOCK)) if self.halves else texts

    @property
    def longest(self) -> int:
        """One context for all buckets: the chunks of attention depend on it."""
        return self.halves.end if self.halves else self.buckets[-1].end

    def _read(self, model: EvaluatedModel, recipe: Optional[Recipe] = None) -> list:
        """Hugging Face's reading of each bucket."""
        hugging_face = HuggingFace(model.directory, recipe)
        return [hugging_face.read(bucket.texts) for bucket in self.buckets]

    def _results(
        self, recipe: Recipe, model: EvaluatedModel, weights: str, devices: list, readings: list
    ) -> Iterator[dict]:
        in_formats = self._read(model, recipe) if self.by_position else readings
        sizes = dict(texts=self.users, max_seq_len=self.longest)
        with replicas_on(devices, model.checkpoint, recipe, **sizes) as replicas:
            for bucket, reading, rounded in zip(self.buckets, readings, in_formats):
                scores = {"decode": score_decode(replicas, bucket, reading)}
                kl_of_weights = None
                if self.by_position:
                    scores["prefill"] = score_prefill(replicas[0], bucket, reading)
                    kl_of_weights = float(score_reading(rounded, bucket, reading).kl.mean())
                if self.halves:
                    scores["decode, second half"] = score_along(replicas[0], self.halves, readings[-1])
                for phase, score in scores.items():
                    end = self.halves.end if phase.endswith("half") else bucket.end
                    conditions = {"recipe": asdict(recipe), "weights": weights, "phase": phase, "up to": end}
                    yield conditions | score.summary() | {"kl_of_weights": kl_of_weights}


def _row(result: dict) -> dict[str, str]:
    """The cells of a table by their column."""
    kl_of_weights = result["kl_of_weights"]
    return {
        "recipe": _name(result),
        "phase": result["phase"],
        "up to": f"{result['up to']}",
        "KL mean": f"{result['kl_mean']:.3g}",
        "std. error": f"{result['kl_error']:.1g}",
        **({} if kl_of_weights is None else {"KL of weights": f"{kl_of_weights:.3g}"}),
        "top-1": f"{result['top1']:.2%}",
        "top-5": f"{result['top5']:.2%}",
        "top-100": f"{result['top100']:.2%}",
        "NLL": f"{result['nll']:.4f}",
        "NLL of Hugging Face": f"{result['reference_nll']:.4f}",
        "tokens": f"{result['tokens']}",
    }


def _name(result: dict) -> str:
    return result["recipe"]["name"] + ("" if result["weights"] == "as they are" else ", quantized")


def add_options(parser: argparse.ArgumentParser) -> None:
    models = parser.add_argument_group("model and recipes")
    add_model(models)
    text = "--model after `quantize`: recipes with 4-bit weights run with these weights, too"
    models.add_argument("--quantized", type=path, metavar="DIR", help=text)
    add_recipes(models, default=None, shown=f"all; {BFP8} for a model of more than 1.1 billion parameters")
    machine = parser.add_argument_group("machine")
    add_machine(machine)
    machine.add_argument("--tp", **number(), help=f"chips of a replica {TP_DEFAULT}")
    add_samples(parser)
    add_out(parser)


def evaluate(args: argparse.Namespace) -> None:
    """The divergence of each recipe from Hugging Face's float32 on held-out text: KL, top-1, top-5, top-100, NLL."""
    by_position = args.by_position is not None
    model = EvaluatedModel.open(args.model)
    large = parameters(model.checkpoint) > WHOLE and not by_position
    recipes = args.recipes or ([BFP8] if large else list(RECIPES.values()))
    for recipe in recipes:
        recipe.check_layers(model.config.num_hidden_layers)
    quantized = args.quantized and EvaluatedModel.open(args.quantized)
    if quantized and quantized.config != model.config:
        raise UserError(
            f"--quantized {args.quantized}: its config.json is not that of {model.directory}; give what `quantize` "
            "made of --model"
        )
    split = split_for(model.config, args.mesh, args.tp)
    tokenizer = model.tokenizer()
    buckets = buckets_from(args, tokenizer, model.directory, model.config.context)
    halves = reading = None
    if large:
        halves = sample(tokenizer, model.directory, args.text, count=1, prompt_length=HALF, steps=HALF - 1)
        reading = args.out / f"{model.name}-reading.pt"
    file = result_file(args.out, model.name, split, "by-position" if by_position else "decode")
    check_result("--out", file, "model", "results")
    evaluation = Evaluation(model, quantized, split, buckets, by_position, "", halves, reading)
    backend = choose_backend(
        args.backend, split, model.config, recipes, texts=evaluation.users, max_seq_len=evaluation.longest
    )
    evaluation = replace(evaluation, backend=backend)
    say(f"{evaluation}\n{LEGEND}{f' {POSITION_LEGEND}' * by_position}\n")
    results: list[dict] = earlier_results(file, evaluation.as_dict()) if large else []
    done = [json.dumps(result["recipe"]) for result in results]
    left = [recipe for recipe in recipes if json.dumps(asdict(recipe)) not in done]
    if large:
        cores = len(os.sched_getaffinity(0))
        time = minutes(model.checkpoint, buckets[-1], len(left), cores)
        say(f"about {time} min on {cores} idle cores; the same command goes on after an interruption\n")
    try:
        for result in evaluation.results(left):
            results.append(result)
            where = f", {result['phase']} up to {result['up to']}" if by_position else ""
            complain(f"{_name(result)}{where}: KL {result['kl_mean']:.3g}")
            write_json(file, evaluation.as_dict() | {"results": results})
    finally:
        if results:
            rows = [_row(result) for result in sorted(results, key=lambda result: result["phase"])]
            say(markdown(list(rows[0]), [list(row.values()) for row in rows], aligned=True))
    say(f"\n{file}")
    if large:
        title = f"{model.name}, {split}, below ttnn: {backend}, {buckets[-1].source}"
        say(f"\n{words(title, results, reading.with_suffix('.refpt'))}")


def _has_four_bits(recipe: Recipe) -> bool:
    parts = [recipe, *(of_layer for _, of_layer in recipe.different)]
    weights = ("attention", "mlp_in", "mlp_out")
    return any(getattr(part, group).format == FOUR_BITS for part in parts for group in weights)


EVAL = Command(
    evaluate,
    add_options,
    (
        "--recipes bf16,bfp8",
        "--model smollm2 --quantized smollm2-4bit",
        "--by-position 128,512,1024 --texts 8 --steps 32",
        "--model Qwen/Qwen2.5-7B-Instruct --mesh T3K --recipes bfp8,mine.json",
    ),
)
