"""One measurement in a process of its own, said as JSON; bench_load starts it."""

import argparse

from models.common.command import quiet_libraries, run, status_of
from models.common.terminal import say


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _measure(_parse(argv)))


def _measure(args: argparse.Namespace) -> None:
    quiet_libraries()
    import json
    from contextlib import nullcontext
    from dataclasses import asdict

    from models.common.mesh import chips_in_host_memory, host_alone, open_replicas, select_backend
    from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, recipe_named
    from models.demos.qwen25_7b.loading.bench.floors import packing
    from models.demos.qwen25_7b.loading.bench.process import Watch
    from models.demos.qwen25_7b.loading.opened import open_checkpoint

    backend = select_backend(args.backend, args.mesh)
    from models.demos.qwen25_7b.loading.load import load_model

    recipe = recipe_named(args.recipe)
    with open_replicas(args.mesh, args.tp) as devices, nullcontext() if args.values else host_alone(backend):
        if args.packing:
            config = QwenConfig.from_json(args.model / "config.json")
            say(json.dumps(packing(config, ParallelPlan.make(config, args.tp), recipe)))
            return
        with Watch() as usage:
            opened = open_checkpoint(
                args.model, cache=args.cache, use_cache=args.cache is not None, say=lambda line: None
            )
            model = load_model(opened, opened.config, devices[0], recipe, batch=1, max_seq_len=128)
        usage.chips = chips_in_host_memory(backend)
        usage.peak -= usage.chips
        del model
    say(json.dumps(asdict(usage)))


def _parse(argv: list[str] | None) -> argparse.Namespace:
    from pathlib import Path

    from models.common.options import Parser

    parser = Parser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--packing", action="store_true", help="ttnn's own packing instead of a load: seconds")
    option("--values", action="store_true", help="have a golden mesh compute what the chips hold")
    option("--model", type=Path, required=True)
    option("--cache", type=Path, help="default: without a cache")
    option("--mesh", required=True)
    option("--tp", type=int, required=True)
    option("--recipe", required=True)
    option("--backend", required=True)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
