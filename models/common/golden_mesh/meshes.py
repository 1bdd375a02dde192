"""Which meshes are open. ttnn lets a program use one that is closed, and crashes or gives zeros."""

from typing import Iterable, NamedTuple

import ttnn

from models.common.golden_mesh.errors import GoldenError


class _Root(NamedTuple):
    """A mesh that was opened, not cut from another."""

    chips: frozenset[int]
    trace_region: int  # bytes


_roots: dict[int, _Root] = {}  # by mesh id; ttnn counts them up and gives none twice
_closed: set[int] = set()


def opened(mesh: ttnn.MeshDevice, trace_region: int) -> None:
    _roots[mesh.id()] = _Root(frozenset(mesh.get_device_ids()), trace_region)


def closed(mesh: ttnn.MeshDevice) -> list[int]:
    """The chips that no mesh holds any more; none if it was cut from a mesh that is still open."""
    _closed.add(mesh.id())
    root = _roots.pop(mesh.id(), None)
    return sorted(root.chips) if root else []


def check_open(mesh: ttnn.MeshDevice) -> None:
    """GoldenError unless the mesh, and the one that it was cut from, are open."""
    if not is_open(mesh):
        raise GoldenError(f"{mesh} is closed: what is on it is gone, and nothing can be put there")


def check_all_open(arguments: Iterable) -> None:
    """check_open, of the meshes among the arguments of a call."""
    for value in arguments:
        if isinstance(value, ttnn.MeshDevice):
            check_open(value)


def is_open(mesh: ttnn.MeshDevice) -> bool:
    return mesh.id() not in _closed and any(number <= mesh.id() for number, _ in _holders(mesh))


def has_trace_region(mesh: ttnn.MeshDevice) -> bool:
    return any(root.trace_region for _, root in _holders(mesh))


def _holders(mesh: ttnn.MeshDevice) -> list[tuple[int, _Root]]:
    """The open roots that have all of its chips: one or none."""
    chips = set(mesh.get_device_ids())
    return [(number, root) for number, root in _roots.items() if chips <= root.chips]
