"""golden-mesh --doctor: the installed ttnn, and the parts of it that the golden mesh does not know."""

import platform
import textwrap
from collections.abc import Sequence
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import golden_mesh
from golden_mesh.hazards.differs import in_programs
from golden_mesh.versions import NEWEST, OLDEST, check_version

WIDTH = 100  # columns of the report


def report(programs: Sequence[Path] = ()) -> list[str]:
    """Return lines that describe this installation, and the operations of the programs that differ from a chip's.

    Activates a golden N150, so call it in a separate process.
    """
    found = check_version()
    golden_mesh.activate("N150")
    lines = [
        f"golden mesh {_own_version()}, tested with ttnn {OLDEST} to {NEWEST}",
        f"ttnn {found}, Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        f"systems: {', '.join(golden_mesh.SYSTEMS)}",
    ]
    from golden_mesh.hazards import HAZARDS
    from golden_mesh.mesh.doors import refused

    lines += _operations()
    lines += _listing("functions that refuse tensors on a device", refused)
    lines += _listing("calls that a chip gets wrong (HAZARDS.md)", HAZARDS)
    if programs:
        found = in_programs(list(programs))
        lines += [f"operations of the programs that are not like a chip's here: {len(found)}", *found]
    return lines


def _own_version() -> str:
    try:
        return version("golden-mesh")
    except PackageNotFoundError:
        return "(not installed)"


def _operations() -> list[str]:
    import ttnn

    from golden_mesh import versions
    from golden_mesh.mesh import dispatch
    from golden_mesh.registry import GOLDENS

    there = {op.python_fully_qualified_name for op in ttnn.decorators.REGISTERED_OPERATIONS}
    known = GOLDENS.keys() | dispatch.HANDLERS.keys() | dispatch.TRANSPARENT
    missing = [
        name for name in GOLDENS if reduce(lambda of, part: getattr(of, part, None), name.split(".")[1:], ttnn) is None
    ]
    return [
        f"operations: {len(there)}, with values: {len(there & known)}",
        *_listing("operations without a golden (a call on device tensors is refused)", there - known),
        *_listing("goldens of operations that this ttnn lacks", missing),
        *_listing("lacking in this ttnn", [f"{k}: {v}" for k, v in versions.lacking.items()]),
    ]


def _listing(title: str, names) -> list[str]:
    names = sorted(names)
    text = textwrap.wrap(", ".join(names), WIDTH, break_long_words=False)
    return [f"{title}: {len(names)}", *(f"    {line}" for line in text)]
