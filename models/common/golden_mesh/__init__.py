"""The golden mesh: the real ttnn library on a mock N150, N300 or T3K, with torch golden functions for the values.

    from models.common import golden_mesh
    golden_mesh.activate("N300")     # before the first `import ttnn` of the process
    import ttnn                      # from here on a program cannot tell, except by its speed

See README.md beside this file.
"""

import atexit
import contextlib
import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from models.common.golden_mesh.errors import GoldenError, GoldenMeshError, MissingGolden, TraceError
from models.common.golden_mesh.systems import SYSTEMS

__all__ = [
    "SYSTEMS",
    "GoldenError",
    "GoldenMeshError",
    "MissingGolden",
    "TraceError",
    "activate",
    "host_bytes",
    "without_values",
]

_active: str | None = None


def activate(system: str) -> None:
    """Make this process's ttnn a golden mesh of `system` ("N150", "N300" or "T3K").

    Everything that ttnn writes (kernel cache, logs) goes to a temporary directory of this process, removed at exit.
    GoldenMeshError: unknown system, ttnn not installed or already imported, or another system active.
    """
    global _active
    if system == _active:
        return
    if system not in SYSTEMS:
        raise GoldenMeshError(f"the golden mesh knows {', '.join(SYSTEMS)}; got {system!r}")
    if _active:
        raise GoldenMeshError(f"this process is a golden {_active}; start another process for a {system}")
    if "ttnn" in sys.modules:
        raise GoldenMeshError("ttnn is imported already: call golden_mesh.activate() before the first import of ttnn")
    from models.common.golden_mesh.overlay import make_environment

    directory = Path(tempfile.mkdtemp(prefix="golden-mesh-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.environ.update(make_environment(SYSTEMS[system], directory))
    os.environ.setdefault("HOME", f"{directory}")  # without one the import of ttnn crashes
    importlib.import_module("models.common.golden_mesh.install").install()
    _active = system


@contextlib.contextmanager
def without_values():
    """Inside, no values are computed: what a call takes is Python's and the real library's time, as with a device.

    Nothing that was made inside has a value, so do not read it afterwards.
    """
    from models.common.golden_mesh import dispatch

    dispatch.computing = False
    try:
        yield
    finally:
        dispatch.computing = True


def host_bytes() -> int:
    """Bytes of host memory that the values on all chips take."""
    from models.common.golden_mesh.dispatch import memory

    return memory.host_bytes()
