"""How long a load takes, how much memory it needs, and what it could not be faster than.

    python -m models.demos.qwen25_7b.bench_load --seventh

Makes a checkpoint of the 7B's exact shapes with random weights (15.2 GB; --seventh: 2.2 GB), loads it in processes of their
own, from nothing and from the cache, and prints a table. Below a golden mesh no values are computed: what is measured is the
host's work for a device.
"""

import argparse
import shutil
import sys
from pathlib import Path

from models.common.command import status_of
from models.common.mesh import check_tp, machine
from models.demos.qwen25_7b.config import QWEN25_7B, RECIPES
from models.demos.qwen25_7b.loading.bench.checkpoint import SEVENTH
from models.demos.qwen25_7b.loading.bench.table import Bench
from models.demos.qwen25_7b.loading.place import default_root


def run(args: argparse.Namespace) -> None:
    kind = machine(args.mesh)
    tp = kind.chips if args.tp is None else args.tp
    check_tp(kind.name, tp)
    directory = args.directory or default_root().with_name("qwen25-7b-ttnn-bench")
    bench = Bench(
        directory, kind.name, tp, args.recipe, args.backend, args.values, lambda line: print(line, file=sys.stderr)
    )
    try:
        lines = bench.run(SEVENTH if args.seventh else QWEN25_7B)
    finally:
        if not args.keep:
            shutil.rmtree(bench.model, ignore_errors=True)
            shutil.rmtree(bench.cache, ignore_errors=True)
    print(f"{kind.name}, tp {tp}, recipe {args.recipe}: {lines[0]}", *lines[1:], sep="\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m models.demos.qwen25_7b.bench_load", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--mesh", default="N300", help="N150, N300, T3K (default: N300)")
    parser.add_argument("--tp", type=int, help="chips that share the model (default: all of the mesh)")
    parser.add_argument("--recipe", default="bfp8", choices=sorted(RECIPES), help="number formats (default: bfp8)")
    parser.add_argument("--backend", default="auto", choices=("auto", "device", "golden"), help="what is below ttnn")
    parser.add_argument("--seventh", action="store_true", help="a checkpoint of 4 layers and a seventh of the words")
    parser.add_argument("--values", action="store_true", help="load once more with the values of a golden mesh")
    parser.add_argument(
        "--directory", type=Path, help="room for checkpoint and cache, 24 GB (default: beside the cache)"
    )
    parser.add_argument("--keep", action="store_true", help="leave both there, for the next run")
    args = parser.parse_args(argv)
    return status_of(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
