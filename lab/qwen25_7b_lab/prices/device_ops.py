"""Device operations as values, read from the nodes of ttnn's graph capture."""

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from math import prod
from typing import Callable, Iterator, Optional, Sequence
from unittest.mock import patch

import ttnn
from golden_mesh.replay.kinds import is_device_operation

TILE = 32  # rows and columns of a tile


@lru_cache(maxsize=None)
def tile_bytes(dtype: str) -> int:
    """Bytes of a tile. dtype: ttnn's name in lower case."""
    return ttnn.Tile((TILE, TILE)).get_tile_size(getattr(ttnn, dtype))


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Tensor:
    """The shard of a tensor on one chip."""

    shape: tuple[int, ...]
    dtype: str  # ttnn's name in lower case: bfloat16, bfloat8_b, uint32, ...
    tiled: bool
    buffer: str  # DRAM or L1
    layout: str  # interleaved, width-sharded, height-sharded, block-sharded
    shard: Optional[tuple[int, int]] = None  # rows and columns of a shard, in elements
    cores: int = 0  # cores (in DRAM: banks) with a shard; 0 for an interleaved tensor
    address: int = field(default=0, compare=False)  # of its buffer in each bank or core

    @property
    def in_dram(self) -> bool:
        return self.buffer == "DRAM"

    @property
    def bytes(self) -> int:
        """Bytes of the tensor in whole tiles, without padding of the shards."""
        if not self.tiled:
            return prod(self.shape) * tile_bytes(self.dtype) // TILE**2
        return prod(self.shape[:-2]) * _tiles(self.shape[-2:]) * tile_bytes(self.dtype)

    @property
    def allocated(self) -> int:
        """Bytes of the tensor's buffer: each core or bank holds a whole shard."""
        if not self.shard or not self.tiled:
            return self.bytes
        return self.cores * _tiles(self.shard) * tile_bytes(self.dtype)

    @property
    def memory(self) -> str:
        """Buffer, layout and shard, such as `L1 width-sharded (32, 128)`."""
        return f"{self.buffer} {self.layout}" + (f" {self.shard}" if self.shard else "")


@dataclass(frozen=True)
class Op:
    """One device operation of a capture."""

    name: str  # ttnn's name of the device operation, without its suffix
    call: str  # the ttnn function around it
    factory: str  # ttnn's program factory
    fidelity: Optional[str]  # LoFi to HiFi4; None for an operation without one
    inputs: tuple[Tensor, ...]
    # As ttnn reports them: in-place operations report their input, or nothing.
    outputs: tuple[Tensor, ...]
    marks: tuple[str, ...] = ()  # the program's own scopes around it, outermost first
    # A collective with Topology::Ring. all_reduce_async does not report its topology.
    ring: bool = False
    q_chunk: int = TILE  # rows of q that attention takes at a time
    causal: bool = True  # of attention
    fp32_dest: bool = False
    activation: bool = False  # fused
    in0_block_w: int = 0  # of a matmul's program; 0: not known
    readers: int = 1  # cores that stream a bank of DRAM in a DRAM-sharded matmul
    passes: int = 1  # of a matmul's program over K
    workers: int = 0  # a link, of a collective; 0: the library's number

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The new tensors. An output in DRAM with an input's address is that input."""
        places = {t.address for t in self.inputs if t.in_dram}
        return tuple(t for t in self.outputs if not (t.in_dram and t.address in places))

    @property
    def result(self) -> Optional[Tensor]:
        return self.results[0] if self.results else None

    @property
    def key(self) -> str:
        """The operation in words, without addresses: equal for operations that do the same on equal tensors."""
        kept = (f"{list(t.shape)} {t.dtype} {t.memory}" for t in (*self.inputs, *self.outputs))
        return f"{self.name} {self.fidelity}: {'; '.join(kept)}"

    @property
    def dram_sharded(self) -> bool:
        """Whether cores beside the DRAM banks stream the weight."""
        return "DRAMSharded" in self.factory


def _tiles(shape: Sequence[int]) -> int:
    return ceil_div(shape[0], TILE) * ceil_div(shape[1], TILE)


def operations(nodes: Sequence[dict]) -> list[Op]:
    """The device operations of a capture, in order. nodes: the result of ttnn.graph.end_graph_capture."""
    by_id = {node["counter"]: node for node in nodes}
    found, scopes, created = [], [], {}
    for node in nodes:
        kind = node["node_type"]
        if kind == "function_start":
            scopes.append(node)
        elif kind == "function_end":
            start = scopes.pop()
            name = start["params"]["name"]
            results = _tensors(node["connections"], by_id)
            if name.endswith("create_device_tensor"):
                # The operation around it may not report its results.
                for scope in scopes:
                    created.setdefault(scope["counter"], []).extend(results)
            if is_device_operation(start):
                results = results or created.get(start["counter"], [])
                found.append((start["counter"], _op(start, scopes, results, by_id)))
    return [op for _, op in sorted(found, key=lambda pair: pair[0])]


