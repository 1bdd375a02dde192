"""Capture the device operations of a step and of prefill, from few layers with the real dims and no values."""

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Callable, Iterator, NamedTuple, Sequence
from unittest.mock import patch

import torch
import ttnn

from models.demos.qwen25_7b.config import DecoderConfig, Recipe
from models.demos.qwen25_7b.config.sampling import GREEDY, SamplingParams
from models.demos.qwen25_7b.engine.prefill_batch import PrefillBatch, Prompt
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.engine.sampling import SamplingMode
from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.plans.slices import WeightShard
from models.demos.qwen25_7b.tt.attention import allocate_caches
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.transformer import TtTransformer

from ..prices.device_ops import Op, operations, programs_in_graph

LAYER = "decoder_layer_"  # and a number: the scope around a layer's operations in the graph
CONTEXT = 64  # tokens a user in the captured model's cache; no operation's plan depends on it


@dataclass(frozen=True)
class Step:
    """The device operations of a decode step or a prefill batch."""

    before: tuple[Op, ...]
    kinds: tuple[tuple[tuple[Op, ...], int], ...]  # of each kind of layer, with its layers; layer 0's first
    after: tuple[Op, ...]

    @property
    def layer(self) -> tuple[Op, ...]:
        """The operations of the kind with the fewest: its keys are not centered."""
        return min((ops for ops, _ in self.kinds), key=len)

    @property
    def layers(self) -> int:
        return sum(count for _, count in self.kinds)


def constant_shard(shard: WeightShard, mesh_device: ttnn.MeshDevice, centered: frozenset[int]) -> ttnn.Tensor:
    """Return zeros, [1, 1, rows, columns] on the host.

    Only one value changes an operation: a layer's keys are centered where its bias for that is not zero.
    centered: layers with ones there.
    """
    if shard.format != "bfloat16":
        return _zeros(shard.slice.shape, shard.format, mesh_device)
    biases = (f"model.layers.{i}.self_attn.k_proj.bias" for i in centered)
    return _constant(float(any(shard.slice.tensors == (bias,) for bias in biases)), shard.slice.shape, shard.tiled)


@lru_cache(maxsize=1)  # a weight's shards: of the head they take some 0.5 GB
def _zeros(shape: tuple[int, int], dtype: str, mesh_device: ttnn.MeshDevice) -> ttnn.Tensor:
    """Packing the 7B's zeros would take seconds. The library makes one tensor for each chip."""
    spec = ttnn.Shape((1, 1, *shape)), getattr(ttnn, dtype), ttnn.TILE_LAYOUT
    return ttnn.get_device_tensors(ttnn.allocate_tensor_on_host(*spec, mesh_device))[0]


@lru_cache(maxsize=8)  # the embedding and the wide shards of a model
def _constant(value: float, shape: tuple[int, int], tiled: bool) -> ttnn.Tensor:
    layout = ttnn.TILE_LAYOUT if tiled else ttnn.ROW_MAJOR_LAYOUT
    return ttnn.from_torch(torch.full((1, 1, *shape), value, dtype=torch.bfloat16), layout=layout)


def capture_step(
    mesh_device: ttnn.MeshDevice,
    config: DecoderConfig,
    recipe: Recipe,
    users: int,
    tokens: int = 1,
    sampling: SamplingParams = GREEDY,
) -> Step:
    """Capture a step from one layer of each kind. tokens: of each user; with more than one it verifies drafts."""
    with one_layer_of_each_kind(mesh_device, config, recipe, users, CONTEXT, tokens) as replica:
        replica.inputs.write_sampling_params([sampling])
        mode = SamplingMode.of([sampling])
        verify = partial(replica.launch_verify, mode, grouped=replica.groups * tokens == replica.slots)
        launch = verify if tokens > 1 else partial(replica.launch_decode, mode)
        return _captured(replica, launch, list(layer_kinds(config, recipe).values()))


def capture_prefill(
    mesh_device: ttnn.MeshDevice, config: DecoderConfig, recipe: Recipe, tokens: int
) -> list[tuple[PrefillBatch, Step]]:
    """Capture the prefill batches of a prompt of `tokens` tokens. Equal kinds are captured once."""
    counts = list(layer_kinds(config, recipe).values())
    with one_layer_of_each_kind(mesh_device, config, recipe, 1, tokens) as replica:
        batches = replica.batches([Prompt(0, range(tokens), 0, range(replica.blocks))])
        kinds = {batch.kind: batch for batch in reversed(batches)}  # the first of each
        steps = {kind: capture_batch(replica, batch, counts) for kind, batch in kinds.items()}
        return [(batch, steps[batch.kind]) for batch in batches]


