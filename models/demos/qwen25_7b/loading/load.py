"""Load a model: weight shards from the cache or the checkpoint onto the chips, and new shards into the cache."""

from contextlib import ExitStack, contextmanager, nullcontext
from typing import Callable, Iterator, Mapping

import torch
import ttnn

from models.common.cache_directory import CacheError
from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.loading.builder import Builder, CachedBuilder, Tensors
from models.demos.qwen25_7b.loading.inventory import inventory, queued, shard_bytes
from models.demos.qwen25_7b.loading.opened import OpenedCheckpoint
from models.demos.qwen25_7b.loading.prefetch import Prefetcher
from models.demos.qwen25_7b.loading.record import (
    LOADS,
    Manifest,
    all_manifests,
    manifest_name,
    manifest_names,
    read_manifest,
    read_record,
    write_manifest,
    write_record,
)
from models.demos.qwen25_7b.loading.tiles import (
    LEFT_FREE,
    Damaged,
    amount,
    free_bytes,
    key_of,
    tile_sizes,
)
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights import (
    CheckpointError,
    ModelWeights,
    StateDict,
    TensorSource,
    WeightShard,
)

Progress = Callable[[int, int], None]  # bytes given to the chips, bytes in all
BuildShard = Callable[[WeightShard], ttnn.Tensor]
WIDEST_BYTES = 4  # of a tensor's element, where the dtype is not known before it is read


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
    """Return the model on a row of chips, or on each row of a mesh.

    The load goes through the cache if `source` is an OpenedCheckpoint.
    source: a TensorSource or a state dict.
    progress: called with (bytes given to the chips, bytes in all). Copies on several rows count once.
    """
    model_config = TtModelConfig.make(
        mesh_device, config, recipe, batch=batch, max_seq_len=max_seq_len
    )
    with loading(source, config, model_config.parallel, recipe, progress) as weights:
        return TtTransformer(mesh_device, weights, model_config)


@contextmanager
def loading(
    source: TensorSource | Mapping[str, torch.Tensor],
    config: QwenConfig,
    plan: ParallelPlan,
    recipe: Recipe,
    progress: Progress = lambda done, total: None,
) -> Iterator[ModelWeights]:
    """Give ModelWeights that are built ahead, in the order in which TtTransformer reads them.

    At the end, if every shard was read and nothing failed, the cache has a manifest of the load.
    CheckpointError, at once: the weights were deleted, and the cache lacks shards of this split and recipe.
    """
    source = StateDict(source) if isinstance(source, Mapping) else source
    shards = inventory(config, plan, recipe)
    with ExitStack() as stack:
        if isinstance(source, OpenedCheckpoint) and source.tiles:
            build = stack.enter_context(_through_cache(source, plan, recipe))
        else:
            build = Builder(Tensors(source, {}, shards)).build
        element_bytes = (
            source.element_bytes if isinstance(source, OpenedCheckpoint) else WIDEST_BYTES
        )
        queue = [queued(shard, element_bytes) for shard in shards]
        prefetcher = stack.enter_context(Prefetcher(queue, build, progress))
        yield ModelWeights(source, config, plan, prefetcher)


@contextmanager
def _through_cache(
    opened: OpenedCheckpoint, plan: ParallelPlan, recipe: Recipe
) -> Iterator[BuildShard]:
    load = _Load(opened, plan, recipe)
    load.prepare()
    with opened.tiles.in_use(opened.say) if load.builder.keeps else nullcontext():
        yield load.builder.build
        load.finish()


def verify(opened: OpenedCheckpoint, plan: ParallelPlan, recipe: Recipe) -> None:
    """Compare all tile files of a split and recipe with their checksums. Damaged files are removed and built again.

    CacheError: the checkpoint was opened without a cache.
    """
    if not opened.tiles:
        raise CacheError("there is no cache to verify: leave out --no-cache or --verify-cache")
    load = _Load(opened, plan, recipe)
    for shard in load.shards if opened.known else ():
        file = opened.tiles.find(load.key(shard))
        try:
            if file:
                opened.tiles.check(file)
        except Damaged as damage:
            failure = opened.tiles.discard(file)
            opened.say(
                f"cache: {damage}; " + (f"cannot be removed: {failure}" if failure else "removed")
            )


