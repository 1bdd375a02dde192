"""Puts the golden mesh between a program and ttnn. The only place that replaces anything of ttnn's."""

import inspect
import os
from pathlib import Path

import ttnn

from models.common.golden_mesh import dispatch, goldens, transfer
from models.common.golden_mesh.dispatch import forget_mesh, traces
from models.common.golden_mesh.errors import TraceError
from models.common.golden_mesh.overlay import expect_dispatch

# mesh id -> (its chips, bytes of its trace region), of the meshes that were opened, not cut from another
_roots: dict[int, tuple[list[int], int]] = {}


def install() -> None:
    assert goldens.COUNT, "goldens register themselves on import"
    ttnn.decorators.FastOperation.__call__ = dispatch.call
    transfer.install()
    _meshes()
    _traces()


def _meshes() -> None:
    """Opening and closing: what a closed mesh held is forgotten."""

    def opening(real, parameters):
        def open_(*args, **kwargs):
            given = dict(zip(parameters, args)) | kwargs
            dispatch_cores = given.get("dispatch_core_config") or ttnn.DispatchCoreConfig()
            expect_dispatch(
                Path(os.environ["TT_METAL_RUNTIME_ROOT"]),
                on_workers=dispatch_cores.type == ttnn.DispatchCoreType.WORKER,
            )
            mesh = real(*args, **kwargs)
            forget_mesh(mesh, mesh.get_device_ids())
            _roots[mesh.id()] = (mesh.get_device_ids(), given.get("trace_region_size", 0))
            return mesh

        return open_

    def closing(real):
        def close(mesh_device):
            devices, _ = _roots.pop(mesh_device.id(), ([], 0))  # closing a submesh frees no chip
            forget_mesh(mesh_device, devices)
            real(mesh_device)

        return close

    ttnn.open_mesh_device = ttnn.distributed.open_mesh_device = opening(
        ttnn.open_mesh_device, inspect.signature(ttnn.open_mesh_device).parameters
    )
    ttnn.close_mesh_device = ttnn.distributed.close_mesh_device = closing(ttnn.close_mesh_device)
    ttnn.open_device, ttnn.close_device = opening(ttnn.open_device, ("device_id",)), closing(ttnn.close_device)


def _traces() -> None:
    """Traces are recorded here; what waits for a device is refused inside a capture, as metal refuses it."""

    def begin_trace_capture(mesh_device, *, cq_id=None):
        chips = set(mesh_device.get_device_ids())
        if not any(size for devices, size in _roots.values() if chips <= set(devices)):
            raise TraceError("the mesh was opened with trace_region_size=0: a trace has nowhere to be stored")
        return traces.begin(mesh_device, cq_id=cq_id)

    ttnn.begin_trace_capture = begin_trace_capture
    ttnn.end_trace_capture = traces.end
    ttnn.execute_trace = traces.execute
    ttnn.release_trace = traces.release
    ttnn.is_trace_capture_active = traces.is_active
    for name in ("synchronize_device", "record_event", "event_synchronize"):
        setattr(ttnn, name, _outside_captures(name, getattr(ttnn, name)))
    # The mock crashes on it. Calls are carried out in the order of the program, so there is nothing to wait for.
    ttnn.wait_for_event = _outside_captures("wait_for_event", lambda *args, **kwargs: None)


def _outside_captures(name: str, real):
    def guarded(*args, **kwargs):
        traces.outside(name)
        return real(*args, **kwargs)

    guarded.__name__ = name
    return guarded
