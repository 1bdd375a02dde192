"""golden-mesh replay: runs the operations of a record on whatever ttnn opens, and prints values and times beside it.

A value is compared on all chips. A time is that of one call, from a trace of n calls and one of 2n. There is none
without a device operation, with a tensor on the host, or where the traces differ by no more than their spread.
"""

import math
import re
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

import torch
import ttnn

from golden_mesh.mesh.arguments import on_device, tensors_in
from golden_mesh.replay.kinds import call, code, from_plain, operation

TRACE_REGION, L1_SMALL = 64 << 20, 16 << 10  # bytes of a chip, of a core
# Their second result has places in the first tensor: equal values may have places in another order.
PLACES = {"ttnn.topk", "ttnn.sort"}
HEADER = f"{'op':58} {'error':>9} {'gain':>8} {'equal':>7} {'not finite':>10} {'us':>9}"
HIDES = 1e6  # times the largest value that differs
ERROR, GAIN = 5e-3, 1e-3  # from which an operation differs: what is left of a chip's arithmetic is below (README.md)


class Value(NamedTuple):
    """Values beside a record's."""

    error: float  # L2 norm of the finite values' difference, divided by the record's norm
    gain: float  # factor of a line through the origin: 1 is right
    equal: float  # share of equal values
    not_finite: int  # values that are NaN or infinite on one side only, or not alike


def compare(values: Sequence[torch.Tensor], recorded: Sequence[torch.Tensor]) -> Value:
    a, b = (torch.cat([t.reshape(-1).double() for t in each]) for each in (values, recorded))
    equal, finite = (a == b) | (a.isnan() & b.isnan()), a.isfinite() & b.isfinite()
    share, lost = equal.double().mean().item() if len(b) else 1.0, int((~equal & ~finite).sum())
    # Equal values hide errors of values that are so much smaller: a mask's -1e9 those of scores.
    largest = torch.cat([b[finite & ~equal].abs(), torch.ones(1)]).max()
    finite &= ~equal | (b.abs() <= HIDES * largest)
    a, b = a[finite], b[finite]
    square = (b @ b).item()
    if not square:
        return Value(math.inf if a.any() else 0.0, 1.0, share, lost)
    return Value((a - b).norm().item() / square**0.5, (a @ b).item() / square, share, lost)


def load(path: str | Path) -> dict[str, Any]:
    """A record's file. ValueError: another file."""
    try:
        kept = torch.load(path, weights_only=True)
        if not {"mesh", "ring", "ops"} <= kept.keys():
            raise ValueError("fields are missing")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise ValueError(f"{path} is no file of golden-mesh record: {reason}") from None
    return kept


def _on_all(values, chips: int) -> list[torch.Tensor]:
    return values if isinstance(values, list) else [values] * chips


class Replay:
    """One operation on a mesh, with tensors of its own."""

    def __init__(self, device: ttnn.MeshDevice, op: dict[str, Any]):
        self.device = device
        self.chips = device.get_num_devices()
        self.op = op
        self.run_op: Callable = operation(op["op"])
        self.tensors = [self._put(tensor) for tensor in op["tensors"]]
        own = {"tensor": self.tensors.__getitem__, "mesh": lambda _: device, "semaphore": self._semaphore}
        args, kwargs = op["arguments"]
        self.args = from_plain(args, own)
        self.kwargs = {name: from_plain(value, own) for name, value in kwargs.items()}

    def _put(self, tensor: dict[str, Any]) -> ttnn.Tensor:
        dtype, layout, memory_config = (from_plain(tensor[k]) for k in ("dtype", "layout", "memory_config"))
        values = tensor["values"]
        if values is None:
            empty = ttnn.allocate_tensor_on_device
            return empty(ttnn.Shape(tensor["shape"]), dtype, layout, self.device, memory_config)
        how = dict(dtype=dtype, layout=layout, pad_value=tensor.get("padding"))
        each = values if isinstance(values, list) else [values]
        shards = [ttnn.from_torch(v.to(torch.int64) if dtype == ttnn.uint32 else v, **how) for v in each]
        shards *= self.chips // len(shards)
        host = shards[0] if self.chips == 1 else ttnn.from_host_shards(shards, self.device.shape)
        return host if memory_config is None else ttnn.to_device(host, self.device, memory_config)

    def _semaphore(self, _) -> Any:
        grid = self.device.compute_with_storage_grid_size()
        cores = ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(grid.x - 1, grid.y - 1))
        return ttnn.create_global_semaphore(self.device, ttnn.CoreRangeSet([cores]), 0)

    def run(self) -> list[ttnn.Tensor]:
        return [t for t in tensors_in(self.run_op(*self.args, **self.kwargs)) if on_device(t)]

    def value(self) -> Optional[Value]:
        """The worst of the values that the operation returns or writes. None: the record has none."""
        returned = self.run()
        pairs = [(t, kept["values"]) for t, kept in zip(returned, self.op["returned"])]
        pairs += [(self.tensors[i], values) for i, values in self.op["written"].items()]
        found = []
        for i, (t, values) in enumerate(pairs):
            if values is None or not t.is_allocated():
                continue
            got = [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(t)]
            recorded = _on_all(values, self.chips)
            if i == 1 and self.op["op"] in PLACES:
                got, recorded = (self._values_at(places) for places in (got, recorded))
            found.append(compare(got, recorded))
        return max(found, key=lambda v: (v.not_finite, v.error), default=None)

    def _values_at(self, places: list[torch.Tensor]) -> list[torch.Tensor]:
        """The first tensor's values at the places, on each chip."""
        before = 2 if self.op["op"] == "ttnn.topk" else 1  # arguments before dim
        dim = self.kwargs.get("dim", (*self.args[before:], -1)[0])
        x = _on_all(self.op["tensors"][0]["values"], self.chips)
        return [v.gather(dim, at.long()) for v, at in zip(x, places)]

    def seconds(self, calls: int) -> Optional[float]:
        """Of one call: a trace of twice the calls less one of the calls.

        Calls with a semaphore alternate between two sets of tensors: a chip may be one such call ahead of its neighbor.
        """
        self.turns = [self] + [Replay(self.device, self.op)] * ("'semaphore'" in repr(self.op["arguments"]))
        self.turns[-1].run()  # compiles
        return difference(self._traced(2 * calls), self._traced(calls), calls)

    def _traced(self, calls: int) -> list[float]:
        """Seconds of three executions of a trace."""
        trace = ttnn.begin_trace_capture(self.device, cq_id=0)
        for i in range(calls):
            self.turns[i % len(self.turns)].run()
        ttnn.end_trace_capture(self.device, trace, cq_id=0)
        spent = []
        for _ in range(3):
            ttnn.synchronize_device(self.device)
            begin = time.perf_counter()
            ttnn.execute_trace(self.device, trace, cq_id=0, blocking=True)
            spent.append(time.perf_counter() - begin)
        ttnn.release_trace(self.device, trace)
        return spent


