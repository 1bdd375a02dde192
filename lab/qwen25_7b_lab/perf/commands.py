"""The commands of python -m qwen25_7b_lab.perf: each has options and returns text.

Modules that import ttnn are imported in the functions: ttnn must see the backend that `opened` chooses.
"""

import argparse
import json
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Iterator

from models.demos.qwen25_7b.cli.options import add_machine, add_recipe, path
from models.demos.qwen25_7b.config import QWEN25_7B, RECIPES, DecoderConfig
from models.demos.qwen25_7b.config.sampling import GREEDY, SamplingParams
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import FileError, read_json
from models.demos.qwen25_7b.plans.machines import Split, machine
from models.demos.qwen25_7b.plans.model_table import ModelTable
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS, TILE, ParallelPlan
from models.demos.qwen25_7b.tt.mesh import backend_name, open_replicas, select_backend

from ..options import Command, host_alone
from .plan_tables import hops_table, splits_table
from .published_models import FAMILIES, QWEN25, SIZES, context_contract, models_table

DIMS = SIZES | FAMILIES
# how the chips sample a modeled step
SAMPLING = {
    "greedy": GREEDY,
    "top-k": SamplingParams(temperature=1.0),
    "penalized": SamplingParams(temperature=1.0, repetition_penalty=1.05),
    "full": SamplingParams(temperature=1.0, top_k=0),
}


def add_step(parser: argparse.ArgumentParser, prefill: str) -> argparse._ArgumentGroup:
    """Add the machine, its split, and what runs on it. prefill: the unit of --prefill. Returns the last group."""
    group = parser.add_argument_group("machine")
    add_machine(group)
    tp = "chips that share a replica (default: all chips of a row)"
    group.add_argument("--tp", type=int, metavar="N", help=tp)
    group.add_argument("--worker-dispatch", action="store_true", help="a grid of 8x7 cores instead of 8x8")
    group = parser.add_argument_group("step")
    batch = f"users a replica, 1 to {MAX_USERS} (default: %(default)s)"
    group.add_argument("--batch", type=int, default=MAX_USERS, metavar="N", help=batch)
    add_recipe(group)
    dims = f"the model's dims: {', '.join(DIMS)} (default: %(default)s)"
    group.add_argument("--dims", default="7B", choices=DIMS, metavar="MODEL", help=dims)
    text = f"a prefill of so many {prefill.lower()} instead of a decode step"
    group.add_argument("--prefill", type=int, metavar=prefill, help=text)
    return group


def check_step(args: argparse.Namespace) -> None:
    """UserError unless the values are possible. Sets args.tp where it is absent."""
    args.tp = Split.of(args.mesh, args.tp).tp
    check_range("--batch", args.batch, 1, MAX_USERS, "users a replica")
    config = DIMS[args.dims]
    args.recipe.check_layers(config.num_hidden_layers)
    if args.prefill is not None:
        check_range("--prefill", args.prefill, 1, config.context, "tokens")


def check_range(option: str, value: int, least: int, most: int, unit: str) -> None:
    if not least <= value <= most:
        raise UserError(f"{option} must be {least} to {most} {unit}, got {value}")


@contextmanager
def opened(args: argparse.Namespace) -> Iterator:
    """The mesh of the machine's first replica. A golden mesh computes no values: no table has any."""
    backend = select_backend(args.backend, args.mesh)
    with open_replicas(Split.of(args.mesh, args.tp), worker_dispatch=args.worker_dispatch) as devices:
        with host_alone(backend):
            yield devices[0]


def split_of(args: argparse.Namespace) -> str:
    """For a title."""
    below = backend_name(select_backend(args.backend, args.mesh))
    return f"{Split.of(args.mesh, args.tp)}, recipe {args.recipe}, below ttnn: {below}"


def small_vocabulary(config: DecoderConfig) -> DecoderConfig:
    """The model with a small vocabulary, which is quick to build. A layer's operations do not depend on it."""
    return replace(config, vocab_size=4096, bos_token_id=None, eos_token_ids=())


