"""What lies in a core's L1 while each operation of a layer runs: as planned, and as ttnn's graph capture tells it."""

import argparse
from pathlib import Path

from models.common.errors import UserError
from models.common.mesh import describe_backend, machine, open_replicas, select_backend
from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.perf.commands.ops import VOCAB
from models.demos.qwen25_7b.perf.options import add_split, check_split
from models.demos.qwen25_7b.plans.grids import padded_rows


def add_options(parser: argparse.ArgumentParser) -> None:
    add_split(parser)
    parser.add_argument("--prefill", type=int, metavar="ROWS", help="a pass of so many rows instead of a decode step")
    parser.add_argument("--continued", action="store_true", help="the pass goes on from what the cache holds")
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="draw it, too")


def table(args: argparse.Namespace) -> str:
    check_split(args)
    if args.continued and not args.prefill:
        raise UserError("--continued is of a prefill pass: give its --prefill ROWS")
    if args.prefill and 2 * args.prefill > QWEN25_7B.context:
        raise UserError(f"--prefill takes {QWEN25_7B.context // 2} rows at most here, got {args.prefill}")
    if args.out and not args.out.parent.is_dir():
        raise UserError(f"--out {args.out}: there is no directory {args.out.parent}")
    backend = select_backend(args.backend, args.mesh)

    # These import ttnn, which must see the backend that was just chosen.
    from dataclasses import replace

    from models.demos.qwen25_7b.perf.l1 import picture_pass, picture_step
    from models.demos.qwen25_7b.perf.l1_report import draw, l1_table

    config, recipe = replace(QWEN25_7B, vocab_size=VOCAB, bos_token_id=None, eos_token_ids=()), args.recipe
    with open_replicas(args.mesh, args.tp, worker_dispatch=args.worker_dispatch) as devices:
        grid = devices[0].compute_with_storage_grid_size()
        if args.prefill:
            picture = picture_pass(devices[0], config, recipe, args.prefill, args.continued)
        else:
            picture = picture_step(devices[0], config, recipe, args.batch)
    what = f"a step of {args.batch} users"
    if args.prefill:
        asked = (
            ""
            if picture.work == padded_rows(args.prefill)
            else f" (the longest that fits; {args.prefill} were asked for)"
        )
        what = f"a pass of {picture.work} rows{asked}{' that goes on from the cache' * args.continued}"
    dp = machine(args.mesh).chips // args.tp
    below = describe_backend(backend).split(" (")[0]
    title = f"{args.mesh}, tp {args.tp} x dp {dp}, {what}, recipe {args.recipe}, grid {grid.x}x{grid.y}"
    drawn = f"\n\nDrawn in {args.out}." if args.out else ""
    if args.out:
        draw(args.out, title, picture)
    return f"{title}: bytes of a core's L1; below ttnn: {below}.\n\n{l1_table(picture)}{drawn}"
