"""Opening an N150, an N300 or a T3K, and choosing what is below ttnn.

`select_backend` decides before ttnn is imported; `open_mesh` opens the chips with the fabric that collectives need.
"""

import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Iterator, Optional

from models.common.errors import UserError
from models.common.interrupt import shielded

TTNN_VERSION = "0.81.1"
SIMULATOR = "TT_METAL_SIMULATOR"  # the environment variable that names a simulator to ttnn
TEMPORARY_BYTES = 1 << 20  # that a run must be able to write to the temporary directory
L1_SMALL_BYTES = 16 << 10  # of each core, for semaphores that collectives keep: 128 bytes a compiled reduce-scatter
TRACE_REGION_BYTES = 64 << 20  # of each chip's DRAM, for captured command streams


class MeshError(UserError):
    """A machine or mesh that was asked for and is not there."""


@dataclass(frozen=True)
class MachineKind:
    name: str
    chips: int
    shape: tuple[int, int]  # rows, columns of the mesh that is opened; T3K's 1x8 is the ring around its 2x4 chips


_KINDS = (MachineKind("N150", 1, (1, 1)), MachineKind("N300", 2, (1, 2)), MachineKind("T3K", 8, (1, 8)))
MACHINES = {kind.name: kind for kind in _KINDS}

# Threads of torch that spin while they wait for each other make the golden mesh ten times slower as soon as another
# process is busy. torch reads this when it is loaded, which a program may do before it chooses a backend.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def machine(name: str) -> MachineKind:
    """The machine called `name`, in any case."""
    if name.upper() not in MACHINES:
        raise MeshError(f"--mesh knows {', '.join(MACHINES)}; got {name!r}")
    return MACHINES[name.upper()]


def select_backend(choice: str, mesh: str) -> str:
    """Settle what is below ttnn, "device" or "golden", before ttnn is imported; returns which.

    choice: "device" (silicon, or the simulator that TT_METAL_SIMULATOR names), "golden", or "auto": the device where
    there is one. mesh: the machine that a golden mesh stands for.
    """
    _check_ttnn()
    if choice == "auto":
        choice = "device" if _device_present() else "golden"
    if choice == "golden":
        from models.common import golden_mesh

        golden_mesh.activate(machine(mesh).name)
    else:
        _check_device()
        _check_temporary_directory()
    return choice


def describe_backend(backend: str) -> str:
    """What ran below ttnn, for whoever reads a number."""
    if backend == "golden":
        return "golden mesh (torch values, no device: times say nothing about hardware)"
    if SIMULATOR in os.environ:
        return "simulator (bit-exact, times say nothing about hardware)"
    return "silicon"


@contextmanager
def host_alone(backend: str) -> Iterator[None]:
    """Inside, a golden mesh computes no values, so that what a call takes is the host's work for a device."""
    if backend != "golden":
        yield
        return
    from models.common import golden_mesh

    with golden_mesh.without_values():
        yield


def chips_in_host_memory(backend: str) -> int:
    """Bytes of host memory that stand for what the chips hold: a golden mesh's values; 0 below which there is a device."""
    if backend != "golden":
        return 0
    from models.common import golden_mesh

    return golden_mesh.host_bytes()


def traces_available() -> bool:
    """Slow dispatch has no traces."""
    return not os.environ.get("TT_METAL_SLOW_DISPATCH_MODE")


def command_queues(worker_dispatch: bool = False) -> int:
    """The command queues that a mesh can have: a second one for transfers, where there is room for it.

    Slow dispatch has no queues to speak of; the one row of worker cores that dispatches for an N300 or T3K holds one.
    """
    return 2 if traces_available() and not worker_dispatch else 1


