"""The golden mesh: the real ttnn library on a mock N150, N300 or T3K, with torch golden functions for the values.

    from models.common import golden_mesh
    golden_mesh.activate("N300")     # before the first `import ttnn` of the process
    import ttnn                      # from here on a program cannot tell, except by its speed

See README.md beside this file.
"""

import contextlib
import importlib
import os
import sys
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

# What libraries read of the environment when they are loaded, where the user has not said otherwise.
SETTINGS = {
    # torch's threads sleep when they wait for each other. Left to spin, they keep the one that is waited for from its
    # core as soon as another process is busy: decode was ten times slower beside one.
    "OMP_WAIT_POLICY": "passive",
    "OMPI_MCA_btl": "self",  # Open MPI, which ttnn starts, would leave 16 MB of shared memory behind for each process
    "TT_METAL_SHM_TRACKING_DISABLED": "1",  # and ttnn its statistics of each chip's memory
    "TT_LOGGER_LEVEL": "error",
    "LOGURU_LEVEL": "ERROR",
}


def activate(system: str) -> None:
    """Make this process's ttnn a golden mesh of `system` ("N150", "N300" or "T3K").

    Before the first import of torch, too, if its threads are to sleep while they wait. Everything that the libraries
    write (kernel cache, logs) goes to a temporary directory of this process, removed at exit. GoldenMeshError: unknown
    system, ttnn not installed or already imported, another system active, or no room for temporary files.
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
    directory = _prepare(system)
    importlib.import_module("models.common.golden_mesh.install").install(directory)
    _active = system


def _prepare(system: str) -> Path:
    """Make this process's directory, and tell the libraries where and how to run. Returns the directory."""
    from models.common.golden_mesh import scratch
    from models.common.golden_mesh.overlay import make_environment

    inherited = os.path.dirname(
        os.environ.get("TT_METAL_RUNTIME_ROOT", "")
    )  # of a golden mesh that started this process
    directory = scratch.make()
    here = scratch.shell_safe(directory)
    try:
        os.environ.update(make_environment(SYSTEMS[system], here))
    except OSError as error:
        raise scratch.unusable(error) from error
    if "torch._inductor.runtime.cache_dir_utils" in sys.modules:  # transformers was imported, so torch has made one
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        scratch.remove_at_exit_if_empty(default_cache_dir())
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "HOME"):  # without a HOME the import of ttnn crashes
        if os.environ.get(name, inherited) == inherited:
            os.environ[name] = f"{here}"
    return directory


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
    from models.common.golden_mesh.steps import memory

    return memory.host_bytes()