def _op(start: dict, scopes: Sequence[dict], results: Sequence[Tensor], by_id: dict) -> Op:
    around = [scope["params"]["name"] for scope in scopes]
    calls = [name for name in around if name.startswith("ttnn.")]
    attributes = " ".join(start["arguments"][:1])
    fidelity = re.search(r"math_fidelity=(\w+)", attributes)
    return Op(
        name=re.sub(r"(Device)?Operation$", "", start["params"]["name"]),
        call=calls[-1].removeprefix("ttnn.").split(".")[-1] if calls else "",
        factory=start["params"].get("program_factory_type", "").split("::")[-1],
        fidelity=fidelity and fidelity[1],
        inputs=tuple(_tensors(start["input_tensors"], by_id)),
        outputs=tuple(results),
        marks=tuple(name for name in around if "." not in name and "::" not in name and not name.startswith(PROGRAM)),
        ring="Topology::Ring" in attributes,
        fp32_dest="fp32_dest_acc_en=1" in attributes,
        activation=bool(re.search(r"BinaryOpType::\w+, .*?SmallVector\(\[[A-Z]", attributes)),
        **_program(around),
        **_attention_options(attributes),
    )


PROGRAM = "program "  # begins the scope of a matmul's program; its fields follow


def program_fields(program) -> dict[str, int]:
    """The fields of an Op that a matmul's program config gives."""
    if not hasattr(program, "in0_block_w"):
        return {}
    passes = ceil_div(program.per_core_N, getattr(program, "out_block_w", 0) or program.per_core_N)
    readers = getattr(program, "num_workers_per_dram_bank", 1)
    return {"in0_block_w": program.in0_block_w, "passes": passes, "readers": readers}


@contextmanager
def programs_in_graph() -> Iterator[None]:
    """Inside, a captured graph has the programs of ttnn.linear and ttnn.matmul, which the library's own has not."""

    def in_scope(function: Callable) -> Callable:
        @wraps(function)
        def call(*args, **kwargs):
            with program_scope(kwargs.get("program_config")):
                return function(*args, **kwargs)

        return call

    with patch.multiple(ttnn, linear=in_scope(ttnn.linear), matmul=in_scope(ttnn.matmul)):
        yield


@contextmanager
def program_scope(program) -> Iterator[None]:
    """A scope around a call, named by the program of its matmul."""
    fields = program_fields(program)
    if not fields:
        yield
        return
    ttnn.graph.track_function_start(f"{PROGRAM}{json.dumps(fields)}")
    try:
        yield
    finally:
        ttnn.graph.track_function_end()


def _program(scopes: Sequence[str]) -> dict[str, int]:
    named = [scope for scope in scopes if scope.startswith(PROGRAM)]
    return json.loads(named[-1].removeprefix(PROGRAM)) if named else {}


def _attention_options(attributes: str) -> dict:
    """The chunk and the causality of prefill attention, where the attributes show them."""
    chunk = re.search(r"SDPAProgramConfig\(<\w+>, [^,]+, (\d+), ", attributes)
    causal = re.search(
        r"^SDPAParams\([^,]+, MemoryConfig\([^)]*\), (?:std::nullopt|SDPAProgramConfig\([^)]*\)), (\d)", attributes
    )
    return ({"q_chunk": int(chunk[1])} if chunk else {}) | ({"causal": causal[1] == "1"} if causal else {})


def _tensors(ids: Sequence[int], by_id: dict) -> list[Tensor]:
    nodes = [by_id[i] for i in ids if i in by_id]
    on_device = (n["params"] for n in nodes if n["node_type"] == "tensor" and "memory_config" in n["params"])
    return [tensor(params) for params in on_device]


def tensor(params: dict) -> Tensor:
    """A Tensor from the parameters of a graph node of type tensor."""
    memory = params["memory_config"].split("nd_shard_spec")[0]
    shard, cores = None, 0
    if "ShardSpec{" in memory:
        shard = tuple(int(n) for n in re.search(r"shape=\[(\d+), (\d+)\]", memory).groups())
        corners = re.findall(r'"start":\{"x":(\d+),"y":(\d+)\},"end":\{"x":(\d+),"y":(\d+)\}', memory)
        for x0, y0, x1, y1 in (map(int, corner) for corner in corners):
            cores += (x1 - x0 + 1) * (y1 - y0 + 1)
    return Tensor(
        shape=tuple(int(n) for n in re.findall(r"\d+", params["shape"])),
        dtype=params["dtype"].split("::")[-1].lower(),
        tiled=params["layout"].endswith("TILE"),
        buffer=re.search(r"BufferType::(\w+)", memory)[1],
        layout=re.search(r"TensorMemoryLayout::(\w+)", memory)[1].lower().replace("_", "-"),
        shard=shard,
        cores=cores,
        address=int(json.loads(params["device_tensors"])[0]["address"]),
    )