@contextmanager
def open_mesh(
    mesh: str, *, shape: Optional[tuple[int, int]] = None, worker_dispatch: bool = False, queues: int = 1
) -> Iterator["ttnn.MeshDevice"]:
    """The machine's chips as one mesh device, closed again on the way out.

    shape: (rows, columns), a row being the chips that share a model; default: all chips in one row.
    worker_dispatch: send commands from worker cores, which leaves a grid of 8x7, instead of ttnn's choice.
    queues: command queues, at most command_queues().
    """
    import ttnn

    kind = machine(mesh)
    there = _chips_here()
    if there < kind.chips:
        raise MeshError(f"{kind.name} has {kind.chips} chips, this machine has {there}: choose a smaller --mesh")
    rows, columns = shape or kind.shape
    if not 1 <= queues <= command_queues(worker_dispatch):
        raise MeshError(f"this mesh can have {command_queues(worker_dispatch)} command queue(s), got {queues}")
    if rows * columns > kind.chips:
        raise MeshError(f"{kind.name} has {kind.chips} chips, too few for a mesh of {rows}x{columns}")
    if kind.chips > 1:
        ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    device = None
    try:
        with shielded():  # a mesh that is half open cannot be closed
            device = ttnn.open_mesh_device(
                ttnn.MeshShape(rows, columns),
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


def check_tp(mesh: str, tp: int) -> None:
    """MeshError unless `tp` chips a replica use up the machine's chips."""
    kind = machine(mesh)
    if tp < 1 or kind.chips % tp:
        raise MeshError(f"{kind.name} has {kind.chips} chips; tp must divide {kind.chips}, got {tp}")


@contextmanager
def open_replicas(
    mesh: str, tp: int, *, worker_dispatch: bool = False, queues: int = 1
) -> Iterator[list["ttnn.MeshDevice"]]:
    """The machine's chips as chips / tp mesh devices of (1, tp), each for a replica of the model."""
    import ttnn

    check_tp(mesh, tp)
    with open_mesh(mesh, worker_dispatch=worker_dispatch, queues=queues) as whole:
        if tp == machine(mesh).chips:
            yield [whole]
            return
        rows = []
        try:
            with shielded():
                rows = whole.create_submeshes(ttnn.MeshShape(1, tp))
            yield rows
        finally:
            with shielded():
                for row in rows:  # before their parent
                    ttnn.close_mesh_device(row)


def _chips_here() -> int:
    """How many chips ttnn finds. MeshError if it cannot look: this call is the first that touches them."""
    import ttnn

    try:
        return ttnn.GetNumAvailableDevices()
    except RuntimeError as error:
        raise MeshError(
            f"ttnn finds no chips to open ({_reason(error)}): check the card (tt-smi) and its driver, or what {SIMULATOR} "
            f"names, or take --backend golden"
        ) from error


def _reason(error: RuntimeError) -> str:
    """What ttnn has to say, without the place in its source before it and the stack of C++ functions behind it."""
    return f"{error}".split("\ninfo:\n")[-1].split("\nbacktrace:")[0].strip()


def _device_present() -> bool:
    return SIMULATOR in os.environ or any(Path("/dev/tenstorrent").glob("*"))


def _check_device() -> None:
    """MeshError if there is plainly nothing that ttnn could open: it says so itself on a page, or crashes."""
    if not _device_present():
        raise MeshError(
            f"--backend device: there is no card (nothing in /dev/tenstorrent) and {SIMULATOR} names no simulator: "
            f"take --backend golden"
        )
    if SIMULATOR in os.environ and not os.path.exists(os.environ[SIMULATOR]):
        raise MeshError(
            f"{SIMULATOR} is {os.environ[SIMULATOR]!r}, and there is no such file: name a simulator, or unset it"
        )


def _check_temporary_directory() -> None:
    """MeshError if files cannot be written where Open MPI, below ttnn, writes its own: it crashes without a word."""
    directory = next((os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)), "/tmp")
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(TEMPORARY_BYTES))
    except OSError as error:
        raise MeshError(
            f"no files can be written to {directory}, the temporary directory ({error.strerror}): set TMPDIR to another"
        ) from error


def _check_ttnn() -> None:
    try:
        found = version("ttnn")
    except PackageNotFoundError:
        raise MeshError(
            f"ttnn is not installed for this Python: run through `make`, or pip install ttnn=={TTNN_VERSION} "
            "under CPython 3.10 or 3.12"
        ) from None
    if found != TTNN_VERSION:
        raise MeshError(
            f"ttnn {found} is installed, this port was made for {TTNN_VERSION}: pip install ttnn=={TTNN_VERSION}"
        )
