"""What lies in a core's L1 while each op of a layer runs: as it is planned, and as ttnn's graph capture tells it."""

import re
from dataclasses import dataclass
from typing import Callable, Iterator, Sequence

import ttnn

from models.demos.qwen25_7b.config import QwenConfig, Recipe
from models.demos.qwen25_7b.perf.capture import CONTEXT, LAYER, a_layer_of_each, graph_of
from models.demos.qwen25_7b.perf.captured import SUFFIX
from models.demos.qwen25_7b.plans.decode_l1 import decode_moments
from models.demos.qwen25_7b.plans.grids import padded_rows
from models.demos.qwen25_7b.plans.l1 import L1, Moment
from models.demos.qwen25_7b.serving.passes import Pass, Piece, Prompt
from models.demos.qwen25_7b.serving.replica import Replica

# Device operations that make up an op of the plans where it is not one of the same name.
LAUNCHES = {
    "norm": ("LayerNorm",),
    "heads": ("NLPCreateQKVHeadsDecode", "NlpCreateHeads"),
    "rotary": ("RotaryEmbeddingLlamaFusedQK", "RotaryEmbeddingLlama"),
    "cache": ("PagedFusedUpdateCache", "PagedUpdateCache", "Typecast", "PagedFillCache"),
    "attention": ("SdpaDecode", "SDPA"),
    "attention to the cache": ("SDPA",),
    "onto cores": ("InterleavedToSharded",),
    "heads side by side": ("NLPConcatHeadsDecode", "NLPConcatHeads"),
    "all-reduce": ("AllReduceAsync",),
    "reduce-scatter": ("ReduceScatter",),
    "all-gather": ("AllGather",),
    "cut": ("Slice",),
    "product": ("BinaryNg",),
    "add": ("BinaryNg",),
}
MATMUL = ("Matmul",)  # every other op


@dataclass(frozen=True)
class Taken:
    """While a device operation runs: bytes of a core that ttnn has given out since the step or pass began."""

    op: str
    tensors: int  # the most at a time, what the operation has for itself among them
    buffers: int  # circular buffers, where ttnn reports them: only some of its operations do


@dataclass(frozen=True)
class Row:
    """planned.op as it is planned and as ttnn has it."""

    planned: Moment
    tensors: int
    buffers: int  # 0: ttnn says nothing

    @property
    def planned_tensors(self) -> int:
        return self.planned.bytes - self.planned.buffers


@dataclass(frozen=True)
class Picture:
    work: int  # users of the step, or rows of the pass
    rows: tuple[Row, ...]
    stays: int  # bytes of a core that are taken before the layer begins, as planned
    stays_taken: int  # as ttnn has it


FIRST = f"{LAYER}0"


def picture_step(mesh_device: ttnn.MeshDevice, config: QwenConfig, recipe: Recipe, users: int) -> Picture:
    """Of a layer in a decode step."""
    with a_layer_of_each(mesh_device, config, recipe, users, CONTEXT) as replica:
        moments = decode_moments(config, replica.model.plan, recipe.of_layer(0), replica.model.decode)
        return _picture(replica, users, list(moments), replica.launch)


def picture_pass(
    mesh_device: ttnn.MeshDevice, config: QwenConfig, recipe: Recipe, rows: int, continued: bool
) -> Picture:
    """Of a layer in a prefill pass of `rows` rows, or of as many as fit, over a whole prompt, or after a pass as long."""
    with a_layer_of_each(mesh_device, config, recipe, 1, 2 * rows) as replica:
        rows = min(padded_rows(rows), replica.model.longest_pass)
        moments = replica.model.prefill_plans(rows)[0].moments(recipe.of_layer(0).kv_cache)
        others = {"attention"} if continued else {"attention to the cache", "heads side by side"}
        prompt = Prompt(0, range(2 * rows), 0, range(replica.blocks))
        first = rows if continued else 0
        work = Pass(rows, (Piece(prompt, first, first, first + rows),), continued)
        return _picture(replica, rows, [m for m in moments if m.op not in others], lambda: replica.prefill(work))


def _picture(replica: Replica, work: int, moments: Sequence[Moment], run: Callable[[], None]) -> Picture:
    """Captured at its first run: later ones reuse programs, and ttnn does not report their circular buffers."""
    view = ttnn.get_memory_view(replica.mesh_device, ttnn.BufferType.L1)
    nodes = graph_of(replica, run)
    return Picture(
        work,
        tuple(side_by_side(moments, list(taken(nodes)))),
        L1 - replica.model.decode.l1_room,
        view.total_bytes_allocated_per_bank,
    )


def taken(nodes: Sequence[dict]) -> Iterator[Taken]:
    """Of each device operation of layer 0. nodes: what ttnn.graph.end_graph_capture returns."""
    scopes, inside, lying, found = [], 0, {}, []
    for node in nodes:
        kind, params = node["node_type"], node["params"]
        if kind == "function_start":
            scopes.append([params["name"], sum(lying.values()), []])
            inside += params["name"] == FIRST
        elif kind == "function_end":
            name, tensors, buffers = scopes.pop()
            inside -= name == FIRST
            if inside and SUFFIX.match(name):
                found.append(Taken(re.sub(r"(Device)?Operation$", "", name), tensors, extent(buffers)))
        elif kind == "circular_buffer_allocate" and params["globally_allocated"] == "0":
            for scope in scopes:
                scope[2].append((int(params["address"]), int(params["size"])))
        elif kind == "buffer_allocate" and params["type"] == "L1":
            lying[params["address"]] = int(params["max_size_per_bank"])
            for scope in scopes:
                scope[1] = max(scope[1], sum(lying.values()))
        elif kind == "buffer_deallocate" and params["type"] == "L1":
            lying.pop(params["address"], None)
    return iter(found)


def extent(buffers: Sequence[tuple[int, int]]) -> int:
    """Bytes from the first to the last of circular buffers (address, bytes). Every chip reports its own, at the same addresses;
    those of different cores may share some."""
    return max((at + size for at, size in buffers), default=0) - min((at for at, _ in buffers), default=0)


def side_by_side(moments: Sequence[Moment], launched: Sequence[Taken]) -> Iterator[Row]:
    """Each moment with the device operations that make it up."""
    at = 0
    for moment, following in zip(moments, [*moments[1:], None]):
        names, next_names = (LAUNCHES.get(m.op, MATMUL) if m else () for m in (moment, following))
        first = at
        while at < len(launched) and launched[at].op in names and (at == first or launched[at].op not in next_names):
            at += 1
        if at == first:
            found = launched[at].op if at < len(launched) else "nothing"
            raise ValueError(f"L1 of {moment.op}: expected {' or '.join(names)} to be launched next, found {found}")
        here = launched[first:at]
        yield Row(moment, max(t.tensors for t in here), max(t.buffers for t in here))
    if at < len(launched):
        raise ValueError(f"L1 of a layer: {launched[at].op} is launched, and not planned")