def capture_batch(replica: Replica, batch: PrefillBatch, counts: Sequence[int]) -> Step:
    """Capture a prefill batch. counts: layers of each kind (layer_kinds)."""
    return _captured(replica, lambda: replica.prefill(batch), counts)


class LayerKind(NamedTuple):
    """Layers with equal operations."""

    recipe: Recipe
    centered: bool  # whether keys are centered


def layer_kinds(config: DecoderConfig, recipe: Recipe) -> Counter[LayerKind]:
    """The number of layers of each kind, layer 0's first. Keys of config.centered_layers count as centered."""
    return Counter(
        LayerKind(replace(recipe.of_layer(i), different=()), i in config.centered_layers)
        for i in range(config.num_hidden_layers)
    )


@contextmanager
def one_layer_of_each_kind(
    mesh_device, config: DecoderConfig, recipe: Recipe, users: int, context: int, tokens: int = 1
) -> Iterator[Replica]:
    """A replica of a model without values, with one layer of each kind."""
    kinds = list(layer_kinds(config, recipe))
    few = replace(config, num_hidden_layers=len(kinds))
    centered = frozenset(i for i, kind in enumerate(kinds) if kind.centered)
    assert centered <= set(few.centered_layers), "layers of the model that are never centered"
    recipe = replace(recipe, different=tuple(enumerate(kind.recipe for kind in kinds)))
    slots = min(users * tokens, MAX_USERS)
    model_config = TtModelConfig.make(mesh_device, few, recipe, min_slots=slots, max_seq_len=context)
    build = partial(constant_shard, mesh_device=mesh_device, centered=centered)
    model = TtTransformer(mesh_device, build, model_config)
    _zeros.cache_clear()  # it holds the mesh
    caches = allocate_caches(mesh_device, model_config, blocks_for(users, context, BLOCK), BLOCK)
    replica = Replica(model, caches, traced=False, users=users, speculate=tokens)
    del model, caches
    try:
        yield replica
    finally:
        replica.close()


def _captured(replica: Replica, run: Callable[[], None], counts: Sequence[int]) -> Step:
    run()  # compiles its programs
    ops = operations(graph_of(replica, run))
    if replica.model.model_config.decode.all_reduce.topology == "ring":
        # ttnn's graph has the topology of every other collective.
        ops = [replace(op, ring=op.ring or op.name == "AllReduceAsync") for op in ops]
    return split(ops, counts)


def graph_of(replica: Replica, run: Callable[[], None]) -> list[dict]:
    """The graph nodes of a run, with a scope around each layer."""
    with marked_layers(replica.model), programs_in_graph():
        ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
        try:
            run()
        finally:
            nodes = ttnn.graph.end_graph_capture()
    return nodes


@contextmanager
def marked_layers(model: TtTransformer) -> Iterator[None]:
    """Inside, a captured graph has a scope LAYER around each layer's forward."""
    with ExitStack() as patched:
        for i, layer in enumerate(model.layers):
            for name in ("forward_decode", "forward_prefill"):
                patched.enter_context(patch.object(layer, name, _scope(f"{LAYER}{i}")(getattr(layer, name))))
        yield


@contextmanager
def _scope(name: str) -> Iterator[None]:
    ttnn.graph.track_function_start(name)
    try:
        yield
    finally:
        ttnn.graph.track_function_end()


def split(ops: list[Op], counts: Sequence[int]) -> Step:
    """A Step from the operations of one layer of each kind. counts: layers of each kind."""
    layers = [[i for i, op in enumerate(ops) if f"{LAYER}{kind}" in op.marks] for kind in range(len(counts))]
    first, last = layers[0][0], layers[-1][-1] + 1
    assert sum(layers, []) == list(range(first, last)), "operations of different layers are interleaved"
    kinds = tuple((tuple(ops[i] for i in layer), count) for layer, count in zip(layers, counts))
    return Step(tuple(ops[:first]), kinds, tuple(ops[last:]))
