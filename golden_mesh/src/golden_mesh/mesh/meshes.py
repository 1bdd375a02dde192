"""Which meshes are open. ttnn lets a program use a closed mesh, and then crashes or returns zeros."""

from typing import Iterable

import ttnn

from golden_mesh.errors import GoldenError

# The chips of each mesh that was opened, submeshes left out. By mesh id, which ttnn never reuses.
_roots: dict[int, frozenset[int]] = {}
_closed: set[int] = set()


def any_opened() -> bool:
    """Return whether this process has opened a mesh or device, closed or not."""
    return bool(_roots or _closed)


def opened(mesh: ttnn.MeshDevice) -> None:
    _roots[mesh.id()] = frozenset(mesh.get_device_ids())


def closed(mesh: ttnn.MeshDevice) -> list[int]:
    """Return the chips that no open mesh holds any more. The result is empty while the parent mesh is open."""
    _closed.add(mesh.id())
    return sorted(_roots.pop(mesh.id(), ()))


def check_open(mesh: ttnn.MeshDevice) -> None:
    """Raise GoldenError unless the mesh and its parent are open."""
    if not is_open(mesh):
        raise GoldenError(f"{mesh} is closed: what is on it is gone, and nothing can be put there")


def check_all_open(arguments: Iterable) -> None:
    """Check the meshes among the arguments of a call."""
    for value in arguments:
        if isinstance(value, ttnn.MeshDevice):
            check_open(value)


def is_open(mesh: ttnn.MeshDevice) -> bool:
    """Whether neither the mesh nor the mesh that it is a part of was closed."""
    chips = set(mesh.get_device_ids())
    return mesh.id() not in _closed and any(number <= mesh.id() and chips <= held for number, held in _roots.items())
