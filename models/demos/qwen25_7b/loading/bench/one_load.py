"""One load in a process of its own, measured: prints its Usage as JSON. bench_load starts it."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from models.common.command import status_of
from models.common.mesh import host_alone, open_replicas, select_backend
from models.demos.qwen25_7b.config import RECIPES
from models.demos.qwen25_7b.loading.bench.process import Watch
from models.demos.qwen25_7b.loading.opened import open_model


def run(args: argparse.Namespace) -> None:
    backend = select_backend(args.backend, args.mesh)
    from models.demos.qwen25_7b.loading.load import load_model

    with open_replicas(args.mesh, args.tp) as devices, host_alone(backend):
        with Watch() as usage:
            opened = open_model(args.model, cache=args.cache, use_cache=args.cache is not None, say=lambda line: None)
            model = load_model(opened, devices[0], RECIPES[args.recipe], batch=1, max_seq_len=128)
        del model
    print(json.dumps(asdict(usage)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
