"""Compare every file of the cache with its checksum; damaged ones are removed, and made again by the next start."""

import argparse

from models.common.terminal import say
from models.demos.qwen25_7b.loading.place import CacheError, amount
from models.demos.qwen25_7b.loading.tiles import Damaged, TileFiles


def add_options(parser: argparse.ArgumentParser) -> None:
    """None."""


def execute(args: argparse.Namespace) -> None:
    tiles = TileFiles(args.cache)
    files, size, damaged = 0, 0, []
    for file in tiles:
        files += 1
        size += file.path.stat().st_size
        try:
            tiles.check(file)
        except Damaged as damage:
            damaged.append(damage)
            tiles.discard(file)
    if damaged:
        raise CacheError(f"{len(damaged)} of {files} files were damaged and are removed, the first: {damaged[0]}")
    say(f"{args.cache}: {amount(size)} in {files} files, all whole")
