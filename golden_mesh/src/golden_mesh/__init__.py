"""The golden mesh: the real ttnn library on a mock machine, with torch golden functions for the values (README.md)."""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import os
import sys
from pathlib import Path

from golden_mesh import sections, switches
from golden_mesh.errors import GoldenError, GoldenMeshError, MissingGolden, TraceError
from golden_mesh.hazards import HazardError, HazardWarning
from golden_mesh.registry import collective, golden
from golden_mesh.start import scratch
from golden_mesh.start.overlay import make_environment, ttnn_package
from golden_mesh.start.systems import SYSTEMS
from golden_mesh.versions import check_version

__all__ = [
    "SYSTEMS", "GoldenError", "GoldenMeshError", "HazardError", "HazardWarning", "MissingGolden", "TraceError",
    "activate", "captured", "collective", "exact_sums", "golden", "host_bytes", "live_buffers", "reference",
    "without_values",
]  # fmt: skip

_active: str | None = None

# Environment variables that libraries read when they are loaded. A user's own values stay.
SETTINGS = {
    # Waiting threads of torch sleep. Spinning ones make decode ten times slower beside a busy process.
    "OMP_WAIT_POLICY": "passive",
    "OMPI_MCA_btl": "self",  # keeps Open MPI from leaving 16 MB of shared memory behind
    "TT_METAL_SHM_TRACKING_DISABLED": "1",  # keeps ttnn from leaving its memory statistics behind
    "TT_LOGGER_LEVEL": "error",
    "LOGURU_LEVEL": "ERROR",
}


def activate(system: str, **changes) -> None:
    """Make this process's ttnn a golden mesh of `system`, a key of SYSTEMS.

    Call it before the first import of torch too: torch's threads then sleep while they wait. Files of the libraries
    (kernel cache, logs) go to a temporary directory of this process, which is removed at exit.

    changes: of switches (switches.py), as hazards="warn". The others stay as they are.
    GoldenMeshError: the system or a value of a switch is unknown, or another system is active; ttnn is not installed,
    too old or already imported; there is no room for temporary files.
    """
    global _active
    if any(getattr(finder, "activates", False) for finder in sys.meta_path):
        importlib.import_module("ttnn")  # started by the launcher, whose options count
    else:
        switches.choose(**changes)
    if system == _active:
        return
    if system not in SYSTEMS:
        raise GoldenMeshError(f"the golden mesh knows {', '.join(SYSTEMS)}; got {system!r}")
    if _active:
        raise GoldenMeshError(f"this process is a golden {_active}; start another process for a {system}")
    if "ttnn" in sys.modules:
        raise GoldenMeshError("ttnn is imported already: call golden_mesh.activate() before the first import of ttnn")
    ttnn_package()
    check_version()
    directory = _prepare(system)
    _keep_freed_memory()
    collects = gc.isenabled()
    # torch and ttnn make a million objects while they load, which the collector would walk again and again
    gc.disable()
    try:
        importlib.import_module("golden_mesh.start.install").install(directory)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # else ttnn lists objects as leaked
        if collects:
            gc.enable()
    _active = system
    if switches.current.adversarial is not None:
        importlib.import_module("golden_mesh.mesh.adversary").start(switches.current.adversarial)


def _keep_freed_memory() -> None:
    """Let glibc keep what torch frees. Else the kernel clears each new value of a MB: a fifth of a prefill."""
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    for option, size in ((trim_threshold, 512 << 20), (mmap_threshold, 32 << 20)):
        ctypes.CDLL(None).mallopt(option, size)


def _prepare(system: str) -> Path:
    """Make this process's directory and set the environment of the libraries. Returns the directory."""
    inherited = os.path.dirname(os.environ.get("TT_METAL_RUNTIME_ROOT", ""))  # of a golden mesh that started this one
    directory = scratch.make()
    here = scratch.shell_safe(directory)
    try:
        os.environ.update(make_environment(SYSTEMS[system], here))
        os.environ.pop("TT_METAL_SIMULATOR", None)  # ttnn would open the simulator that it names
    except OSError as error:
        raise scratch.unusable(error) from error
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "HOME"):  # without a HOME the import of ttnn crashes
        if os.environ.get(name, inherited) == inherited:
            os.environ[name] = f"{here}"
    return directory


exact_sums = functools.partial(switches.use, sums="exact")
without_values = functools.partial(switches.use, values=False)


@contextlib.contextmanager
def captured(name: str):
    """Name the device operations of the block for the lab's `perf run`, which then prints named blocks only.

    Entries of one name add up. Else the block runs as it is.
    """
    sections.times[name] += 1
    sections.entered.append(name)
    try:
        yield
    finally:
        sections.entered.pop()


def reference(module):
    """Keep the values of a torch module that runs inside the block, for `golden-mesh compare`.

    Its report then names the value that each later operation gives, and the operations at which the program leaves the
    module. Without `golden-mesh compare` the block runs as it is.
    """
    compare = sys.modules.get("golden_mesh.compare.comparison")
    if compare is None or compare.current is None:
        return contextlib.nullcontext()
    from golden_mesh.compare.torch_values import watching

    return watching(module, compare.current.reference)


def host_bytes() -> int:
    """Bytes of host memory that the values on all chips take."""
    from golden_mesh.mesh.steps import memory

    return memory.host_bytes()


def live_buffers() -> list:
    """The buffers that live on the chips (buffers.Buffer): line of the program, operation, bytes a core, cores."""
    from golden_mesh.mesh import buffers

    return buffers.live_buffers()
