"""How long a load takes, how much memory it needs, and what it could not be faster than.

    python -m models.demos.qwen25_7b.bench_load --seventh

Makes a checkpoint of the 7B's exact shapes with random weights (15.2 GB; --seventh: 2.2 GB), loads it in processes of their
own, from nothing and from the cache, and prints a table. Below a golden mesh no values are computed: what is measured is the
host's work for a device.
"""

import argparse

from models.common.command import quiet_libraries, run, status_of
from models.common.terminal import complain, say


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _show_table(argv))


def _show_table(argv: list[str] | None) -> None:
    quiet_libraries()
    import shutil

    from models.common.mesh import check_tp, machine
    from models.demos.qwen25_7b.config import QWEN25_7B, recipe_named
    from models.demos.qwen25_7b.loading.bench.checkpoint import SEVENTH
    from models.demos.qwen25_7b.loading.bench.table import Bench
    from models.demos.qwen25_7b.loading.place import default_root

    args = _parse(argv)
    kind = machine(args.mesh)
    tp = kind.chips if args.tp is None else args.tp
    check_tp(kind.name, tp)
    recipe_named(args.recipe, "--recipe")  # which is there, before anything is made
    directory = args.directory or default_root().with_name("qwen25-7b-ttnn-bench")
    bench = Bench(directory, kind.name, tp, args.recipe, args.backend, args.values, complain)
    try:
        lines = bench.run(SEVENTH if args.seventh else QWEN25_7B)
    finally:
        if not args.keep:
            shutil.rmtree(bench.model, ignore_errors=True)
            shutil.rmtree(bench.cache, ignore_errors=True)
    say("\n".join([f"{kind.name}, tp {tp}, recipe {args.recipe}: {lines[0]}", *lines[1:]]))


def _parse(argv: list[str] | None) -> argparse.Namespace:
    from pathlib import Path

    from models.common.options import Parser, add_machine
    from models.demos.qwen25_7b.config.recipe_file import KNOWN

    parser = Parser(prog="python -m models.demos.qwen25_7b.bench_load", description=__doc__.splitlines()[0])
    option = parser.add_argument
    add_machine(parser)
    option("--tp", type=int, help="chips that share the model (default: all of the mesh)")
    option("--recipe", default="bfp8", help=f"number formats: {KNOWN} (default: %(default)s)")
    option("--seventh", action="store_true", help="a checkpoint of 4 layers and a seventh of the words")
    option("--values", action="store_true", help="load once more with the values of a golden mesh")
    option("--directory", type=Path, help="room for checkpoint and cache, 24 GB (default: beside the cache)")
    option("--keep", action="store_true", help="leave both there, for the next run")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
