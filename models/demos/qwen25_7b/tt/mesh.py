"""Choose the backend of ttnn before it is imported; open a machine's chips with the fabric that collectives need."""

import os
import signal
import tempfile
import threading
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Optional

from loguru import logger

from ..errors import shown
from ..plans.machines import BACKENDS, TTNN_VERSION, MeshError, Split, machine, ttnn_version

if TYPE_CHECKING:
    import ttnn

SIMULATOR = "TT_METAL_SIMULATOR"  # the environment variable that names a simulator to ttnn
SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP  # with handlers of Python they end a program that has a mesh
TEMPORARY_BYTES = 1 << 20  # that a run must be able to write to the temporary directory
L1_SMALL_BYTES = 16 << 10  # a core's, for collectives' semaphores: 128 bytes a reduce-scatter
TRACE_REGION_BYTES = 128 << 20  # a chip's DRAM for captured command streams

# Threads of torch that spin while they wait make the golden mesh ten times slower beside another
# busy process. torch reads this when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def select_backend(choice: str, mesh: str) -> str:
    """Choose the backend of ttnn and return it: "device" or "golden". Call it before ttnn is imported.

    choice: "device", "golden" or "auto". The device is silicon, or the simulator that
    TT_METAL_SIMULATOR names. With "auto" it is the device where there is one, else "golden".
    mesh: the machine that a golden mesh stands for.
    MeshError: there is no such choice, device or ttnn.
    """
    if choice not in BACKENDS:
        raise MeshError(f"backend must be one of {', '.join(BACKENDS)}; got {shown(choice)}")
    _check_ttnn()
    if choice == "golden" or simulator() is None:
        os.environ.pop(SIMULATOR, None)  # ttnn opens what it names, and takes an empty name for one
    if choice == "auto":
        choice = "device" if device_present() else "golden"
    if choice == "device":
        _check_device()
    _check_temporary_directory()
    if choice == "golden":
        _activate_golden_mesh(machine(mesh).name)
    return choice


def _activate_golden_mesh(system: str) -> None:
    try:
        import golden_mesh
    except ModuleNotFoundError as error:
        raise MeshError(
            "--backend golden: golden_mesh is not installed for this Python: pip install ./golden_mesh"
        ) from error
    try:
        golden_mesh.activate(system)
    except golden_mesh.GoldenMeshError as error:
        raise MeshError(f"{error}") from error


def backend_name(backend: str) -> str:
    """What is below ttnn, in words for a table."""
    return "golden mesh" if backend == "golden" else "simulator" if simulator() else "silicon"


def describe_backend(backend: str) -> str:
    """`backend_name`, and what its times are worth."""
    name = backend_name(backend)
    values = {"golden mesh": "torch values, no device", "simulator": "bit-exact"}.get(name)
    return f"{name} ({values}: times say nothing about hardware)" if values else name


def simulator() -> Optional[str]:
    """The simulator that the environment names to ttnn. An empty name is none."""
    return os.environ.get(SIMULATOR) or None


def traces_available() -> bool:
    """Slow dispatch has no traces."""
    return not os.environ.get("TT_METAL_SLOW_DISPATCH_MODE")


def command_queues() -> int:
    """The command queues that a mesh can have: a second one for transfers, except with slow dispatch."""
    return 2 if traces_available() else 1


@contextmanager
def open_mesh(split: Split, *, worker_dispatch: bool = False, queues: int = 1) -> Iterator["ttnn.MeshDevice"]:
    """The machine's chips as one mesh device, which is closed at the end.

    worker_dispatch: send commands from worker cores. This leaves a grid of 8x7.
    queues: command queues, at most command_queues().
    MeshError: the machine has fewer chips.
    """
    import ttnn

    kind = split.kind
    available = _available_chips()
    if available < kind.chips:
        raise MeshError(f"{kind.name} has {kind.chips} chips, this machine has {available}: choose a smaller --mesh")
    device = None
    try:
        if kind.chips > 1:
            _set_fabric(split)
        with shielded():  # a mesh that is half open cannot be closed
            device = ttnn.open_mesh_device(
                ttnn.MeshShape(*kind.shape),
                l1_small_size=L1_SMALL_BYTES,
                trace_region_size=TRACE_REGION_BYTES,
                num_command_queues=queues,
                dispatch_core_config=ttnn.DispatchCoreConfig(ttnn.DispatchCoreType.WORKER) if worker_dispatch else None,
            )
        yield device
    finally:
        with shielded():
            if device is not None:
                ttnn.close_mesh_device(device)
            if kind.chips > 1:
                ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


