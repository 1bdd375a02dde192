"""Measure a load: its time, its host memory, and the least time that it could take.

    python -m models.demos.qwen25_7b.bench_load --seventh

The program makes a checkpoint of the 7B's exact shapes with random weights (15.2 GB; with --seventh
2.2 GB). It loads the checkpoint without a cache, into an empty cache and from a full cache, and prints a
table. Each load has its own process. A golden mesh computes no values here, so the table shows the host's
work for a device.
"""

import argparse
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable

from models.common.cache_directory import CacheError, CacheKind, Remover, files_in
from models.common.command import quiet_libraries, run, status_of
from models.common.errors import UserError
from models.common.terminal import complain, say
from models.demos.qwen25_7b.loading import default_root

if TYPE_CHECKING:
    from models.demos.qwen25_7b.loading.bench import Usage

CHECKPOINT, CACHE = "checkpoint", "cache"
CHECKPOINT_FILE = re.compile(
    r"config\.json|model-\d{5}-of-\d{5}\.safetensors|model\.safetensors\.index\.json"
)
KIND = CacheKind("qwen25-7b-ttnn-bench", {CHECKPOINT: CHECKPOINT_FILE, CACHE: re.compile(".*")})


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _show_table(argv))


def _show_table(argv: list[str] | None) -> None:
    quiet_libraries()
    from models.common.machines import check_tp, machine
    from models.demos.qwen25_7b.config import QWEN25_7B, recipe_named
    from models.demos.qwen25_7b.loading.bench import SEVENTH

    args = _parse(argv)
    kind = machine(args.mesh)
    tp = kind.row if args.tp is None else args.tp
    check_tp(kind.name, tp)
    recipe_named(args.recipe, "--recipe")
    problem = KIND.prepare(args.directory)
    if problem:
        raise CacheError(f"--directory {args.directory}: cannot be written ({problem})")
    bench = Bench(args.directory, kind.name, tp, args.recipe, args.backend, args.values, complain)
    try:
        lines = bench.run(SEVENTH if args.seventh else QWEN25_7B)
    finally:
        if not args.keep:
            bench.remove()
    say("\n".join([f"{kind.name}, tp {tp}, recipe {args.recipe}: {lines[0]}", *lines[1:]]))


