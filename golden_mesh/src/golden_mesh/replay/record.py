"""golden-mesh record: keeps each distinct device operation of a program with its inputs, arguments and results.

The file is torch.save's: {"mesh": rows and columns, "ring": whether collectives run on one, "system": name,
"ops": [...], "skipped": {op: reason}}. An op has its name, arguments (replay/kinds.py), tensors, results and graph: the
nodes of ttnn's graph capture, none without a device operation. A tensor has its shape, dtype, layout, memory config
(None on the host) and its values: one for all chips, a list with one for each, or None where the memory was never
written. golden-mesh replay runs the ops on any machine.
"""

import contextlib
import os
from pathlib import Path
from typing import Any, Callable, Optional

import torch
import ttnn

from golden_mesh import switches
from golden_mesh.errors import GoldenError
from golden_mesh.mesh import dispatch
from golden_mesh.mesh.arguments import on_device, tensors_in
from golden_mesh.mesh.steps import memory
from golden_mesh.outputs import at_exit, write_whole
from golden_mesh.replay import kinds
from golden_mesh.replay.kinds import to_plain

Values = Optional[torch.Tensor | list[torch.Tensor]]


def values_of(tensor: ttnn.Tensor) -> Values:
    """What each chip holds; one torch tensor where all hold the same, None where the memory was never written."""
    try:
        if on_device(tensor):
            shards = [shard.clone() for shard in memory.read(dispatch.slot_of(tensor))]
        else:
            shards = [ttnn.to_torch(shard).clone() for shard in ttnn.get_device_tensors(tensor)]
    except GoldenError:
        return None
    same = all(torch.equal(shards[0], shard) for shard in shards[1:])
    return shards[0] if same else shards


def describe(tensor: ttnn.Tensor) -> dict[str, Any]:
    padding = None
    with contextlib.suppress(GoldenError):
        padding = memory.padding(dispatch.slot_of(tensor)) if on_device(tensor) else None
    return {
        "shape": list(tensor.shape),
        "dtype": to_plain(tensor.dtype),
        "layout": to_plain(tensor.layout),
        "memory_config": to_plain(tensor.memory_config()) if on_device(tensor) else None,
        "padding": padding,  # value in the padding of its tiles, if it is known
    }


class Recording:
    """The distinct operations of a program: of equal name, arguments and tensors but for values."""

    def __init__(self):
        self.kept = {"mesh": None, "ring": False, "ops": [], "skipped": {}}
        self.seen: set[str] = set()

    def call(self, real: Callable, operation, args: tuple, kwargs: dict) -> Any:
        """Run a call of the program, and keep it if it is a new operation on device tensors."""
        name = operation.python_fully_qualified_name
        given = list({id(t): t for t in tensors_in((args, kwargs))}.values())
        device = next((t.device() for t in given if on_device(t)), None)
        moves = name in dispatch.HANDLERS or name in dispatch.TRANSPARENT
        inside = dispatch.inside() or dispatch.traces.capturing  # of another operation, or without values yet
        if device is None or moves or inside or not switches.current.values:
            return real(operation, *args, **kwargs)
        try:
            kinds.operation(name)
            arguments = self._plain(given, args, kwargs)
        except (TypeError, kinds.Refused) as error:
            self.kept["skipped"][name] = str(error)
            return real(operation, *args, **kwargs)
        tensors = [describe(t) for t in given]
        key = repr((name, arguments, tensors))
        if key in self.seen:
            return real(operation, *args, **kwargs)
        self.seen.add(key)
        values = [values_of(t) for t in given]
        self.kept["mesh"] = tuple(device.shape)
        self.kept["ring"] |= "('enum', ['ttnn._ttnn.operations.ccl.Topology', 'Ring'])" in key
        ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)  # a capture of the program itself stays whole
        try:
            answer = real(operation, *args, **kwargs)
        finally:
            nodes = ttnn.graph.end_graph_capture()
        returned = [t for t in tensors_in(answer) if on_device(t)]
        written = {}
        for i, (t, before) in enumerate(zip(given, values)):
            after = values_of(t) if t.is_allocated() else before
            if not _equal(before, after):
                written[i] = after
        self.kept["ops"].append(
            {
                "op": name,
                "arguments": arguments,
                "tensors": [tensor | {"values": v} for tensor, v in zip(tensors, values)],
                "returned": [describe(t) | {"values": values_of(t)} for t in returned],
                "written": written,  # values of the inputs that changed
                "graph": nodes if any(map(kinds.is_device_operation, nodes)) else [],
            }
        )
        return answer

    @staticmethod
    def _plain(given: list[ttnn.Tensor], args: tuple, kwargs: dict) -> list:
        places = {id(t): i for i, t in enumerate(given)}

        def own(value):
            if id(value) in places:
                return "tensor", places[id(value)]
            if isinstance(value, ttnn.MeshDevice):
                return "mesh", None
            if type(value).__name__ == "global_semaphore":
                return "semaphore", None

        return [to_plain(list(args), own), {k: to_plain(v, own) for k, v in kwargs.items()}]


def _equal(a: Values, b: Values) -> bool:
    if a is None or b is None:
        return a is b
    pairs = zip(*(x if isinstance(x, list) else [x] for x in (a, b)))
    return isinstance(a, list) == isinstance(b, list) and all(torch.equal(*pair) for pair in pairs)


def start(path: str, says: bool = True) -> None:
    """Record this process's operations, and write the file at exit. says: print what the file holds.

    A program without device operations, such as a child process, writes no file.
    """
    record, real = Recording(), dispatch.OPERATION.__call__
    dispatch.OPERATION.__call__ = lambda operation, *args, **kwargs: record.call(real, operation, args, kwargs)

    def write() -> None:
        if record.kept["ops"]:
            kept = record.kept | {"system": os.environ.get("GOLDEN_MESH")}
            write_whole(Path(path), lambda part: torch.save(kept, part))
            size = os.path.getsize(path) / 1e6
            if says:
                print(f"{len(record.kept['ops'])} distinct operations in {path}, {size:.1f} MB")
            for name, reason in record.kept["skipped"].items():
                print(f"not recorded: {name}: {reason}")

    at_exit(write)
