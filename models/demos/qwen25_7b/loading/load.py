"""Loading: pieces from the cache or the checkpoint onto the chips, and what is new into the cache."""

from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Callable, Iterator, Mapping, Optional

import torch
import ttnn

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.loading.identity import key_of
from models.demos.qwen25_7b.loading.inventory import inventory, ordered, piece_bytes
from models.demos.qwen25_7b.loading.maker import Maker, Packer
from models.demos.qwen25_7b.loading.manifest import (
    Manifest,
    all_manifests,
    forget_manifests,
    make_manifest,
    manifest_file,
    read_manifest,
    write_manifest,
)
from models.demos.qwen25_7b.loading.opened import OpenedCheckpoint
from models.demos.qwen25_7b.loading.place import amount
from models.demos.qwen25_7b.loading.record import read_record, write_record
from models.demos.qwen25_7b.loading.stream import Stream
from models.demos.qwen25_7b.loading.tensors import Tensors
from models.demos.qwen25_7b.loading.tiles import LEFT_FREE, Damaged, free_bytes
from models.demos.qwen25_7b.tt.placement import chips_in_row
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights import CheckpointError, ModelWeights, Piece, StateDict, TensorSource

Progress = Callable[[int, int], None]  # bytes given out, bytes in all
Make = Callable[[Piece], ttnn.Tensor]
WIDEST_BYTES = 4  # of an element of a tensor, where it is not known before it is read


def load_model(
    source: TensorSource | Mapping[str, torch.Tensor],
    config: QwenConfig,
    mesh_device: ttnn.MeshDevice,
    recipe: Recipe,
    *,
    batch: int,
    max_seq_len: int,
    progress: Progress = lambda done, total: None,
) -> TtTransformer:
    """The model on a row of chips, or on each row of a mesh.

    source: an OpenedCheckpoint, through the tile cache if it was opened with one; any other is streamed without.
    progress: called with the bytes that were given to the chips (copies on several rows count once) and those in all.
    """
    plan = ParallelPlan.make(config, chips_in_row(mesh_device))
    with loading(source, config, plan, recipe, progress) as weights:
        return TtTransformer(mesh_device, weights, config, plan, recipe, batch=batch, max_seq_len=max_seq_len)


@contextmanager
def loading(
    source: TensorSource | Mapping[str, torch.Tensor],
    config: QwenConfig,
    plan: ParallelPlan,
    recipe: Recipe,
    progress: Progress = lambda done, total: None,
) -> Iterator[ModelWeights]:
    """ModelWeights whose pieces are made ahead, in the order in which TtTransformer asks for them.

    At the end, if nothing failed and every piece was asked for, the cache has all of them and says so.
    CheckpointError, at once: the weights were deleted, and the cache does not have all of this split and recipe.
    """
    source = StateDict(source) if isinstance(source, Mapping) else source
    pieces = inventory(config, plan, recipe)
    with ExitStack() as stack:
        if isinstance(source, OpenedCheckpoint) and source.tiles:
            make = stack.enter_context(_through_cache(source, plan, recipe))
        else:
            make = Packer(Tensors(source, {}, pieces)).make
        element_bytes = source.element_bytes if isinstance(source, OpenedCheckpoint) else WIDEST_BYTES
        order = [ordered(piece, element_bytes) for piece in pieces]
        yield ModelWeights(source, config, plan, stack.enter_context(Stream(order, make, progress)))


@contextmanager
def _through_cache(opened: OpenedCheckpoint, plan: ParallelPlan, recipe: Recipe) -> Iterator[Make]:
    load = _Load(opened, plan, recipe)
    load.prepare()
    with opened.tiles.in_use() if load.maker.keeps else nullcontext():
        yield load.maker.make
        load.finish()


def verify(opened: OpenedCheckpoint, plan: ParallelPlan, recipe: Recipe) -> None:
    """Compare all tile files of a split and recipe with their checksums now, not when they are sent.

    Damaged ones are said and removed, so that loading makes them again.
    """
    if not opened.tiles:
        return
    load = _Load(opened, plan, recipe)
    for piece in load.pieces if opened.known else ():
        file = opened.tiles.find(load.key(piece))
        try:
            if file:
                opened.tiles.check(file)
        except Damaged as damage:
            opened.say(f"cache: {damage}; removed")
            opened.tiles.discard(file)


