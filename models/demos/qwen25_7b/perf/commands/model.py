"""What a decode step should cost, from its captured operations: modelled, not measured.

Each operation takes the largest of its DRAM, compute and ethernet times, and a launch.
"""

import argparse

from models.common.mesh import describe_backend, machine, open_replicas, select_backend
from models.demos.qwen25_7b.config import QWEN25_7B, ParallelPlan
from models.demos.qwen25_7b.perf.options import add_prefill, add_split, check_split


def add_options(parser: argparse.ArgumentParser) -> None:
    add_split(parser)
    add_prefill(parser)
    parser.add_argument("--position", type=int, default=1024, help="tokens behind each user's next one (default: 1024)")


def table(args: argparse.Namespace) -> str:
    check_split(args)
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
    from models.demos.qwen25_7b.tt.collectives import LINKS

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
        links=LINKS,
        users=args.batch,
        position=args.position,
    )
    title = (
        f"Qwen2.5-7B decode, {where}, {args.batch} users a replica at position {args.position}, recipe {args.recipe}; "
        f"operations captured, below ttnn: {below}"
    )
    dp = machine(args.mesh).chips // args.tp
    return report(model, calibration, title=title, users=args.batch, replicas=dp, layers=step.layers)


def _prefill(args: argparse.Namespace, device, where: str, below: str) -> str:
    from models.demos.qwen25_7b.perf.calibration import calibrate
    from models.demos.qwen25_7b.perf.capture import capture_passes
    from models.demos.qwen25_7b.perf.prefill_report import model_prefill, prefill_report
    from models.demos.qwen25_7b.plans.grids import worker_grid
    from models.demos.qwen25_7b.tt.collectives import LINKS

    passes = capture_passes(device, QWEN25_7B, args.recipe, args.prefill)
    model = model_prefill(passes, calibrate().rates, chips=args.tp, grid_cores=worker_grid(device).cores, links=LINKS)
    title = f"Qwen2.5-7B prefill of {args.prefill} tokens, {where}, recipe {args.recipe}; operations captured, below ttnn: {below}"
    return prefill_report(model, title=title, tokens=args.prefill)
