"""The options of the perf commands, and the checks that need neither a model nor a device."""

import argparse
from pathlib import Path

from models.common.errors import UserError
from models.common.machines import check_tp, machine
from models.common.options import add_machine, path
from models.common.output_file import check_output
from models.demos.qwen25_7b.config import MAX_USERS, QWEN25_7B
from models.demos.qwen25_7b.config.recipe_file import add_recipe
from models.demos.qwen25_7b.config.sampling import GREEDY, SamplingParams

PICTURES = (".pdf", ".png", ".svg")
DRAWN = ("bfp8", "performance")
TILE = 32  # rows of the shortest prefill batch
# how the chips sample a modeled step
SAMPLING = {
    "greedy": GREEDY,
    "top-k": SamplingParams(temperature=1.0),
    "penalized": SamplingParams(temperature=1.0, repetition_penalty=1.05),
    "full": SamplingParams(temperature=1.0, top_k=0),
}


def add_split(parser: argparse.ArgumentParser) -> None:
    """Add the machine, and the split of the model over its chips."""
    group = parser.add_argument_group("machine")
    add_machine(group)
    tp = "chips that share a replica (default: all chips of a row)"
    group.add_argument("--tp", type=int, metavar="N", help=tp)
    grid = "a grid of 8x7 cores instead of 8x8"
    group.add_argument("--worker-dispatch", action="store_true", help=grid)


def add_step(
    parser: argparse.ArgumentParser, *, prefill: str = "", position: bool = False
) -> argparse._ArgumentGroup:
    """Add the users and the recipe of a step. Returns the group.

    prefill: also --prefill, with its unit. position: also --position.
    """
    group = parser.add_argument_group("step")
    batch = f"users a replica, 1 to {MAX_USERS} (default: %(default)s)"
    group.add_argument("--batch", type=int, default=MAX_USERS, metavar="N", help=batch)
    add_recipe(group)
    if prefill:
        text = f"a prefill of so many {prefill.lower()} instead of a decode step"
        group.add_argument("--prefill", type=int, metavar=prefill, help=text)
    if position:
        text = "tokens of each user before the computed one (default: %(default)s)"
        group.add_argument("--position", type=int, default=1024, metavar="N", help=text)
    return group


def add_ops(parser: argparse.ArgumentParser) -> None:
    add_split(parser)
    add_step(parser, prefill="TOKENS")


def add_model(parser: argparse.ArgumentParser) -> None:
    add_split(parser)
    links = "ethernet links between neighbors (default: those that collectives may use)"
    step = add_step(parser, prefill="TOKENS", position=True)
    step.add_argument("--links", type=int, metavar="N", help=links)
    sampling = f"how the chips sample a decode step: {', '.join(SAMPLING)} (default: %(default)s)"
    step.add_argument(
        "--sampling", default="greedy", choices=SAMPLING, metavar="NAME", help=sampling
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print seconds by part, as JSON")
    plot = "draw a step of every machine, a row of chips one replica, and print its numbers"
    output.add_argument("--plot", type=path("--plot"), metavar="FILE", help=plot)
    recipes = "comma-separated, of --plot (default: %(default)s)"
    output.add_argument("--recipes", default=",".join(DRAWN), metavar="NAMES", help=recipes)


def add_splits(parser: argparse.ArgumentParser) -> None:
    matmuls = "instead: the plan of every decode matmul, and the padding of its DRAM banks"
    parser.add_argument("--matmuls", action="store_true", help=matmuls)


def add_models(parser: argparse.ArgumentParser) -> None:
    config = "a checkpoint's config.json instead of the published checkpoints"
    parser.add_argument("--config", type=path("--config"), metavar="FILE", help=config)
    add_recipe(parser)


def add_l1(parser: argparse.ArgumentParser) -> None:
    add_split(parser)
    prefix = "chunked prefill: the cache holds as many tokens before the rows"
    add_step(parser, prefill="ROWS").add_argument(
        "--cached-prefix", action="store_true", help=prefix
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=path("--out"), metavar="FILE", help="also draw the map")


def add_speculate(parser: argparse.ArgumentParser) -> None:
    add_split(parser)
    step = add_step(parser, position=True)
    parser.set_defaults(batch=1)
    model = "the checkpoint of the answers: a directory, or smollm2 (default)"
    step.add_argument("--model", default="smollm2", metavar="NAME|DIR", help=model)


def check_split(args: argparse.Namespace) -> None:
    """UserError unless the values are possible. Sets args.tp where it is absent."""
    args.tp = machine(args.mesh).row if args.tp is None else args.tp
    check_tp(args.mesh, args.tp)
    check_range("--batch", args.batch, 1, MAX_USERS, "users a replica")
    args.recipe.check_layers(QWEN25_7B.num_hidden_layers)
    if getattr(args, "prefill", None) is not None:
        check_range("--prefill", args.prefill, 1, QWEN25_7B.context, "tokens")
    if hasattr(args, "position"):
        check_range("--position", args.position, 0, QWEN25_7B.context - 1, "tokens")
    if getattr(args, "links", None) is not None:
        check_range("--links", args.links, 1, 4, "links: neighbors have two, or four in a Galaxy")


def check_l1(args: argparse.Namespace) -> None:
    if args.prefill is not None:
        most = QWEN25_7B.context // 2  # a cached prefix is as long
        check_range("--prefill", args.prefill, TILE, most, "rows")
    elif args.cached_prefix:
        raise UserError("--cached-prefix needs --prefill ROWS")
    check_split(args)
    if args.out is not None:
        check_picture("--out", args.out)


def check_range(option: str, value: int, least: int, most: int, unit: str) -> None:
    if not least <= value <= most:
        raise UserError(f"{option} must be {least} to {most} {unit}, got {value}")


def check_picture(option: str, file: Path) -> None:
    """UserError unless a picture can be written to `file`."""
    if file.suffix.lower() not in PICTURES:
        raise UserError(f"{option} {file}: the name must end in {', '.join(PICTURES)}")
    check_output(option, file)
