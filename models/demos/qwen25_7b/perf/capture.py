"""The device operations of a decode step and of prefill passes, captured from a model of few layers with the real dims and no real
weights."""

import gc
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Callable, Iterator, Sequence

import torch
import ttnn

from models.demos.qwen25_7b.config import QwenConfig, Recipe
from models.demos.qwen25_7b.perf.captured import Op, operations
from models.demos.qwen25_7b.serving.passes import Pass, Prompt, plan_passes
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights.checkpoint import tensor_shapes

LAYER = "decoder_layer_"  # and its number: the scope that marks a layer's operations in the graph
CONTEXT = 64  # tokens a user in the cache of the captured model; no operation's plan depends on it


@dataclass(frozen=True)
class Step:
    """A decode step or a prefill pass: `before`, the layers, then `after`."""

    before: tuple[Op, ...]
    kinds: tuple[
        tuple[tuple[Op, ...], int], ...
    ]  # operations of a layer, and how many layers have them; layer 0's first
    after: tuple[Op, ...]

    @property
    def layer(self) -> tuple[Op, ...]:
        """Of layer 0."""
        return self.kinds[0][0]

    @property
    def layers(self) -> int:
        return sum(count for _, count in self.kinds)


class ZeroWeights:
    """A TensorSource that has every tensor of a model and no bytes of it: values change no operation."""

    def __init__(self, config: QwenConfig):
        self.shapes = tensor_shapes(config)

    def tensor(self, name: str) -> torch.Tensor:
        return torch.zeros((), dtype=torch.bfloat16).expand(self.shapes[name])


def capture_step(
    mesh_device: ttnn.MeshDevice, config: QwenConfig, recipe: Recipe, batch: int, speculate: int = 1
) -> Step:
    """What a step of `config` launches on a row of chips: a layer of each kind that the recipe has is built and run.

    speculate: tokens of each of `batch` users that the step verifies.
    """
    with a_layer_of_each(mesh_device, config, recipe, batch, CONTEXT, speculate) as replica:
        launch = replica.launch_verify if speculate > 1 else replica.launch
        return _captured(replica, launch, list(kinds_of(config, recipe).values()))


def capture_passes(
    mesh_device: ttnn.MeshDevice, config: QwenConfig, recipe: Recipe, tokens: int
) -> list[tuple[Pass, Step]]:
    """The passes that compute a prompt of `tokens` tokens, each with what it launches; equal kinds are captured once."""
    counts = list(kinds_of(config, recipe).values())
    with a_layer_of_each(mesh_device, config, recipe, 1, tokens) as replica:
        prompt = Prompt(0, range(tokens), 0, range(replica.blocks))
        steps, passes = {}, plan_passes([prompt], replica.model.longest_pass, replica.block)
        for work in passes:
            kind = work.rows, work.continued, bool(work.answered)
            if kind not in steps:
                steps[kind] = _captured(replica, lambda: replica.prefill(work), counts)
        return [(work, steps[work.rows, work.continued, bool(work.answered)]) for work in passes]


def kinds_of(config: QwenConfig, recipe: Recipe) -> Counter[Recipe]:
    """What the layers follow, and how many follow it; what layer 0 follows is first."""
    return Counter(replace(recipe.of_layer(i), different=()) for i in range(config.num_hidden_layers))


@contextmanager
def a_layer_of_each(
    mesh_device, config: QwenConfig, recipe: Recipe, users: int, context: int, speculate: int = 1
) -> Iterator[Replica]:
    """A replica of a model without values that has one layer of each kind."""
    gc.collect()  # an earlier one that its user's frame still named when it was closed
    kinds = kinds_of(config, recipe)
    few = replace(config, num_hidden_layers=len(kinds))
    recipe = replace(recipe, different=tuple(enumerate(kinds)))
    how = dict(max_seq_len=context, traced=False, speculate=speculate)
    replica = Replica.load(mesh_device, ZeroWeights(few), few, recipe, users=users, **how)
    try:
        yield replica
    finally:
        replica.close()
        del replica
        gc.collect()  # a replica refers to itself, and holds memory of the chips


def _captured(replica: Replica, run: Callable[[], None], counts: Sequence[int]) -> Step:
    run()  # compiles, so that what is captured is a step like any other
    return split(operations(graph_of(replica, run)), counts)


def graph_of(replica: Replica, run: Callable[[], None]) -> list[dict]:
    """The nodes of what `run` does, with its layers marked."""
    with marked_layers(replica.model):
        ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
        try:
            run()
        finally:
            nodes = ttnn.graph.end_graph_capture()
    return nodes


FORWARDS = ("forward_decode", "forward_prefill", "forward_continued")


@contextmanager
def marked_layers(model: TtTransformer) -> Iterator[None]:
    """Inside, a captured graph has a scope LAYER around what a layer's forward launches."""
    for i, layer in enumerate(model.layers):
        for name in FORWARDS:
            setattr(layer, name, _scoped(getattr(layer, name), f"{LAYER}{i}"))
    try:
        yield
    finally:
        for layer in model.layers:
            for name in FORWARDS:
                delattr(layer, name)  # the class's method is seen again


def _scoped(function, name: str):
    def scoped(*args, **kwargs):
        ttnn.graph.track_function_start(name)
        try:
            return function(*args, **kwargs)
        finally:
            ttnn.graph.track_function_end()

    return scoped


def split(ops: list[Op], counts: Sequence[int]) -> Step:
    """ops: of a step with a marked layer of each kind. counts: layers of that kind."""
    pieces = [[i for i, op in enumerate(ops) if f"{LAYER}{kind}" in op.marks] for kind in range(len(counts))]
    first, last = pieces[0][0], pieces[-1][-1] + 1
    assert sum(pieces, []) == list(range(first, last)), "the layers' operations are not in pieces, one after the other"
    kinds = tuple((tuple(ops[i] for i in piece), count) for piece, count in zip(pieces, counts))
    return Step(tuple(ops[:first]), kinds, tuple(ops[last:]))
