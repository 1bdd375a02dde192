"""What a decode step should cost, from its captured operations: modelled, not measured.

Each operation takes the largest of its DRAM, compute and ethernet times, and a launch.
"""

import argparse
import json
from pathlib import Path

from models.common.errors import UserError
from models.common.mesh import MACHINES, describe_backend, machine, open_replicas, select_backend
from models.demos.qwen25_7b.config import QWEN25_7B, ParallelPlan
from models.demos.qwen25_7b.perf.options import add_prefill, add_split, check_split

DRAWN = ("bfp8", "bfp8-kv8", "performance")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_split(parser)
    add_prefill(parser)
    parser.add_argument(
        "--links", type=int, help="ethernet links of a pair of chips (default: what collectives may use)"
    )
    parser.add_argument("--position", type=int, default=1024, help="tokens behind each user's next one (default: 1024)")

    parser.add_argument("--json", action="store_true", help="print where the time goes in seconds, as JSON")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw a step on every machine by the recipes below"
    )
    parser.add_argument("--recipes", default=",".join(DRAWN), help="of --plot, comma-separated (default: %(default)s)")


def table(args: argparse.Namespace) -> str:
    check_split(args)
    if args.plot:
        return _plot(args)
    backend = select_backend(args.backend, args.mesh)
    below = describe_backend(backend).split(" (")[0]
    where = f"{args.mesh}, tp {args.tp} x dp {machine(args.mesh).chips // args.tp}"
    with open_replicas(args.mesh, args.tp, worker_dispatch=args.worker_dispatch) as devices:
        return (_prefill if args.prefill else _step)(args, devices[0], where, below)


def _step(args: argparse.Namespace, device, where: str, below: str) -> str:
    # These import ttnn, which must see the backend that was just chosen.
    from models.demos.qwen25_7b.perf.calibration import calibrate
    from models.demos.qwen25_7b.perf.capture import capture_step
    from models.demos.qwen25_7b.perf.report import report
    from models.demos.qwen25_7b.perf.step_model import model_step
    from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
    from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
    from models.demos.qwen25_7b.plans.grids import worker_grid
    from models.demos.qwen25_7b.plans.memory_budget import check_fits, memory_budget
    from models.demos.qwen25_7b.plans.step_bytes import step_bytes

    recipe, plan, grid = args.recipe, ParallelPlan.make(QWEN25_7B, args.tp), worker_grid(device)
    rows, context = DecodePlan.make(QWEN25_7B, plan, grid, args.batch).batch, args.position + 1
    check_fits(device, memory_budget(QWEN25_7B, plan, recipe, context, blocks_for(rows, context, BLOCK)))
    step = capture_step(device, QWEN25_7B, recipe, args.batch)
    calibration = calibrate()
    planned = step_bytes(QWEN25_7B, plan, recipe, args.batch, args.position)
    model = model_step(
        step,
        calibration.rates,
        weights=planned.weights - planned.padding,
        chips=args.tp,
        grid_cores=grid.cores,
        links=_links(args, device),
        users=args.batch,
        position=args.position,
    )
    if args.json:
        return json.dumps(model.parts())
    title = (
        f"Qwen2.5-7B decode, {where}, {args.batch} users a replica at position {args.position}, recipe {args.recipe}; "
        f"operations captured, below ttnn: {below}"
    )
    dp = machine(args.mesh).chips // args.tp
    return report(model, calibration, title=title, users=args.batch, replicas=dp, layers=step.layers)


def _plot(args: argparse.Namespace) -> str:
    from models.demos.qwen25_7b.perf.step_plot import draw, modelled_elsewhere

    if not args.plot.parent.is_dir():
        raise UserError(f"--plot {args.plot}: there is no directory {args.plot.parent}")
    what = ["--batch", f"{args.batch}", "--position", f"{args.position}", "--backend", args.backend]
    what += ["--links", f"{args.links}"] if args.links else []
    bars = [
        (f"{mesh}, tp {machine(mesh).chips}", recipe, modelled_elsewhere(["--mesh", mesh, "--recipe", recipe, *what]))
        for mesh in MACHINES
        for recipe in dict.fromkeys(args.recipes.split(","))
    ]
    title = f"Qwen2.5-7B, a decode step of {args.batch} users at position {args.position}, modelled, not measured"
    draw(args.plot, title, bars)
    return f"{args.plot}: {title}"


def _links(args: argparse.Namespace, device) -> int:
    from models.demos.qwen25_7b.tt.collectives import links_between

    return args.links or links_between(device)


def _prefill(args: argparse.Namespace, device, where: str, below: str) -> str:
    from models.demos.qwen25_7b.perf.calibration import calibrate
    from models.demos.qwen25_7b.perf.capture import capture_passes
    from models.demos.qwen25_7b.perf.prefill_report import model_prefill, prefill_report
    from models.demos.qwen25_7b.plans.grids import worker_grid

    passes = capture_passes(device, QWEN25_7B, args.recipe, args.prefill)
    model = model_prefill(
        passes, calibrate().rates, chips=args.tp, grid_cores=worker_grid(device).cores, links=_links(args, device)
    )
    if args.json:
        return json.dumps(model.parts())
    title = f"Qwen2.5-7B prefill of {args.prefill} tokens, {where}, recipe {args.recipe}; operations captured, below ttnn: {below}"
    return prefill_report(model, title=title, tokens=args.prefill)
