"""The commands of python -m models.demos.qwen25_7b.perf: each has options and returns text.

Modules that import ttnn are imported in the functions: ttnn must see the backend that `select` chooses.
"""

import argparse
import json
from contextlib import contextmanager
from dataclasses import replace
from typing import Iterator

from models.common.machines import machine
from models.common.mesh import describe_backend, host_alone, open_replicas, select_backend
from models.common.options import add_machine
from models.common.terminal import say
from models.demos.qwen25_7b.config import QWEN25_7B, QwenConfig, recipe_named
from models.demos.qwen25_7b.perf import options

PERF = "python -m models.demos.qwen25_7b.perf"


def select(args: argparse.Namespace) -> str:
    """Choose args.backend before ttnn is imported. Returns its description."""
    args.backend = select_backend(args.backend, args.mesh)
    return describe_backend(args.backend).split(" (")[0]


@contextmanager
def opened(args: argparse.Namespace) -> Iterator:
    """The mesh of the machine's first replica. A golden mesh computes no values: no table has any."""
    with open_replicas(args.mesh, args.tp, worker_dispatch=args.worker_dispatch) as devices:
        with host_alone(args.backend):
            yield devices[0]


def split_of(args: argparse.Namespace) -> str:
    return f"{args.mesh}, tp {args.tp} x dp {machine(args.mesh).chips // args.tp}"


def small_vocabulary() -> QwenConfig:
    """The 7B with a small vocabulary, which is quick to build. A layer's operations do not depend on it."""
    return replace(QWEN25_7B, vocab_size=4096, bos_token_id=None, eos_token_ids=())


def links(args: argparse.Namespace, device) -> int:
    from models.demos.qwen25_7b.tt.placement import links_between

    return getattr(args, "links", None) or links_between(device)


class Ops:
    """The device operations of a layer at the 7B's dims, from ttnn's graph capture. Nothing is timed."""

    EXAMPLES = (
        f"{PERF} ops --mesh N300",
        f"{PERF} ops --mesh T3K --prefill 1024 --recipe performance",
    )

    add_options = staticmethod(options.add_ops)

    @staticmethod
    def table(args: argparse.Namespace) -> str:
        options.check_split(args)
        below = select(args)
        from models.demos.qwen25_7b.perf.capture import capture_prefill, capture_step
        from models.demos.qwen25_7b.perf.report import op_table

        with opened(args) as device:
            grid = device.compute_with_storage_grid_size()
            if args.prefill:
                batches = capture_prefill(device, small_vocabulary(), args.recipe, args.prefill)
                layers = {batch.label: batch.step.layer for batch in batches}
            else:
                step = capture_step(device, small_vocabulary(), args.recipe, args.batch)
                layers = {f"{args.batch} users a replica": step.layer}
        return "\n\n".join(
            f"{split_of(args)}, {what}, recipe {args.recipe}, grid {grid.x}x{grid.y}: {len(layer)} "
            f"operations a layer; shapes and bytes of one chip; below ttnn: {below}.\n\n{op_table(layer)}"
            for what, layer in layers.items()
        )


class Model:
    """The modeled time of a decode step or a prompt, operation by operation. Modeled, not measured."""

    EXAMPLES = (f"{PERF} model --mesh T3K --prefill 1024", f"{PERF} model --plot step.png")

    add_options = staticmethod(options.add_model)

    @staticmethod
    def table(args: argparse.Namespace) -> str:
        options.check_split(args)
        if args.plot:
            return plot(args)
        below = select(args)
        with opened(args) as device:
            return (prefill_text if args.prefill else decode_text)(args, device, below)


