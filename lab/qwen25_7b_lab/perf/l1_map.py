"""The L1 map of a core: bytes of tensors and circular buffers while each op of a layer runs, planned and captured."""

import re
from dataclasses import dataclass, replace
from typing import Callable, Iterator, Sequence

import ttnn
from golden_mesh.replay.kinds import DEVICE_OPERATION

from models.demos.qwen25_7b.config import DecoderConfig, Recipe
from models.demos.qwen25_7b.engine.prefill_batch import PrefillBatch, PrefillChunk, Prompt
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.plans.grids import padded_rows
from models.demos.qwen25_7b.plans.l1 import ATTENTION, CUT, PRODUCT, OpFootprint, decode_ops, placed, prefill_ops

from ..options import markdown
from .capture import CONTEXT, LAYER, graph_of, one_layer_of_each_kind

# The device operations of an op of the plans, by the op's name.
LAUNCHES = {
    "norm": ("LayerNorm",),
    "heads": ("NLPCreateQKVHeadsDecode", "NlpCreateHeads"),
    "head norms": ("ShardedToInterleaved", "LayerNorm", "InterleavedToSharded"),
    "rotary": ("RotaryEmbeddingLlamaFusedQK", "RotaryEmbeddingLlama"),
    "center keys": ("Embeddings", "BinaryNg"),
    "cache": ("PagedFusedUpdateCache", "PagedUpdateCache", "Typecast", "PagedFillCache"),
    "scale q": ("BinaryNg",),
    ATTENTION: ("SdpaDecode", "SDPA"),
    "onto cores": ("InterleavedToSharded",),
    "heads side by side": ("NLPConcatHeadsDecode", "NLPConcatHeads"),
    "all-reduce": ("AllReduceAsync",),
    "reduce-scatter": ("ReduceScatter",),
    "round the sum": ("Typecast",),
    "all-gather": ("AllGather",),
    CUT: ("Slice",),
    PRODUCT: ("BinaryNg",),
    "add": ("BinaryNg",),
}
MATMUL = ("Matmul",)  # every other op is a matmul


@dataclass(frozen=True)
class Row:
    """An op of a layer: its planned footprint, and the captured bytes of its device operations."""

    planned: OpFootprint
    tensors: int
    reach: int  # tensors and the holes above the lowest
    buffers: int  # 0: not reported

    @property
    def planned_tensors(self) -> int:
        return sum(size for _, size in self.planned.tensors)

    @property
    def planned_reach(self) -> int:
        return self.planned_tensors + self.planned.hole


@dataclass(frozen=True)
class L1Map:
    """room: bytes of a core for buffers. persistent: those that it holds before the layer begins, as planned.
    captured_persistent: as ttnn reports.
    """

    title: str
    rows: tuple[Row, ...]
    room: int
    persistent: int
    captured_persistent: int


def map_step(mesh_device: ttnn.MeshDevice, config: DecoderConfig, recipe: Recipe, users: int) -> L1Map:
    """The map of a layer in a decode step."""
    one = replace(config, num_hidden_layers=1)
    with one_layer_of_each_kind(mesh_device, one, recipe, users, CONTEXT) as replica:
        model = replica.model
        footprints = placed(decode_ops(model.model_config.layer(0), model.model_config.decode))
        return _map(replica, f"a step of {users} users", list(footprints), replica.launch_decode)


def map_prefill(
    mesh_device: ttnn.MeshDevice, config: DecoderConfig, recipe: Recipe, rows: int, cached_prefix: bool
) -> L1Map:
    """Return the map of a layer in a prefill batch of `rows` rows, or fewer if they do not fit.

    With `cached_prefix` the cache holds a prefix that is as long as the batch.
    """
    one = replace(config, num_hidden_layers=1)
    with one_layer_of_each_kind(mesh_device, one, recipe, 1, 2 * rows) as replica:
        fitting = min(padded_rows(rows), replica.model.max_prefill_rows)
        footprints = list(placed(prefill_ops(replica.model.model_config.prefill_plans(fitting)[0], cached_prefix)))
        prompt = Prompt(0, range(2 * fitting), 0, range(replica.blocks))
        first = fitting if cached_prefix else 0
        chunk = PrefillChunk(prompt, first, first, first + fitting)
        batch = PrefillBatch(fitting, (chunk,), cached_prefix)
        asked = "" if fitting == padded_rows(rows) else f" (as many as fit of {rows})"
        after = " after a cached prefix" if cached_prefix else ""
        title = f"prefill of {fitting} rows{asked}{after}"
        return _map(replica, title, footprints, lambda: replica.prefill(batch))


