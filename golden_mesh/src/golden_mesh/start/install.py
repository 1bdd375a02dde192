"""Puts the golden mesh between a program and ttnn. Only this module and those it calls replace parts of ttnn."""

import os
from dataclasses import replace
from pathlib import Path

import ttnn

from golden_mesh import goldens  # noqa: F401  they register themselves
from golden_mesh.mesh import dispatch, doors, meshes, tensor_methods, transfer
from golden_mesh.mesh.dispatch import traces
from golden_mesh.start.overlay import expect_dispatch

# Functions of operations.conv that compute tensors and are no registered operations.
UNREGISTERED = (
    "prepare_conv_weights prepare_conv_bias prepare_conv_transpose2d_weights prepare_conv_transpose2d_bias".split()
)


def install(directory: Path) -> None:
    """Replace ttnn's calls, tensor methods and functions. directory: for files of Open MPI, which ttnn starts."""
    users = {"TMPDIR": os.environ["TMPDIR"]} if "TMPDIR" in os.environ else {}
    os.environ["TMPDIR"] = f"{directory}"  # Open MPI leaves a folder there
    ttnn.init_distributed_context()
    del os.environ["TMPDIR"]
    os.environ.update(users)
    dispatch.OPERATION.__call__ = dispatch.call
    tensor_methods.install()
    transfers = {door: doors.for_values(stand_in) for door, stand_in in transfer.STAND_INS.items()}
    operations = {f"operations.conv.{name}": _through_dispatch(name) for name in UNREGISTERED}
    doors.install(transfers | operations | _mesh_functions() | _trace_functions())


def _through_dispatch(name: str) -> doors.StandIn:
    """A stand-in that calls the function as operations are called."""

    def stand_in(real, *args, **kwargs):
        operation = replace(ttnn.add, python_fully_qualified_name=f"ttnn.{name}", function=real)
        return dispatch.call(operation, *args, **kwargs)

    return stand_in


def _mesh_functions() -> dict[str, doors.StandIn]:
    """Stand-ins for opening and closing a mesh, and for sub-devices. The values of a closed mesh are dropped.

    Sub-devices decide only where programs run and what waits for them. The library crashes on a mock when a manager is
    loaded: it keeps its one sub-device of all cores.
    """

    def opening(real, *args, **kwargs):
        configs = [v for v in (*args, *kwargs.values()) if isinstance(v, ttnn._ttnn.device.DispatchCoreConfig)]
        dispatch_cores = configs[0] if configs else ttnn.DispatchCoreConfig()
        expect_dispatch(
            Path(os.environ["TT_METAL_RUNTIME_ROOT"]),
            on_workers=dispatch_cores.type == ttnn.DispatchCoreType.WORKER,
            by_columns=dispatch_cores.axis == ttnn.DispatchCoreAxis.COL,
        )
        result = real(*args, **kwargs)
        for mesh in result.values() if isinstance(result, dict) else [result]:
            dispatch.forget_mesh(mesh.get_device_ids())
            meshes.opened(mesh)
        return result

    def closing(real, closing):
        real(closing)
        for mesh in closing.values() if isinstance(closing, dict) else [closing]:
            dispatch.forget_mesh(meshes.closed(mesh))

    def load(real, mesh, sub_device_manager_id):
        meshes.check_open(mesh)
        dispatch.sub_devices_loaded = True

    def stall(real, mesh, sub_device_ids):
        meshes.check_open(mesh)

    openers = "multi_device.open_mesh_device device.open_device device.CreateDevice device.CreateDevices".split()
    closers = "multi_device.close_mesh_device device.close_device device.CloseDevice device.CloseDevices".split()
    return {
        "multi_device.MeshDevice.load_sub_device_manager": load,
        "multi_device.MeshDevice.set_sub_device_stall_group": stall,
        **dict.fromkeys(openers, opening),
        **dict.fromkeys(closers, closing),
    }


def _trace_functions() -> dict[str, doors.StandIn]:
    """Stand-ins for traces. Calls that wait for a device are refused inside a capture, as metal refuses them."""

    def instead(ours):
        return lambda real, *args, **kwargs: ours(*args, **kwargs)

    def outside_captures(real, *args, **kwargs):
        traces.outside(real.__name__)
        return real(*args, **kwargs)

    recorded: dict[tuple, object] = {}  # events by mesh id and the other arguments

    def record_event(real, mesh_device, *args, **kwargs):
        """Return the first event of these arguments: calls run in the order of the program, so all events are past.

        Nothing takes events out of the mock's queue. It waits for ever for room after 8,192 of them.
        """
        traces.outside("record_event")
        meshes.check_open(mesh_device)
        key = mesh_device.id(), repr((args, kwargs))
        if key not in recorded:
            recorded[key] = real(mesh_device, *args, **kwargs)
        return recorded[key]

    def wait_for_event(real, *args, **kwargs):
        """Do nothing: calls run in the order of the program. The mock crashes on this function."""
        traces.outside("wait_for_event")

    return {
        "operations.trace.begin_trace_capture": instead(traces.begin),
        "operations.trace.end_trace_capture": instead(traces.end),
        "operations.trace.execute_trace": instead(traces.execute),
        "operations.trace.release_trace": instead(traces.release),
        "device.is_trace_capture_active": lambda real, device: traces.capturing,
        "device.synchronize_device": outside_captures,
        "events.record_event": record_event,
        "events.event_synchronize": outside_captures,
        "events.wait_for_event": wait_for_event,
    }