@dataclass(frozen=True)
class Bench:
    """directory: room for the checkpoint and its cache, 24 GB for the 7B."""

    directory: Path
    mesh: str
    tp: int
    recipe: str  # its name or file
    backend: str
    values: bool  # also load with the values of a golden mesh
    say: Callable[[str], None]

    @property
    def model(self) -> Path:
        return self.directory / CHECKPOINT

    @property
    def cache(self) -> Path:
        return self.directory / CACHE

    def run(self, config) -> list[str]:
        """Return the lines of the table, in Markdown."""
        from models.demos.qwen25_7b.loading.bench import Usage, evict, reading

        self._make(config)
        weights, rows = sorted(self.model.glob("*.safetensors")), []
        evict(weights)
        from_disk, in_memory = reading(weights), reading(weights)
        packing = self._child("--packing")
        self.say(
            f"checkpoint: read in {from_disk:.1f} s from disk, in {in_memory:.1f} s from memory; packing {packing:.1f} s"
        )
        self._empty_cache()
        evict(weights)
        rows.append(self._row("cold, no cache", Usage(**self._child()), "packing", packing))
        evict(weights)
        rows.append(self._row("cold, writes the cache", self._load(), "packing", packing))
        tiles = sorted(self.cache.glob("tiles/*/*"))
        evict(tiles)
        floor = reading(tiles)
        evict(tiles)
        rows.append(self._row("warm, from disk", self._load(), "cat", floor))
        reading(tiles)
        floor = reading(tiles)
        rows.append(self._row("warm, in memory", self._load(), "cat", floor))
        if self.values:
            rows.append(self._row("the same with values", self._load("--values"), "cat", floor))
        sizes = [sum(file.stat().st_size for file in files) / 1e9 for files in (weights, tiles)]
        return [
            f"checkpoint {sizes[0]:.2f} GB, cache {sizes[1]:.2f} GB in {len(tiles)} files",
            "",
            "| load | wall | CPU | own memory | chips' values | mapped | from disk | to disk | floor | wall / floor |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *rows,
        ]

    def _make(self, config) -> None:
        from models.demos.qwen25_7b.config import QwenConfig
        from models.demos.qwen25_7b.loading.bench import make_checkpoint

        if not (self.model / "config.json").exists():
            self.say(f"making a checkpoint in {self.model}")
            make_checkpoint(self.model, config)
        elif QwenConfig.from_json(self.model / "config.json") != config:
            raise UserError(
                f"{self.model} is a checkpoint of another size: remove it, or choose another --directory"
            )

    def remove(self) -> None:
        """Remove the checkpoint and the cache's files by their names."""
        remover = Remover(self.directory)
        for name in filter(CHECKPOINT_FILE.fullmatch, files_in(self.directory, CHECKPOINT)):
            remover.file(CHECKPOINT, name)
        remover.folder_if_empty(CHECKPOINT)
        if remover.failures:
            raise CacheError(f"cannot be removed: {', '.join(remover.failures)}")
        self._empty_cache()

    def _empty_cache(self) -> None:
        from models.demos.qwen25_7b.loading.commands import prune
        from models.demos.qwen25_7b.loading.tiles import KIND as TILE_CACHE

        problem = TILE_CACHE.prepare(self.cache)  # pruning leaves a lock file, so it needs its mark
        if problem:
            raise CacheError(f"{self.cache}: cannot be written ({problem})")
        prune(argparse.Namespace(cache=self.cache, all=True, model=None))

    def _row(self, name: str, usage: "Usage", floor: str, seconds: float) -> str:
        row = (
            f"| {name} | {usage.wall:.1f} s | {usage.cpu:.1f} s | {_gb(usage.peak)} | {_gb(usage.chips)} | {_gb(usage.mapped)} "
            f"| {_gb(usage.read)} | {_gb(usage.written)} | {floor} {seconds:.1f} s "
            f"| {usage.wall / seconds:.2f} |"
        )
        self.say(row)
        return row

    def _load(self, *options: str) -> "Usage":
        """Through the cache."""
        from models.demos.qwen25_7b.loading.bench import Usage

        return Usage(**self._child("--cache", f"{self.cache}", *options))

    def _child(self, *options: str):
        command = [
            sys.executable,
            "-m",
            "models.demos.qwen25_7b.loading.bench",
            "--model",
            f"{self.model}",
        ]
        command += [
            "--mesh",
            self.mesh,
            "--tp",
            f"{self.tp}",
            "--recipe",
            self.recipe,
            "--backend",
            self.backend,
        ]
        done = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise UserError(f"a load ended with status {done.returncode}")
        return json.loads(done.stdout.strip().splitlines()[-1])


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size else "-"


def _parse(argv: list[str] | None) -> argparse.Namespace:
    from models.common.options import Parser, add_machine, path
    from models.demos.qwen25_7b.config.recipe_file import KNOWN

    parser = Parser(prog="python -m models.demos.qwen25_7b.bench_load", description=__doc__)
    option = parser.add_argument
    add_machine(parser)
    option("--tp", type=int, help="chips that share the model (default: all of a row)")
    option("--recipe", default="bfp8", help=f"number formats: {KNOWN} (default: %(default)s)")
    option(
        "--seventh", action="store_true", help="a checkpoint of 4 layers and a seventh of the words"
    )
    option("--values", action="store_true", help="load once more with the values of a golden mesh")
    option(
        "--directory",
        type=path("--directory"),
        default=default_root().with_name(KIND.name),
        help="room for checkpoint and cache, 24 GB (default: %(default)s)",
    )
    option("--keep", action="store_true", help="leave both there, for the next run")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
