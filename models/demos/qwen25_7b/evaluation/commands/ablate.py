"""What each group's and each layer's format costs: the KL of recipes that differ from one in a single place."""

import argparse
from dataclasses import asdict

from models.common.terminal import say
from models.demos.qwen25_7b.config.options import add_recipe
from models.demos.qwen25_7b.evaluation.ablation import FORMATS, Variant, by_cell, by_group, by_layer
from models.demos.qwen25_7b.evaluation.options import (
    add_machine,
    add_model,
    add_out,
    add_sample,
    check_sample,
    split_of,
    words_of,
)  # fmt: skip
from models.demos.qwen25_7b.evaluation.plot import plot_ablation
from models.demos.qwen25_7b.evaluation.report import LEGEND, markdown, result_file, write_json
from models.demos.qwen25_7b.evaluation.run import Run, judge
from models.demos.qwen25_7b.evaluation.score import Summary
from models.demos.qwen25_7b.evaluation.subject import Subject
from models.demos.qwen25_7b.evaluation.texts import sample

HEADER = ("what", "format", "KL mean", "more than the base", "KL max", "top-1", "top-5", "NLL")
BY = ("group", "layer", "cell")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_machine(parser)
    add_recipe(parser, "--base", default="bf16")
    parser.add_argument(
        "--by", default="group,layer", help="group: in all layers, layer: all its weights, cell: a group of a layer"
    )
    parser.add_argument("--formats", default="bfloat8_b,bfloat4_b", help="(default: bfloat8_b,bfloat4_b)")
    add_sample(parser, steps=32)
    add_out(parser)


def run(args: argparse.Namespace) -> None:
    base = args.base
    formats = words_of("--formats", args.formats, FORMATS)
    subject = Subject.open(args.model)
    check_sample(args, subject.config.max_position_embeddings)
    split = split_of(args, subject)
    size = dict(count=args.texts, beginning=args.beginning, steps=args.steps)
    texts = sample(subject.tokenizer(), subject.directory, args.text, **size)
    layers = subject.config.num_hidden_layers
    made = {
        "group": lambda: by_group(base, formats),
        "layer": lambda: by_layer(base, formats, layers),
        "cell": lambda: by_cell(base, formats, layers),
    }
    variants = [variant for by in words_of("--by", args.by, BY) for variant in made[by]()]
    how = Run.on(args.backend, subject, split, texts)
    say(f"{how}; all else as in {base.name}\n{LEGEND}\n")
    picture, data = (result_file(args.out, subject.name, "ablation", kind) for kind in ("png", "json"))
    summaries = []
    for _, score in judge(how, [base, *(variant.recipe for variant in variants)]):
        summaries.append(score.summary())
        of_base, results = summaries[0], list(zip(variants, summaries[1:]))
        contents = {"base": {"recipe": asdict(base), **asdict(of_base)}, "variants": [_entry(*r) for r in results]}
        write_json(data, how.as_dict() | contents)  # after each: the whole may take an hour
    rows = [_row(f"{variant}", variant.format, summary, of_base) for variant, summary in results]
    say(markdown(HEADER, [_row(base.name, "", of_base, of_base), *rows]))
    plot_ablation(picture, f"{how}; all else as in {base.name}", of_base, results)
    say(f"\n{data}, {picture}")


def _row(what: str, format: str, s: Summary, base: Summary) -> tuple[str, ...]:
    more = "" if s is base else f"{s.kl_mean - base.kl_mean:+.2g}"
    agreed = (f"{s.top1:.2%}", f"{s.top5:.2%}")
    return what, format, f"{s.kl_mean:.3g}", more, f"{s.kl_max:.3g}", *agreed, f"{s.nll:.4f}"


def _entry(variant: Variant, summary: Summary) -> dict:
    place = {"group": variant.group, "layer": variant.layer, "format": variant.format}
    return {**place, "recipe": asdict(variant.recipe), **asdict(summary)}