def title_of(args: argparse.Namespace) -> str:
    return args.dims if args.dims in FAMILIES else f"Qwen2.5-{args.dims}"


def ops(args: argparse.Namespace) -> str:
    """The device operations of a layer, from ttnn's graph capture. Nothing is timed."""
    check_step(args)
    with opened(args) as device:
        from models.demos.qwen25_7b.tt.placement import chip_of

        from .capture import capture_prefill, capture_step
        from .report import op_table

        config, plans = small_vocabulary(DIMS[args.dims]), {}
        if args.prefill:
            batches = capture_prefill(device, config, args.recipe, args.prefill)
            prefix = " after a cached prefix"
            layers = {f"prefill of {b.rows} rows{prefix * b.chunked}": step.layer for b, step in batches}
        else:
            step = capture_step(device, config, args.recipe, args.batch)
            layers = {f"{args.batch} users a replica": step.layer}
            table = ModelTable(config, ParallelPlan.make(config, args.tp), args.recipe, chip_of(device))
            plans = table.decode_matmuls
    return "\n\n".join(
        f"{split_of(args)}, {what}: {len(layer)} operations a layer; shapes and bytes of one chip."
        f"\n\n{op_table(layer, plans.values())}"
        for what, layer in layers.items()
    )


def read_measured(path: Path) -> dict[str, float]:
    """Seconds of a launch by the key of its device operation, of a bring-up's report.json, at the 7B's dims on silicon.
    Attention is left out: its time is of one position.

    UserError: no such report, or one of small dims or of a golden mesh.
    """
    try:
        report = read_json(path)
        rows, machine, size = report["ops"], report["machine"], report["size"]
    except (FileError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no report.json of make bringup: {error}") from None
    below = next(fact["found"] for fact in machine if fact["what"] == "below ttnn")
    if (size, below) != ("7b", "silicon"):
        raise UserError(
            f"{path} has {size} dims, below ttnn {below}: times that say something are of 7b dims on silicon"
        )
    timed = (row for row in rows if row["device_op"] and (row["us"] or 0) > 0 and "setting" not in row)
    return {row["device_op"]: 1e-6 * row["us"] for row in timed if "attention" not in row["op"]}


def model_options(parser: argparse.ArgumentParser) -> None:
    step = add_step(parser, "TOKENS")
    position = "tokens of each user before the computed one (default: %(default)s)"
    step.add_argument("--position", type=int, default=1024, metavar="N", help=position)
    links = "ethernet links between neighbors (default: those that collectives may use)"
    step.add_argument("--links", type=int, metavar="N", help=links)
    measured = "report.json of make bringup: its operations count as measured, in a decode step"
    step.add_argument("--measured", type=path, metavar="FILE", help=measured)
    sampling = "how the chips sample a decode step (default: %(default)s)"
    step.add_argument("--sampling", default="greedy", choices=SAMPLING, help=sampling)


def model(args: argparse.Namespace) -> str:
    """The modeled time of a decode step or a prompt, operation by operation. Modeled, not measured."""
    check_step(args)
    check_range("--position", args.position, 0, DIMS[args.dims].context - 1, "tokens")
    if args.links is not None:
        check_range("--links", args.links, 1, 4, "links: neighbors have two, or four in a Galaxy")
    if args.measured and args.prefill:
        raise UserError("--measured is of a decode step: leave out --prefill")
    measured = read_measured(args.measured) if args.measured else {}
    with opened(args) as device:
        from models.demos.qwen25_7b.tt.placement import links_between

        from .report import prefill_report, step_report
        from .step_model import model_decode, model_prompt

        links = args.links or links_between(device)
        if args.prefill:
            prefill = model_prompt(device, DIMS[args.dims], args.recipe, args.prefill, links)
            title = f"{title_of(args)} prefill of {args.prefill} tokens, {split_of(args)}"
            return prefill_report(prefill, title=title, tokens=args.prefill)
        step, layers = model_decode(
            device,
            DIMS[args.dims],
            args.recipe,
            users=args.batch,
            position=args.position,
            links=links,
            sampling=SAMPLING[args.sampling],
            measured=measured,
        )
    measured = f", measured operations of {args.measured}" if args.measured else ""
    title = (
        f"{title_of(args)} decode{measured}, {args.batch} users a replica at position {args.position}, "
        f"{args.sampling} sampling, {split_of(args)}"
    )
    return step_report(step, title=title, users=args.batch, replicas=Split.of(args.mesh, args.tp).dp, layers=layers)


def splits(args: argparse.Namespace) -> str:
    """DRAM of a chip, and bytes of a step, for every split of every machine. Counts from the plans."""
    return splits_table()


def hops_options(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument("--dims", default="7B", choices=DIMS, metavar="MODEL", help="(default: 7B)")


def hops(args: argparse.Namespace) -> str:
    """The chain of multicasts of each decode matmul, for every split. Counts from the plans."""
    return hops_table(DIMS[args.dims], args.recipe, machine("N150").chip)


def models_options(parser: argparse.ArgumentParser) -> None:
    config = "a checkpoint's config.json instead of the family's sizes"
    parser.add_argument("--config", type=path, metavar="FILE", help=config)
    add_recipe(parser)


def models(args: argparse.Namespace) -> str:
    """The splits that hold a checkpoint of each size of the family, on every machine. Counts from the plans."""
    one = args.config and {f"{args.config}": DecoderConfig.from_json(args.config)}
    return models_table(one or QWEN25, args.recipe)


def context_options(parser: argparse.ArgumentParser) -> None:
    config = "a checkpoint's config.json (default: Qwen2.5-7B's)"
    parser.add_argument("--config", type=path, metavar="FILE", help=config)


def context(args: argparse.Namespace) -> str:
    """A context contract as JSON: the tokens that one user gets on each machine, or the bytes that prevent them."""
    config = DecoderConfig.from_json(args.config) if args.config else QWEN25_7B
    return json.dumps(context_contract(config, RECIPES), indent=1)


def l1_options(parser: argparse.ArgumentParser) -> None:
    prefix = "chunked prefill: the cache holds as many tokens before the rows"
    add_step(parser, "ROWS").add_argument("--cached-prefix", action="store_true", help=prefix)


def l1(args: argparse.Namespace) -> str:
    """The L1 map of a core while each operation of a layer runs: planned, and from ttnn's graph capture."""
    if args.prefill is not None:
        most = QWEN25_7B.context // 2  # a cached prefix is as long
        check_range("--prefill", args.prefill, TILE, most, "rows")
    elif args.cached_prefix:
        raise UserError("--cached-prefix needs --prefill ROWS")
    check_step(args)
    with opened(args) as device:
        from .l1_map import l1_table, map_prefill, map_step

        model = device, small_vocabulary(DIMS[args.dims]), args.recipe
        if args.prefill:
            mapped = map_prefill(*model, args.prefill, args.cached_prefix)
        else:
            mapped = map_step(*model, args.batch)
    return f"{split_of(args)}, {mapped.title}: bytes of a core's L1.\n\n{l1_table(mapped)}"


COMMANDS = {
    "model": Command(model, model_options, ("--mesh T3K --prefill 1024", "--recipe performance --dims Qwen3-8B")),
    "ops": Command(
        ops, partial(add_step, prefill="TOKENS"), ("--mesh N300", "--mesh T3K --prefill 1024 --recipe performance")
    ),
    "hops": Command(hops, hops_options, ("", "--dims Qwen3-8B --recipe performance")),
    "splits": Command(splits, lambda parser: None, ("", "> splits.md")),
    "models": Command(models, models_options, ("", "--config config.json --recipe performance")),
    "context": Command(context, context_options, ("> context_contract.json", "--config config.json")),
    "l1": Command(l1, l1_options, ("--mesh N300", "--prefill 512 --cached-prefix")),
}
