"""Which models the cache holds, in which splits and recipes, and how large they are."""

import argparse

from models.common.terminal import say
from models.demos.qwen25_7b.loading.manifest import Manifest, all_manifests
from models.demos.qwen25_7b.loading.place import amount
from models.demos.qwen25_7b.loading.record import read_record
from models.demos.qwen25_7b.loading.tiles import TileFiles


def add_options(parser: argparse.ArgumentParser) -> None:
    """None."""


def execute(args: argparse.Namespace) -> None:
    tiles = TileFiles(args.cache)
    sizes = {file.path.name: file.path.stat().st_size for file in tiles}
    say(f"{args.cache}: {amount(sum(sizes.values()))} in {len(sizes)} files")
    used: set[str] = set()
    for file, manifest in all_manifests(args.cache):
        used |= manifest.files.keys()
        record = read_record(file.parent.parent)
        say(f"  {manifest.directory}: {_described(manifest, args.cache)}{'' if record else ', its config is damaged'}")
    spare = sum(size for name, size in sizes.items() if name not in used)
    if spare:
        say(f"  {amount(spare)} that nothing above uses (`prune` removes it)")


def _described(manifest: Manifest, root) -> str:
    missing = len(manifest.missing(root))
    whole = f", {missing} of {len(manifest.files)} files missing" if missing else ""
    return f"tp {manifest.tp}, recipe {manifest.recipe}, {amount(manifest.bytes)}, ttnn {manifest.ttnn}{whole}"
