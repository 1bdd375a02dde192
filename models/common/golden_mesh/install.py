"""Puts the golden mesh between a program and ttnn: nothing else replaces anything of ttnn's."""

import os
from pathlib import Path

import ttnn

from models.common.golden_mesh import dispatch, doors, goldens, meshes, tensor_methods, transfer
from models.common.golden_mesh.dispatch import traces
from models.common.golden_mesh.errors import GoldenMeshError, TraceError
from models.common.golden_mesh.overlay import expect_dispatch


def install(directory: Path) -> None:
    """directory: where what ttnn starts may leave its files."""
    assert goldens.COUNT, "goldens register themselves on import"
    if not ttnn.CONFIG.enable_fast_runtime_mode:
        raise GoldenMeshError(
            "ttnn was told to run without enable_fast_runtime_mode: the golden mesh knows its ops with it"
        )
    _start_mpi(directory)
    ttnn.decorators.FastOperation.__call__ = dispatch.call
    tensor_methods.install()
    doors.install(transfer.STAND_INS | _mesh_functions() | _trace_functions())


def _start_mpi(directory: Path) -> None:
    """ttnn starts Open MPI for the first mesh. It makes a folder where TMPDIR says, and leaves it there: let it be ours."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = f"{directory}"
    try:
        ttnn.init_distributed_context()
    finally:
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before


def _mesh_functions() -> dict[str, doors.StandIn]:
    """Opening and closing: what a closed mesh held is forgotten."""

    def opening(real, *args, **kwargs):
        configs = [v for v in (*args, *kwargs.values()) if isinstance(v, ttnn._ttnn.device.DispatchCoreConfig)]
        dispatch_cores = configs[0] if configs else ttnn.DispatchCoreConfig()
        expect_dispatch(
            Path(os.environ["TT_METAL_RUNTIME_ROOT"]), on_workers=dispatch_cores.type == ttnn.DispatchCoreType.WORKER
        )
        result = real(*args, **kwargs)
        for mesh in result.values() if isinstance(result, dict) else [result]:
            dispatch.forget_mesh(mesh.get_device_ids())
            meshes.opened(mesh, kwargs.get("trace_region_size", args[3] if len(args) > 3 else 0))
        return result

    def closing(real, closing):
        real(closing)
        for mesh in closing.values() if isinstance(closing, dict) else [closing]:
            dispatch.forget_mesh(meshes.closed(mesh))

    return {
        "multi_device.open_mesh_device": opening,
        "device.open_device": opening,
        "device.CreateDevice": opening,
        "device.CreateDevices": opening,
        "multi_device.close_mesh_device": closing,
        "device.close_device": closing,
        "device.CloseDevice": closing,
        "device.CloseDevices": closing,
    }


def _trace_functions() -> dict[str, doors.StandIn]:
    """Traces are recorded here; what waits for a device is refused inside a capture, as metal refuses it."""

    def begin_trace_capture(real, mesh_device, *, cq_id=None):
        if not meshes.has_trace_region(mesh_device):
            raise TraceError("the mesh was opened with trace_region_size=0: a trace has nowhere to be stored")
        return traces.begin(mesh_device, cq_id=cq_id)

    def instead(ours):
        return lambda real, *args, **kwargs: ours(*args, **kwargs)

    def outside_captures(real, *args, **kwargs):
        traces.outside(real.__name__)
        return real(*args, **kwargs)

    def wait_for_event(real, *args, **kwargs):
        """The mock crashes on it. Calls are carried out in the order of the program: there is nothing to wait for."""
        traces.outside("wait_for_event")

    return {
        "operations.trace.begin_trace_capture": begin_trace_capture,
        "operations.trace.end_trace_capture": instead(traces.end),
        "operations.trace.execute_trace": instead(traces.execute),
        "operations.trace.release_trace": instead(traces.release),
        "device.is_trace_capture_active": instead(traces.is_active),
        "device.synchronize_device": outside_captures,
        "events.record_event": outside_captures,
        "events.event_synchronize": outside_captures,
        "events.wait_for_event": wait_for_event,
    }
