"""The commands of `python -m models.demos.qwen25_7b.loading`. A docstring's first line is what --help says."""

import argparse
import os
from fnmatch import fnmatch
from pathlib import Path

from models.common.cache_directory import CacheError, Remover, files_in, folders_in
from models.common.terminal import say
from models.demos.qwen25_7b.loading.record import (
    FILES,
    LOADS,
    RECORD,
    Folder,
    all_manifests,
    manifest_names,
    read_manifest,
    read_record,
)
from models.demos.qwen25_7b.loading.tiles import (
    MODELS,
    TILES,
    Damaged,
    TileFiles,
    amount,
    model_folders,
    tile_folders,
    tile_sizes,
)
from models.demos.qwen25_7b.weights.checkpoint import SMALL_FILES


def show_list(args: argparse.Namespace) -> None:
    """Show the models of the cache, their splits and recipes, and their sizes."""
    sizes = {file.path.name: file.path.stat().st_size for file in TileFiles(args.cache)}
    say(f"{args.cache}: {amount(sum(sizes.values()))} in {len(sizes)} files")
    used: set[str] = set()
    for folder, _, manifest in all_manifests(args.cache):
        used |= manifest.files.keys()
        missing = len(manifest.missing(sizes))
        notes = f", {missing} of {len(manifest.files)} files missing" if missing else ""
        notes += "" if read_record(folder) else ", its config is damaged"
        say(
            f"  {manifest.directory}: tp {manifest.tp}, recipe {manifest.recipe}, {amount(manifest.bytes)}, "
            f"ttnn {manifest.ttnn}{notes}"
        )
    spare = sum(size for name, size in sizes.items() if name not in used)
    if spare:
        say(f"  {amount(spare)} that no load above uses (`prune` removes it)")


def verify(args: argparse.Namespace) -> None:
    """Compare every tile with its checksum. Damaged tiles are removed, and the next start builds them again."""
    tiles = TileFiles(args.cache)
    count, size, damaged, failures = 0, 0, [], []
    for file in tiles:
        count += 1
        size += file.path.stat().st_size
        try:
            tiles.check(file)
        except Damaged as damage:
            damaged.append(damage)
            failures += filter(None, [tiles.discard(file)])
    if failures:
        raise CacheError(
            f"{len(damaged)} of {count} files are damaged, and {len(failures)} cannot be removed: {failures[0]}"
        )
    if damaged:
        raise CacheError(
            f"{len(damaged)} of {count} files were damaged and are removed, the first: {damaged[0]}"
        )
    say(f"{args.cache}: {amount(size)} in {count} files, all whole")


def prune(args: argparse.Namespace) -> None:
    """Remove tiles that no complete load uses: leftovers, other versions' tiles, tiles of replaced checkpoints."""
    tiles, remover = TileFiles(args.cache), Remover(args.cache)
    with tiles.alone():
        tiles.sweep(remover)
        models = model_folders(args.cache) if args.all else []
        if args.model:
            folder = _folder_of(args.cache, args.model)
            models = [folder.name]
        for name in models:
            _forget(Folder(args.cache, name), remover)
        used = _used_tiles(args.cache, remover)
        for file in tiles:
            if file.path.name not in used:
                remover.file(*file.path.relative_to(args.cache).parts)
        for name in tile_folders(args.cache):
            if not files_in(args.cache, TILES, name):
                remover.folder_if_empty(TILES, name)
    removed = f"{amount(remover.bytes)} removed, {remover.files} files"
    if remover.failures:
        raise CacheError(
            f"{args.cache}: {removed}; {len(remover.failures)} cannot be removed, the first: {remover.failures[0]}"
        )
    say(f"{args.cache}: {removed}")


def _folder_of(cache: Path, model: Path) -> Folder:
    folder = Folder.of(cache, Path(os.path.abspath(model)))
    if folder.name not in folders_in(cache, MODELS):
        raise CacheError(f"{cache} knows nothing of {model}: `list` shows what it has")
    return folder


def _forget(folder: Folder, remover: Remover) -> None:
    """Remove the record, the manifests and the copies of a checkpoint."""
    place = (MODELS, folder.name)
    for name in manifest_names(folder):
        remover.file(*place, LOADS, name)
    for name in files_in(folder.root, *place, FILES):
        if any(fnmatch(name, pattern) for pattern in SMALL_FILES):
            remover.file(*place, FILES, name)
    remover.file(*place, RECORD)
    for name in (LOADS, FILES):
        remover.folder_if_empty(*place, name)
    remover.folder_if_empty(*place)


def _used_tiles(cache: Path, remover: Remover) -> set[str]:
    """Return the names of the tiles that complete loads use. Other loads' manifests are removed."""
    sizes, used = tile_sizes(cache), set()
    for folder in (Folder(cache, name) for name in model_folders(cache)):
        for name in manifest_names(folder):
            manifest = read_manifest(folder, name)
            if manifest and manifest.is_current and not manifest.missing(sizes):
                used |= manifest.files.keys()
            else:
                remover.file(MODELS, folder.name, LOADS, name)
    return used


COMMANDS = {"list": show_list, "verify": verify, "prune": prune}
