"""The operations of a decode layer, from ttnn's own graph capture of one layer at the 7B's dims; nothing is timed."""

import argparse

from models.common.mesh import describe_backend, machine, open_replicas, select_backend
from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.perf.options import add_prefill, add_split, check_split

VOCAB = 4096  # a layer's operations know nothing of the vocabulary: a small one is quick to build


def add_options(parser: argparse.ArgumentParser) -> None:
    add_split(parser)
    add_prefill(parser)


def table(args: argparse.Namespace) -> str:
    check_split(args)
    backend = select_backend(args.backend, args.mesh)

    # These import ttnn, which must see the backend that was just chosen.
    from dataclasses import replace

    from models.demos.qwen25_7b.perf.capture import capture_passes, capture_step
    from models.demos.qwen25_7b.perf.table import op_table

    config = replace(QWEN25_7B, vocab_size=VOCAB, bos_token_id=None, eos_token_ids=())
    with open_replicas(args.mesh, args.tp, worker_dispatch=args.worker_dispatch) as devices:
        grid = devices[0].compute_with_storage_grid_size()
        if args.prefill:
            passes = capture_passes(devices[0], config, args.recipe, args.prefill)
            kinds = {(w.rows, w.continued): step.layer for w, step in passes}
            layers = [
                (f"a pass of {rows} rows{' that goes on from the cache' * continued}", layer)
                for (rows, continued), layer in kinds.items()
            ]
        else:
            layer = capture_step(devices[0], config, args.recipe, args.batch).layer
            layers = [(f"{args.batch} users a replica", layer)]
    dp = machine(args.mesh).chips // args.tp
    below = describe_backend(backend).split(" (")[0]
    return "\n\n".join(
        f"{args.mesh}, tp {args.tp} x dp {dp}, {what}, recipe {args.recipe}, grid {grid.x}x{grid.y}: {len(layer)} operations "
        f"a layer; shapes and bytes of one chip. From ttnn's graph capture, nothing timed; below ttnn: {below}.\n\n"
        f"{op_table(layer)}"
        for what, layer in layers
    )
