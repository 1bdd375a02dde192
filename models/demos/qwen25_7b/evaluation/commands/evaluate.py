"""How far each recipe is from Hugging Face's float32 on held-out text: KL, top-1, top-5, NLL."""

import argparse
from dataclasses import asdict

from models.common.terminal import say
from models.demos.qwen25_7b.config import RECIPES, recipe_named
from models.demos.qwen25_7b.config.recipe_file import KNOWN
from models.demos.qwen25_7b.evaluation.options import (
    add_machine,
    add_model,
    add_out,
    add_sample,
    check_against,
    check_sample,
    split_of,
)  # fmt: skip
from models.demos.qwen25_7b.evaluation.plot import plot_recipes
from models.demos.qwen25_7b.evaluation.report import LEGEND, result_file, table, write_json
from models.demos.qwen25_7b.evaluation.run import Run, judge
from models.demos.qwen25_7b.evaluation.subject import Subject
from models.demos.qwen25_7b.evaluation.texts import sample


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_machine(parser)
    parser.add_argument(
        "--recipes", default=",".join(RECIPES), help=f"comma-separated: {KNOWN} (default: {','.join(RECIPES)})"
    )
    parser.add_argument("--against", help="the checkpoint that --model is a rounding of: its Hugging Face model judges")
    add_sample(parser, steps=64)
    parser.add_argument("--prefill", action="store_true", help="judge what prefill expects, not what decode steps do")
    add_out(parser)


def run(args: argparse.Namespace) -> None:
    recipes = [recipe_named(name, "--recipes") for name in dict.fromkeys(args.recipes.split(","))]
    subject = Subject.open(args.model)
    against = Subject.open(args.against) if args.against else None
    check_against(subject, against)
    check_sample(args, subject.config.max_position_embeddings)
    split = split_of(args, subject)
    size = dict(count=args.texts, beginning=args.beginning, steps=args.steps)
    texts = sample(subject.tokenizer(), subject.directory, args.text, **size)
    how = Run.on(args.backend, subject, split, texts, prefill=args.prefill, against=against)
    say(f"{how}\n{LEGEND}\n")
    scores = list(judge(how, recipes))
    results = [(recipe, score.summary()) for recipe, score in scores]
    say(table(results))
    picture, data = (result_file(args.out, subject.name, how.judged, kind) for kind in ("png", "json"))
    contents = [{"recipe": asdict(recipe), **asdict(summary)} for recipe, summary in results]
    write_json(data, how.as_dict() | {"recipes": contents})
    plot_recipes(picture, f"{how}", scores)
    say(f"\n{data}, {picture}")
