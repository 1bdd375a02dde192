"""What a decode step should cost, from its captured operations: modelled, not measured.

Each operation takes the largest of its DRAM, compute and ethernet times, and a launch.
"""

import argparse

from models.common.mesh import describe_backend, machine, open_replicas, select_backend
from models.demos.qwen25_7b.config import QWEN25_7B, RECIPES, ParallelPlan
from models.demos.qwen25_7b.perf.options import add_split, check_split


def add_options(parser: argparse.ArgumentParser) -> None:
    add_split(parser)
    parser.add_argument("--position", type=int, default=1024, help="tokens behind each user's next one (default: 1024)")


def table(args: argparse.Namespace) -> str:
    check_split(args)
    backend = select_backend(args.backend, args.mesh)

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

    recipe, plan = RECIPES[args.recipe], ParallelPlan.make(QWEN25_7B, args.tp)
    with open_replicas(args.mesh, args.tp, worker_dispatch=args.worker_dispatch) as devices:
        grid = worker_grid(devices[0])
        rows = DecodePlan.make(QWEN25_7B, plan, grid, args.batch).batch
        context = args.position + 1
        blocks = blocks_for(rows, context, BLOCK)
        check_fits(devices[0], memory_budget(QWEN25_7B, plan, recipe, context, blocks))
        step = capture_step(devices[0], QWEN25_7B, recipe, args.batch)
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
    below = describe_backend(backend).split(" (")[0]
    dp = machine(args.mesh).chips // args.tp
    title = (
        f"Qwen2.5-7B decode, {args.mesh}, tp {args.tp} x dp {dp}, {args.batch} users a replica at position "
        f"{args.position}, recipe {args.recipe}; operations captured, below ttnn: {below}"
    )
    return report(model, calibration, title=title, users=args.batch, replicas=dp, layers=step.layers)