class _Load:
    """One load of one split and recipe, through the cache."""

    def __init__(self, opened: OpenedCheckpoint, plan: ParallelPlan, recipe: Recipe):
        self.opened, self.plan, self.recipe = opened, plan, recipe
        self.pieces = inventory(opened.config, plan, recipe)
        self.tensors = Tensors(opened, opened.known, self.pieces)
        self.maker = Maker(self.tensors, opened.tiles, self.key, unchanged=opened.check_unchanged, say=opened.say)
        self._keys: dict[Piece, str] = {}

    def key(self, piece: Piece) -> str:
        if piece not in self._keys:
            self._keys[piece] = key_of(piece, self.tensors.digest)
        return self._keys[piece]

    def prepare(self) -> None:
        """Settle whether what is new will be kept; see `loading` for the error."""
        opened = self.opened
        missing = self._missing()
        if missing and not opened.weights_there:
            raise CheckpointError(
                f"{opened.home}: its weights were deleted, and {opened.tiles.root} has {len(self.pieces) - len(missing)} "
                f"of the {len(self.pieces)} pieces that tp {self.plan.tp} with recipe {self.recipe.name} needs; put the "
                f"weights back, or load what it has all of: {self._loaded_before()}"
            )
        needed = sum(map(piece_bytes, missing))
        free = free_bytes(opened.tiles.root) - LEFT_FREE if opened.writable else 0
        self.maker.keeps = opened.writable and needed <= free
        if opened.writable and needed > free:
            opened.say(
                f"cache: {amount(needed)} would be written to {opened.tiles.root}, where {amount(max(0, free))} may be "
                "used: the model is loaded without it"
            )

    def finish(self) -> None:
        """Remember the checkpoint, and that all of this split and recipe is in the cache."""
        opened, maker = self.opened, self.maker
        if not all(self._keys.get(piece) in maker.files for piece in self.pieces):
            return
        opened.known = self.tensors.digests
        files = [maker.files[self.key(piece)] for piece in self.pieces]
        manifest = make_manifest(opened.home, self.plan.tp, self.recipe.name, files)
        if maker.keeps:
            self._remember(manifest)
        action = "written to" if maker.written else "mapped from"
        opened.say(f"cache: {amount(manifest.bytes)} {action} {opened.tiles.root}")

    def _remember(self, manifest: Manifest) -> None:
        opened = self.opened
        record = opened.record(self.tensors.digests)
        try:
            before = read_record(opened.folder)
            if before and before.tensors != record.tensors:
                forget_manifests(opened.folder)  # of a checkpoint that is no longer there
            if before != record:
                write_record(opened.folder, record, opened.directory)
            if self._manifest() != manifest:
                write_manifest(self._manifest_file(), manifest)
        except OSError as error:
            opened.say(f"cache: {opened.folder} cannot be written ({error.strerror})")

    def _missing(self) -> list[Piece]:
        """Pieces that are not in the cache; all, as long as it is not known which tensors the checkpoint has."""
        tiles = self.opened.tiles
        if not self.opened.known:
            return self.pieces
        manifest = self._manifest()
        if manifest and not manifest.missing(tiles.root):
            return []
        return [piece for piece in self.pieces if tiles.find(self.key(piece)) is None]

    def _manifest(self) -> Optional[Manifest]:
        return read_manifest(self._manifest_file())

    def _manifest_file(self) -> Path:
        return manifest_file(self.opened.folder, [self.key(piece) for piece in self.pieces])

    def _loaded_before(self) -> str:
        """What the cache has of this checkpoint."""
        opened = self.opened
        known = [manifest for _, manifest in all_manifests(opened.tiles.root) if manifest.directory == f"{opened.home}"]
        whole = [f"tp {m.tp} with recipe {m.recipe}" for m in known if not m.missing(opened.tiles.root)]
        return ", ".join(whole) or "nothing"
