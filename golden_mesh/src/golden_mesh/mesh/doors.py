"""Functions and methods of the library that take or return tensors and are not registered operations.

Registered operations come through dispatch.call. Of these functions each reads and writes no values (PLAIN), has a
stand-in (tables in mesh/transfer.py and start/install.py), or refuses tensors on a device.
"""

import functools
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, NamedTuple

import ttnn

from golden_mesh import switches
from golden_mesh.errors import MissingGolden
from golden_mesh.mesh.arguments import on_device, tensors_in
from golden_mesh.versions import lacking

StandIn = Callable  # (the library's function, its arguments...) -> its result

# Read a tensor's description only. Names below ttnn._ttnn.
PLAIN = frozenset(
    """
    core.get_memory_config multi_device.get_device_tensors multi_device.combine_device_tensors
    tensor.get_optimal_worker_cores_for_sharded_tensor program_descriptor.cb_descriptor_from_sharded_tensor
    operations.ccl.get_usable_topology operations.ccl.reduce_to_root_tensor_spec
    operations.point_to_point.p2p_compute_intermediate_tensor_spec operations.matmul.create_matmul_attributes
    operations.data_movement._is_tile_native_fold_supported operations.experimental.compute_address_slots
    operations.reduction._sampling_topk_would_route_to_large_indices
    """.split()
)
refused: list[str] = []  # doors that refuse tensors on a device
_TAKES_OR_GIVES_TENSORS = re.compile(r"\btensor\.Tensor\b")


class Door(NamedTuple):
    name: str  # below ttnn._ttnn, as "multi_device.get_device_tensors"
    owner: Any  # the module or class that has it
    function: Callable


def doors() -> Iterator[Door]:
    """Yield all functions and methods below ttnn._ttnn, without ttnn.Tensor's methods and classes of operators."""
    seen = {id(ttnn.Tensor)} | {id(type(op.function)) for op in ttnn.decorators.REGISTERED_OPERATIONS}

    def walk(owner, path):
        seen.add(id(owner))
        for name, value in list(vars(owner).items()):
            if id(value) in seen or name.startswith("__"):
                continue
            if isinstance(value, (ModuleType, type)):
                home = value.__name__ if isinstance(value, ModuleType) else value.__module__
                if home.startswith("ttnn._ttnn"):
                    yield from walk(value, f"{path}{name}.")
            elif callable(value):
                yield Door(path + name, owner, value)

    return walk(ttnn._ttnn, "")


def takes_or_gives_tensors(door: Door) -> bool:
    declared = getattr(door.function, "__nb_signature__", ())
    return any(_TAKES_OR_GIVES_TENSORS.search(text) for text, *_ in declared)


def install(stand_ins: dict[str, StandIn]) -> None:
    """Put each stand-in in place of its function. Functions without a stand-in get a refusal."""
    operations = {id(op.function): op for op in ttnn.decorators.REGISTERED_OPERATIONS}
    replaced: dict[int, Callable] = {}
    missing_names = set(stand_ins)
    for door in doors():
        missing_names.discard(door.name)
        if id(door.function) in operations:
            replaced[id(door.function)] = operations[id(door.function)]
            continue
        if door.name in stand_ins:
            function = standing_in(door.function, stand_ins[door.name])
        elif takes_or_gives_tensors(door) and door.name not in PLAIN:
            refused.append(door.name)
            function = refusing(door.function, f"ttnn._ttnn.{door.name}")
        else:
            continue
        replaced[id(door.function)] = function
        if isinstance(door.owner, type):
            is_static = type(door.function).__name__ == "nb_func"
            setattr(door.owner, door.name.split(".")[-1], staticmethod(function) if is_static else function)
    for name in missing_names:
        lacking[f"ttnn._ttnn.{name}"] = "nothing: no program can call it"
    for module in _modules_of_ttnn():
        for name, value in list(vars(module).items()):
            if id(value) in replaced:
                setattr(module, name, replaced[id(value)])


def _modules_of_ttnn() -> list[ModuleType]:
    """Return ttnn's modules: those below the name ttnn, and those of its files. ttnn 0.77.0 loads one as `moreh`."""
    folder = f"{Path(ttnn.__file__).parent}{os.sep}"
    return [
        module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "ttnn" or (getattr(module, "__file__", None) or "").startswith(folder)
    ]


def standing_in(real: Callable, stand_in: StandIn) -> Callable:
    @functools.wraps(real)
    def function(*args, **kwargs):
        return stand_in(real, *args, **kwargs)

    return function


def for_values(stand_in: StandIn) -> StandIn:
    """The stand-in, but in a block without values the library's function alone."""
    return lambda real, *args, **kwargs: (
        stand_in(real, *args, **kwargs) if switches.current.values else real(*args, **kwargs)
    )


def refusing(real: Callable, name: str) -> Callable:
    """Wrap `real`. It raises MissingGolden if it takes or returns a tensor on a device."""

    @functools.wraps(real)
    def function(*args, **kwargs):
        _refuse(name, (args, kwargs))
        result = real(*args, **kwargs)
        _refuse(name, result)
        return result

    return function


def _refuse(name: str, values: Any) -> None:
    if switches.current.values and any(on_device(tensor) for tensor in tensors_in(values)):
        raise MissingGolden(name)