@contextmanager
def open_replicas(split: Split, *, worker_dispatch: bool = False, queues: int = 1) -> Iterator[list["ttnn.MeshDevice"]]:
    """The machine's chips as dp mesh devices of (1, tp), each for a replica of the model."""
    import ttnn

    with open_mesh(split, worker_dispatch=worker_dispatch, queues=queues) as whole:
        rows = []
        try:
            if split.dp > 1:
                with shielded():
                    rows = whole.create_submeshes(ttnn.MeshShape(1, split.tp))
            yield rows or [whole]
        finally:
            with shielded():
                for row in rows:  # before their parent
                    ttnn.close_mesh_device(row)


@contextmanager
def shielded() -> Iterator[None]:
    """The block runs to its end. The first signal that arrives meanwhile is raised again after it."""
    arrived: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {n: signal.getsignal(n) for n in SIGNALS if callable(signal.getsignal(n))}
        for number in before:
            signal.signal(number, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def _set_fabric(split: Split) -> None:
    """Set the fabric before the mesh is opened: a ring where a replica is one, else a line. Collectives take their
    topology from it (row_topology in tt/placement.py).

    With a ring's fabric the library lays the chips of a Galaxy out as 8x4 only if the cables of its torus are there,
    else in one line (32x1).
    """
    import ttnn

    if split.kind.is_ring(split.tp):
        ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D_RING)
        shape = split.kind.shape
        if shape[0] == 1:
            return
        from ttnn._ttnn.multi_device import SystemMeshDescriptor

        if sorted(SystemMeshDescriptor().shape()) == sorted(shape):
            return
        ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)


def _available_chips() -> int:
    """How many chips ttnn finds. MeshError if it cannot look: this call is the first that touches them."""
    import ttnn

    try:
        return ttnn.GetNumAvailableDevices()
    except RuntimeError as error:
        # without its place in ttnn's source and the C++ stack
        reason = f"{error}".split("\ninfo:\n")[-1].split("\nbacktrace:")[0].strip()
        raise MeshError(
            f"ttnn finds no chips to open ({reason}): check the card (tt-smi) and its driver, or what "
            f"{SIMULATOR} names, or take --backend golden"
        ) from error


def device_present() -> bool:
    return simulator() is not None or any(Path("/dev/tenstorrent").glob("*"))


def _check_device() -> None:
    """MeshError if there is nothing that ttnn could open. ttnn itself says so on a page, or crashes."""
    if not device_present():
        raise MeshError(
            f"--backend device: there is no card (nothing in /dev/tenstorrent) and {SIMULATOR} names no simulator: "
            f"take --backend golden"
        )
    if simulator() and not os.path.exists(simulator()):
        raise MeshError(
            f"{SIMULATOR} is {shown(simulator())}, and there is no such file: name a simulator, or unset it"
        )


def _check_temporary_directory() -> None:
    """MeshError if the temporary directory takes no files. Open MPI, below ttnn, would crash without a message."""
    directory = os.environ.get("TMPDIR") or "/tmp"
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(TEMPORARY_BYTES))
    except OSError as error:
        raise MeshError(
            f"no files can be written to {directory} ({error.strerror}): set TMPDIR to another directory"
        ) from error


def _check_ttnn() -> None:
    """MeshError without ttnn. Another version than this port was tested with is a line on stderr."""
    if find_spec("ttnn") is None:
        raise MeshError(
            f"ttnn is not installed for this Python: run through `make`, or pip install ttnn=={TTNN_VERSION} "
            "under CPython 3.10 or 3.12"
        )
    found = ttnn_version() or "of unknown version"
    if found != TTNN_VERSION:
        logger.warning(f"ttnn {found} is installed, this port was tested with {TTNN_VERSION}; it needs 0.81 or later")