def difference(double: list[float], single: list[float], calls: int) -> Optional[float]:
    """Seconds of a call. None: the traces differ by no more than the two shortest executions of each do."""
    spread = sum(sorted(times)[1] - min(times) for times in (double, single))
    found = min(double) - min(single)
    return found / calls if found > spread else None


def shown(op: dict[str, Any]) -> str:
    """The name, and the shape of the largest two tensors."""
    shapes = sorted((t["shape"] for t in op["tensors"]), key=math.prod)[-2:]
    return f"{op['op'].removeprefix('ttnn.')} {' x '.join(str(s) for s in reversed(shapes))}"


def reason(error: Exception) -> str:
    """One line of an error. The first line of the library's own names a file; what is wrong follows "info:"."""
    text = f"{error}"
    return re.search(r"info:\n(.*)|$", text)[1] or text.split("\n")[0]


def source(op: dict[str, Any]) -> str:
    """The call in Python, and its tensors in a comment: dtype, shape, layout and memory config."""
    tensors = (
        f"t{i} {t['shape']} {', '.join(code(t[key]) for key in ('dtype', 'layout', 'memory_config'))}"
        for i, t in enumerate(op["tensors"])
    )
    return f"{call(op)}  # {'; '.join(tensors)}"


def replay(device: ttnn.MeshDevice, kept: dict[str, Any], calls: int, say: Callable) -> Iterator[dict[str, Any]]:
    """Run each operation of a record, and yield its row. An operation that the library refuses has a row with `failed`.

    calls: of the shorter trace; 0 takes no times. say: gets each line before its operation runs, and after it.
    Keys of a row: op, shown, call, error (None: the record has no values), gain, equal, not_finite, us, failed.
    """
    for op in kept["ops"]:
        row = {"op": op["op"], "shown": shown(op), "call": "", "failed": None, "us": None, "error": None}
        say(f"running {row['shown']}")
        try:
            here = Replay(device, op)  # Refused: the operation or a value is none of ttnn's
            row["call"] = source(op)
            if value := here.value():
                row |= value._asdict()
            # A trace holds no operation that uploads tensors of the host.
            traced = calls and op["graph"] and all(tensor["memory_config"] for tensor in op["tensors"])
            seconds = here.seconds(calls) if traced else None
            row["us"] = 1e6 * seconds if seconds else None
        except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
            row["failed"] = f"{type(error).__name__}: {reason(error)}"[:200]
        say(line(row))
        yield row


def differs(row: dict[str, Any]) -> bool:
    """Whether the operation's values are not the record's, or it has none."""
    if row["failed"] or row["error"] is None:
        return bool(row["failed"])
    return row["error"] > ERROR or abs(row["gain"] - 1) > GAIN or row["not_finite"] > 0


def line(row: dict[str, Any]) -> str:
    if row["failed"]:
        return f"{row['shown']:58} failed: {row['failed']}"
    spent = f"{row['us']:9.1f}" if row["us"] is not None else ""
    value = f"{'':37}"
    if row["error"] is not None:
        value = f"{row['error']:9.2e} {row['gain']:8.5f} {row['equal']:7.2%} {row['not_finite']:10}"
    return f"{row['shown']:58} {value} {spent}".rstrip()


@contextmanager
def opened(kept: dict[str, Any]) -> Iterator[ttnn.MeshDevice]:
    """A mesh of the record's shape. ValueError: the machine has none."""
    rows, columns = kept["mesh"]
    try:
        chips = ttnn.get_num_devices()
    except RuntimeError as error:
        raise ValueError(f"ttnn finds no device ({reason(error)}): --system NAME replays on a golden mesh") from error
    if rows * columns > chips:
        raise ValueError(f"the record is of {rows} x {columns} chips, this machine has {chips}")
    fabric = ttnn.FabricConfig.FABRIC_1D_RING if kept["ring"] else ttnn.FabricConfig.FABRIC_1D
    if rows * columns > 1:
        ttnn.set_fabric_config(fabric)
    shape = ttnn.MeshShape(rows, columns)
    device = ttnn.open_mesh_device(shape, l1_small_size=L1_SMALL, trace_region_size=TRACE_REGION)
    try:
        yield device
    finally:
        ttnn.close_mesh_device(device)
        if rows * columns > 1:
            ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
