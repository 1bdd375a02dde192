"""The device operations of a decode step and of prefill passes, captured from a model of one layer with the real dims and no real weights."""

import gc
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Callable, Iterator

import torch
import ttnn

from models.demos.qwen25_7b.config import QwenConfig, Recipe
from models.demos.qwen25_7b.perf.captured import Op, operations
from models.demos.qwen25_7b.serving.passes import Pass, Prompt, plan_passes
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights.checkpoint import tensor_shapes

LAYER = "decoder_layer"  # the scope that marks a layer's operations in the graph
CONTEXT = 64  # tokens a user in the cache of the captured model; no operation's plan depends on it


@dataclass(frozen=True)
class Step:
    """A decode step or a prefill pass: `before`, then `layers` times `layer`, then `after`."""

    layers: int
    before: tuple[Op, ...]
    layer: tuple[Op, ...]
    after: tuple[Op, ...]


class ZeroWeights:
    """A TensorSource that has every tensor of a model and no bytes of it: values change no operation."""

    def __init__(self, config: QwenConfig):
        self.shapes = tensor_shapes(config)

    def tensor(self, name: str) -> torch.Tensor:
        return torch.zeros((), dtype=torch.bfloat16).expand(self.shapes[name])


def capture_step(mesh_device: ttnn.MeshDevice, config: QwenConfig, recipe: Recipe, batch: int) -> Step:
    """What a step of `config` launches on a row of chips: one layer is built and run, all of them are alike."""
    with one_layer(mesh_device, config, recipe, batch, CONTEXT) as replica:
        return _captured(replica, replica.launch, config.num_hidden_layers)


def capture_passes(
    mesh_device: ttnn.MeshDevice, config: QwenConfig, recipe: Recipe, tokens: int
) -> list[tuple[Pass, Step]]:
    """The passes that compute a prompt of `tokens` tokens, each with what it launches; equal kinds are captured once."""
    with one_layer(mesh_device, config, recipe, 1, tokens) as replica:
        prompt = Prompt(0, range(tokens), 0, range(replica.blocks))
        steps, passes = {}, plan_passes([prompt], replica.model.longest_pass, replica.block)
        for work in passes:
            kind = work.rows, work.continued, bool(work.answered)
            if kind not in steps:
                steps[kind] = _captured(replica, lambda: replica.prefill(work), config.num_hidden_layers)
        return [(work, steps[work.rows, work.continued, bool(work.answered)]) for work in passes]


@contextmanager
def one_layer(mesh_device, config: QwenConfig, recipe: Recipe, users: int, context: int) -> Iterator[Replica]:
    """A replica of a model with one layer and no values."""
    gc.collect()  # an earlier one that its user's frame still named when it was closed
    single = replace(config, num_hidden_layers=1)
    replica = Replica.load(
        mesh_device, ZeroWeights(single), single, recipe, users=users, max_seq_len=context, traced=False
    )
    try:
        yield replica
    finally:
        replica.close()
        del replica
        gc.collect()  # a replica refers to itself, and holds memory of the chips


def _captured(replica: Replica, run: Callable[[], None], layers: int) -> Step:
    run()  # compiles, so that what is captured is a step like any other
    with marked_layers(replica.model):
        ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
        try:
            run()
        finally:
            nodes = ttnn.graph.end_graph_capture()
    return split(operations(nodes), layers)


FORWARDS = ("forward_decode", "forward_prefill", "forward_continued")


@contextmanager
def marked_layers(model: TtTransformer) -> Iterator[None]:
    """Inside, a captured graph has a scope LAYER around what a layer's forward launches."""
    for layer in model.layers:
        for name in FORWARDS:
            setattr(layer, name, _scoped(getattr(layer, name)))
    try:
        yield
    finally:
        for layer in model.layers:
            for name in FORWARDS:
                delattr(layer, name)  # the class's method is seen again


def _scoped(function):
    def scoped(*args, **kwargs):
        ttnn.graph.track_function_start(LAYER)
        try:
            return function(*args, **kwargs)
        finally:
            ttnn.graph.track_function_end()

    return scoped


def split(ops: list[Op], layers: int) -> Step:
    """ops: of a step with one marked layer."""
    inside = [i for i, op in enumerate(ops) if LAYER in op.marks]
    first, last = inside[0], inside[-1] + 1
    assert len(inside) == last - first, "a layer's operations are not in one piece"
    return Step(layers, tuple(ops[:first]), tuple(ops[first:last]), tuple(ops[last:]))