class _Load:
    """One load of one split and recipe, through the cache."""

    def __init__(self, opened: OpenedCheckpoint, plan: ParallelPlan, recipe: Recipe):
        self.opened = opened
        self.plan = plan
        self.recipe = recipe
        self.shards = inventory(opened.config, plan, recipe)
        self.tensors = Tensors(opened, opened.known, self.shards)
        self.builder = CachedBuilder(
            self.tensors,
            opened.tiles,
            self.key,
            check_unchanged=lambda: opened.check_unchanged(self.tensors.are_unchanged),
            say=opened.say,
        )
        self._keys: dict[WeightShard, str] = {}

    def key(self, shard: WeightShard) -> str:
        if shard not in self._keys:
            self._keys[shard] = key_of(shard, self.tensors.digest)
        return self._keys[shard]

    def prepare(self) -> None:
        """Decide whether new shards are kept. CheckpointError: the weights were deleted, and shards are missing."""
        opened = self.opened
        missing = self._missing()
        if missing and not opened.weights_there:
            raise CheckpointError(
                f"{opened.home}: its weights were deleted, and {opened.tiles.root} has "
                f"{len(self.shards) - len(missing)} of the {len(self.shards)} shards that tp {self.plan.tp} with recipe "
                f"{self.recipe.name} needs; put the weights back, or load a split that is complete: "
                f"{self._loaded_before()}"
            )
        needed = sum(map(shard_bytes, missing))
        free = free_bytes(opened.tiles.root) - LEFT_FREE if opened.writable else 0
        self.builder.keeps = opened.writable and needed <= free
        if opened.writable and needed > free:
            opened.say(
                f"cache: {amount(needed)} would be written to {opened.tiles.root}, where {amount(max(0, free))} may be "
                "used: the model is loaded without it"
            )

    def finish(self) -> None:
        """Write the record of the checkpoint, and the manifest of this split and recipe."""
        opened, builder = self.opened, self.builder
        if not all(self._keys.get(shard) in builder.files for shard in self.shards):
            return
        opened.known = self.tensors.digests
        files = [builder.files[self.key(shard)] for shard in self.shards]
        manifest = Manifest.of(opened.home, self.plan.tp, self.recipe.name, files)
        if builder.keeps:
            self._write(manifest)
        action = "written to" if builder.written else "mapped from"
        opened.say(f"cache: {amount(manifest.bytes)} {action} {opened.tiles.root}")

    def _write(self, manifest: Manifest) -> None:
        opened, folder = self.opened, self.opened.folder
        record = opened.record(self.tensors.digests)
        try:
            before = read_record(folder)
            if before and before.tensors != record.tensors:
                for name in manifest_names(folder):
                    folder.remove(LOADS, name)  # of a checkpoint that was replaced
            if before != record:
                write_record(folder, record, opened.directory)
            if read_manifest(folder, self._manifest_name()) != manifest:
                write_manifest(folder, self._manifest_name(), manifest)
        except OSError as error:
            opened.say(f"cache: {folder.path} cannot be written ({error.strerror})")

    def _missing(self) -> list[WeightShard]:
        """Return the shards that are not in the cache; all, while the checkpoint's tensors are not known."""
        tiles = self.opened.tiles
        if not self.opened.known:
            return self.shards
        manifest = read_manifest(self.opened.folder, self._manifest_name())
        if manifest and not manifest.missing(tile_sizes(tiles.root)):
            return []
        return [shard for shard in self.shards if tiles.find(self.key(shard)) is None]

    def _manifest_name(self) -> str:
        return manifest_name([self.key(shard) for shard in self.shards])

    def _loaded_before(self) -> str:
        """Return the splits and recipes of this checkpoint that the cache has."""
        sizes = tile_sizes(self.opened.tiles.root)
        manifests = [manifest for _, _, manifest in all_manifests(self.opened.tiles.root)]
        complete = [
            f"tp {m.tp} with recipe {m.recipe}"
            for m in manifests
            if m.directory == f"{self.opened.home}" and m.is_current and not m.missing(sizes)
        ]
        return ", ".join(complete) or "nothing"
