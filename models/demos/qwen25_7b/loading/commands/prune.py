"""Remove what no complete load uses: leftovers, other versions' files, files of checkpoints that were replaced."""

import argparse
import os
import shutil
from pathlib import Path

from models.common.mesh import TTNN_VERSION
from models.common.terminal import say
from models.demos.qwen25_7b.loading.manifest import all_manifests
from models.demos.qwen25_7b.loading.place import CacheError, amount
from models.demos.qwen25_7b.loading.record import folder_of
from models.demos.qwen25_7b.loading.tiles import TileFiles
from models.demos.qwen25_7b.weights.parts import VERSION


def add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--model", type=Path, help="a checkpoint's directory: forget it, too")
    what.add_argument("--all", action="store_true", help="remove everything")


def execute(args: argparse.Namespace) -> None:
    tiles = TileFiles(args.cache)
    with tiles.alone():
        if args.all:
            shutil.rmtree(args.cache / "models", ignore_errors=True)
        if args.model:
            _forget(args.cache, args.model)
        used = _used(args.cache)
        freed = 0
        for file in tiles:
            if file.path.name not in used:
                freed += file.path.stat().st_size
                file.path.unlink()
    say(f"{args.cache}: {amount(freed)} removed")


def _forget(cache: Path, model: Path) -> None:
    folder = folder_of(cache, Path(os.path.abspath(model)))
    if not folder.is_dir():
        raise CacheError(f"{cache} knows nothing of {model}: `list` shows what it has")
    shutil.rmtree(folder)


def _used(cache: Path) -> set[str]:
    """Names of the files that complete loads use; what is left of other loads is removed."""
    used: set[str] = set()
    for file, manifest in all_manifests(cache):
        if manifest.ttnn != TTNN_VERSION or manifest.parts != VERSION or manifest.missing(cache):
            file.unlink()
        else:
            used |= manifest.files.keys()
    return used