def decode_text(args: argparse.Namespace, device, below: str) -> str:
    from golden_mesh.perf.calibration import calibrate

    from models.demos.qwen25_7b.perf.report import step_report
    from models.demos.qwen25_7b.perf.step_model import model_decode

    how = dict(users=args.batch, position=args.position, links=links(args, device))
    how["sampling"] = options.SAMPLING[args.sampling]
    model, layers = model_decode(device, args.recipe, **how)
    if args.json:
        return json.dumps(model.parts())
    title = (
        f"Qwen2.5-7B decode, {split_of(args)}, {args.batch} users a replica at position "
        f"{args.position}, recipe {args.recipe}, {args.sampling} sampling; operations captured, below ttnn: {below}"
    )
    how = dict(users=args.batch, replicas=machine(args.mesh).chips // args.tp, layers=layers)
    return step_report(model, calibrate(), title=title, **how)


def prefill_text(args: argparse.Namespace, device, below: str) -> str:
    from models.demos.qwen25_7b.perf.report import prefill_report
    from models.demos.qwen25_7b.perf.step_model import model_prompt

    model = model_prompt(device, args.recipe, args.prefill, links(args, device))
    if args.json:
        return json.dumps(model.parts())
    title = (
        f"Qwen2.5-7B prefill of {args.prefill} tokens, {split_of(args)}, recipe {args.recipe}; "
        f"operations captured, below ttnn: {below}"
    )
    return prefill_report(model, title=title, tokens=args.prefill)


def plot(args: argparse.Namespace) -> str:
    """Draw the steps of all machines. The numbers are printed first, in case the disk fails."""
    options.check_picture("--plot", args.plot)
    recipes = list(dict.fromkeys(args.recipes.split(",")))
    for name in recipes:
        recipe_named(name, "--recipes").check_layers(QWEN25_7B.num_hidden_layers)
    how = ["--batch", f"{args.batch}", "--position", f"{args.position}", "--backend", args.backend]
    how += ["--links", f"{args.links}"] if args.links else []
    from models.demos.qwen25_7b.perf.report import bar_table, draw_bars, machine_bars

    bars = machine_bars(recipes, how)
    what = f"a decode step of {args.batch} users at position {args.position}"
    title = f"Qwen2.5-7B, {what}: modeled, not measured"
    say(f"{title}; ms by part\n\n{bar_table(bars)}\n")
    draw_bars(args.plot, title, bars)
    return f"Drawn in {args.plot}."


class Splits:
    """DRAM of a chip, and bytes of a step, for every split of every machine. Counts from the plans."""

    EXAMPLES = (f"{PERF} splits", f"{PERF} splits --matmuls")

    add_options = staticmethod(options.add_splits)

    @staticmethod
    def table(args: argparse.Namespace) -> str:
        from models.demos.qwen25_7b.perf.plan_tables import matmuls_table, splits_table

        return matmuls_table() if args.matmuls else splits_table()


class Models:
    """The splits that hold each published checkpoint of the family, on every machine. Counts from the plans."""

    EXAMPLES = (f"{PERF} models", f"{PERF} models --config config.json --recipe performance")

    add_options = staticmethod(options.add_models)

    @staticmethod
    def table(args: argparse.Namespace) -> str:
        from models.demos.qwen25_7b.perf.published_models import models_table, published_models

        one = args.config and {f"{args.config}": QwenConfig.from_json(args.config)}
        return models_table(one or published_models(), args.recipe)


class Packing:
    """Prefill batches of several prompts, one prompt after the other and packed. Counted; times modeled."""

    EXAMPLES = (f"{PERF} packing", f"{PERF} packing --recipe performance")

    add_options = staticmethod(options.add_recipe)

    @staticmethod
    def table(args: argparse.Namespace) -> str:
        from models.demos.qwen25_7b.perf.packing import packing_table

        return packing_table(args.recipe)


class L1:
    """The L1 map of a core while each operation of a layer runs: planned, and from ttnn's graph capture."""

    EXAMPLES = (
        f"{PERF} l1 --mesh N300",
        f"{PERF} l1 --prefill 512 --cached-prefix --out l1.png",
    )

    add_options = staticmethod(options.add_l1)

    @staticmethod
    def table(args: argparse.Namespace) -> str:
        options.check_l1(args)
        below = select(args)
        from models.demos.qwen25_7b.perf import l1_map

        with opened(args) as device:
            if args.prefill:
                how = (args.prefill, args.cached_prefix)
                mapped = l1_map.map_prefill(device, small_vocabulary(), args.recipe, *how)
            else:
                mapped = l1_map.map_step(device, small_vocabulary(), args.recipe, args.batch)
        title = f"{split_of(args)}, {mapped.title}, recipe {args.recipe}"
        text = f"{title}: bytes of a core's L1; below ttnn: {below}.\n\n{l1_map.l1_table(mapped)}"
        if args.out:
            say(f"{text}\n")
            l1_map.draw(args.out, title, mapped)
            return f"Drawn in {args.out}."
        return text


class Host:
    """Host time of a decode step: 28 layers, 32 users; and of a step of vLLM, by kind of request.

    On a golden mesh: Python and ttnn without a device.
    """

    EXAMPLES = (f"{PERF} host --mesh N300", f"{PERF} host --mesh T3K --backend golden")

    add_options = staticmethod(add_machine)

    @staticmethod
    def table(args: argparse.Namespace) -> str:
        backend = select_backend(args.backend, args.mesh)
        from models.demos.qwen25_7b.perf.host_time import host_table
        from models.demos.qwen25_7b.perf.serving_time import serving_table

        kind = machine(args.mesh)
        return f"{host_table(kind, backend)}\n\n{serving_table(kind, backend)}"


class Speculate:
    """Gain of several tokens a step: steps counted on a checkpoint's answers, times modeled, not measured."""

    EXAMPLES = (
        f"{PERF} speculate --mesh N300",
        f"{PERF} speculate --model smollm2 --position 8192",
    )

    add_options = staticmethod(options.add_speculate)

    @staticmethod
    def table(args: argparse.Namespace) -> str:
        options.check_split(args)
        below = select(args)
        from models.demos.qwen25_7b.perf import speculation

        with opened(args) as device:
            seconds = speculation.step_seconds(
                device, args.recipe, args.batch, args.position, links(args, device)
            )
        title = (
            f"Qwen2.5-7B decode, {split_of(args)}, {args.batch} users a replica at position {args.position}, "
            f"recipe {args.recipe}; operations captured, below ttnn: {below}; answers of {args.model}. "
            "Modeled, not measured."
        )
        return f"{title}\n\n{speculation.tables(seconds, args.model)}"


COMMANDS = {
    "model": Model,
    "ops": Ops,
    "splits": Splits,
    "models": Models,
    "packing": Packing,
    "l1": L1,
    "host": Host,
    "speculate": Speculate,
}
