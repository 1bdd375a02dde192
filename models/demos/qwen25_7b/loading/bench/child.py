"""One measurement in a process of its own, printed as JSON; bench_load starts it."""

import argparse
import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from models.common.command import status_of
from models.common.mesh import chips_in_host_memory, host_alone, open_replicas, select_backend
from models.demos.qwen25_7b.config import RECIPES, ParallelPlan, QwenConfig
from models.demos.qwen25_7b.loading.bench.floors import packing
from models.demos.qwen25_7b.loading.bench.process import Watch
from models.demos.qwen25_7b.loading.opened import open_model


def run(args: argparse.Namespace) -> None:
    backend = select_backend(args.backend, args.mesh)
    from models.demos.qwen25_7b.loading.load import load_model

    recipe = RECIPES[args.recipe]
    with open_replicas(args.mesh, args.tp) as devices, nullcontext() if args.values else host_alone(backend):
        if args.packing:
            config = QwenConfig.from_json(args.model / "config.json")
            print(json.dumps(packing(config, ParallelPlan.make(config, args.tp), recipe)))
            return
        with Watch() as usage:
            opened = open_model(args.model, cache=args.cache, use_cache=args.cache is not None, say=lambda line: None)
            model = load_model(opened, devices[0], recipe, batch=1, max_seq_len=128)
        usage.chips = chips_in_host_memory(backend)
        usage.peak -= usage.chips
        del model
    print(json.dumps(asdict(usage)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packing", action="store_true", help="ttnn's own packing instead of a load: seconds")
    parser.add_argument("--values", action="store_true", help="have a golden mesh compute what the chips hold")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="default: without a cache")
    parser.add_argument("--mesh", required=True)
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--backend", required=True)
    args = parser.parse_args()
    return status_of(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