def _map(replica: Replica, title: str, footprints: Sequence[OpFootprint], run: Callable[[], None]) -> L1Map:
    """Capture the first run: ttnn reports the circular buffers of new programs only."""
    view = ttnn.get_memory_view(replica.mesh_device, ttnn.BufferType.L1)
    nodes, decode = graph_of(replica, run), replica.model.model_config.decode
    return L1Map(
        title,
        tuple(match(footprints, list(l1_uses(nodes, f"{LAYER}0")))),
        decode.chip.l1,
        decode.chip.l1 - decode.layer_l1,
        view.total_bytes_allocated_per_bank,
    )


def match(footprints: Sequence[OpFootprint], launched: Sequence["L1Use"]) -> Iterator[Row]:
    """Each footprint with its device operations. ValueError: the plan and the capture have different ops."""
    at, top = 0, launched[0].lowest + launched[0].tensors  # the first op's tensors have no hole
    for footprint, following in zip(footprints, [*footprints[1:], None]):
        names, next_names = (LAUNCHES.get(f.op, MATMUL) if f else () for f in (footprint, following))
        first = at
        while at < len(launched) and launched[at].op in names and (at == first or launched[at].op not in next_names):
            at += 1
        if at == first:
            found = launched[at].op if at < len(launched) else "no operation"
            raise ValueError(f"L1 of {footprint.op}: expected {' or '.join(names)}, found {found}")
        here = launched[first:at]
        reach = top - min(use.lowest for use in here)
        yield Row(footprint, max(use.tensors for use in here), reach, max(use.buffers for use in here))
    if at < len(launched):
        raise ValueError(f"L1 of a layer: {launched[at].op} is launched and not planned")


def l1_table(mapped: L1Map) -> str:
    header = (
        "operation", "tensors, planned", "ttnn", "circular buffers, planned", "ttnn",
        "planned with persistent bytes, of the core", "tensors",
    )  # fmt: skip
    rows = []
    for row in mapped.rows:
        whole = mapped.persistent + row.planned.bytes
        hole = [("hole", row.planned.hole)] * (row.planned.hole > 0)
        rows.append(
            (
                row.planned.op,
                f"{row.planned_tensors:,}",
                f"{row.tensors:,}",
                *(f"{size:,}" if size else "-" for size in (row.planned.buffers, row.buffers)),
                f"{whole:,} ({whole / mapped.room:.0%})",
                ", ".join(f"{name} {size:,}" for name, size in (*row.planned.tensors, *hole)),
            )
        )
    fullest = max(mapped.rows, key=lambda row: row.planned.bytes)
    notes = [
        f"A core has {mapped.room:,} bytes. Of these {mapped.persistent:,} are planned as persistent (the rotary "
        f"matrix, all-reduce buffers, semaphores); ttnn has allocated {mapped.captured_persistent:,} before the layer.",
        f"Fullest: {fullest.planned.op}, {mapped.persistent + fullest.planned.bytes:,}.",
        "-: not counted, or not reported: ttnn reports circular buffers of some operations only.",
    ]
    return markdown(header, rows) + "\n\n" + " ".join(notes)


# ---- the nodes of a graph capture


@dataclass(frozen=True)
class L1Use:
    """L1 of a core while a device operation runs, in bytes since the capture began."""

    op: str
    tensors: int  # the largest sum, the operation's own temporaries included
    lowest: int  # the tensors' lowest address
    buffers: int  # circular buffers; 0 where ttnn reports none


def l1_uses(nodes: Sequence[dict], scope: str) -> Iterator[L1Use]:
    """Of each device operation in a scope that ttnn.graph.track_function_start began. nodes: the result of
    end_graph_capture.
    """
    scopes, inside, alive, above = [], 0, {}, 1 << 32
    for node in nodes:
        kind, params = node["node_type"], node["params"]
        if kind == "function_start":
            scopes.append([params["name"], sum(alive.values()), min(alive, default=above), []])
            inside += params["name"] == scope
        elif kind == "function_end":
            name, *use, buffers = scopes.pop()
            inside -= name == scope
            if inside and DEVICE_OPERATION.match(name):
                yield L1Use(re.sub(r"(Device)?Operation$", "", name), *use, extent(buffers))
        elif kind == "circular_buffer_allocate" and params["globally_allocated"] == "0":
            for each in scopes:
                each[-1].append((int(params["address"]), int(params["size"])))
        elif kind == "buffer_allocate" and params["type"] == "L1":
            address = int(params["address"])
            alive[address] = int(params["max_size_per_bank"])
            for each in scopes:
                each[1:3] = max(each[1], sum(alive.values())), min(each[2], address)
        elif kind == "buffer_deallocate" and params["type"] == "L1":
            alive.pop(int(params["address"]), None)


def extent(buffers: Sequence[tuple[int, int]]) -> int:
    """Bytes from the first to the last circular buffer (address, bytes).

    Every chip reports its own buffers, at the same addresses. Buffers of different cores may overlap.
    """
    if not buffers:
        return 0
    return max(at + size for at, size in buffers) - min(at for at, _ in buffers)
