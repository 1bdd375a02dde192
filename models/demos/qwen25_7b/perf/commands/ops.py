"""The operations of a decode layer, from ttnn's own graph capture of one layer at the 7B's dims; nothing is timed."""

import argparse

from models.common.mesh import describe_backend, machine, open_replicas, select_backend
from models.demos.qwen25_7b.config import QWEN25_7B, RECIPES
from models.demos.qwen25_7b.perf.options import add_split, check_split

VOCAB = 4096  # a layer's operations know nothing of the vocabulary: a small one is quick to build


def add_options(parser: argparse.ArgumentParser) -> None:
    add_split(parser)


def table(args: argparse.Namespace) -> str:
    check_split(args)
    backend = select_backend(args.backend, args.mesh)

    # These import ttnn, which must see the backend that was just chosen.
    from dataclasses import replace

    from models.demos.qwen25_7b.perf.capture import capture_step
    from models.demos.qwen25_7b.perf.table import op_table

    config = replace(QWEN25_7B, vocab_size=VOCAB, bos_token_id=None, eos_token_ids=())
    with open_replicas(args.mesh, args.tp, worker_dispatch=args.worker_dispatch) as devices:
        grid = devices[0].compute_with_storage_grid_size()
        layer = capture_step(devices[0], config, RECIPES[args.recipe], args.batch).layer
    dp = machine(args.mesh).chips // args.tp
    return (
        f"{args.mesh}, tp {args.tp} x dp {dp}, {args.batch} users a replica, recipe {args.recipe}, "
        f"grid {grid.x}x{grid.y}: {len(layer)} operations a layer; shapes and bytes of one chip. From ttnn's graph "
        f"capture, nothing timed; below ttnn: {describe_backend(backend).split(' (')[0]}.\n\n{op_table(layer)}"
    )
