"""Runs every ttnn call twice: the real library validates and allocates, then a golden function computes the
values.

All registered operations are of one class of ttnn, OPERATION. Its `__call__` is replaced by `call`.
The Python operations in TRANSPARENT call other operations, and those come through `call`. Any other operation
without a golden is an error on device tensors. The error names the operation.
"""

import threading
from typing import Callable, Iterable

import ttnn

from golden_mesh import switches
from golden_mesh.errors import GoldenError, MissingGolden
from golden_mesh.hazards import checks as hazard_checks
from golden_mesh.mesh import buffers, meshes
from golden_mesh.mesh.arguments import check_fields, check_on_device, on_device, substitute, tensors_in, without_outputs
from golden_mesh.mesh.buffers import bank_bytes
from golden_mesh.mesh.memory import Part, Slot, identity
from golden_mesh.mesh.steps import Step, memory, run
from golden_mesh.mesh.trace import Traces
from golden_mesh.registry import GOLDENS

# Views of a part of a tensor (ttnn.narrow), until its memory is freed or given to another tensor. A view may share the
# tensor's address; then only its cores differ.
views: dict[tuple, Part] = {}
traces = Traces(run)
HANDLERS: dict[str, Callable] = {}  # ops that move data between host and device: mesh/transfer.py
# Written in Python. They only call functions that the golden mesh replaces.
TRANSPARENT = frozenset(
    (
        "ttnn.as_tensor ttnn.dump_tensor ttnn.load_tensor ttnn.pearson_correlation_coefficient ttnn.Tensor.__getitem__"
    ).split()
)
# (mesh id, chips, first coordinate) -> chip ids and coordinates
_chips: dict[tuple[int, int, ttnn.MeshCoordinate], tuple] = {}


def slot_of(tensor: ttnn.Tensor) -> Slot:
    mesh, config = tensor.device(), tensor.memory_config()
    shape = tensor.shape  # to iterate over it takes twenty times as long
    slot = Slot(
        *_chips_of(tensor, mesh), config.buffer_type, tensor.buffer_address(), bank_bytes(tensor, config, mesh),
        tuple([shape[dim] for dim in range(len(shape))]), tensor.dtype,
    )  # fmt: skip
    part = views.get(view_key(slot, config)) if views else None
    return slot if part is None else slot._replace(part=part)


def view_key(slot: Slot, config: ttnn.MemoryConfig) -> tuple:
    return slot.buffer_type, slot.address, slot.shape, str(config.shard_spec)


def forget_views(address: int) -> None:
    for key in [key for key, part in views.items() if part.whole.address == address]:
        del views[key]


def _chips_of(tensor: ttnn.Tensor, mesh: ttnn.MeshDevice) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the ids and coordinates of the chips that hold the tensor: usually its whole mesh, or one chip."""
    coordinates = tensor.device_coords()
    key = mesh.id(), len(coordinates), coordinates[0]
    if key not in _chips:
        meshes.check_open(mesh)
        found = tuple(mesh.get_device_id(c) for c in coordinates), tuple(tuple(c) for c in coordinates)
        if 1 < len(coordinates) < mesh.get_num_devices():
            return found  # a part of the mesh: the key does not identify it
        _chips[key] = found
    return _chips[key]


def forget_mesh(devices: list[int]) -> None:
    """Drop the values on `devices` after a mesh was closed or opened. No mesh held these chips in between."""
    views.clear()
    _chips.clear()
    memory.forget_devices(devices)
    buffers.forget()


sub_devices_loaded = False  # then a SubDeviceId means all cores


class _Depth(threading.local):
    """Nesting depth of operations, for each thread: calls inside of one are no step of the program."""

    inside = 0


_depth = _Depth()


def inside() -> bool:
    """Whether an operation is under way."""
    return bool(_depth.inside)


def call(operation, *args, **kwargs):
    """Replaces OPERATION.__call__."""
    name = operation.python_fully_qualified_name
    if _depth.inside or not switches.current.values:
        return _library_call(operation, args, kwargs)
    values = (*args, *kwargs.values())
    meshes.check_all_open(values)
    if sub_devices_loaded:
        args, kwargs = substitute((args, kwargs), ttnn.SubDeviceId, lambda _: ttnn.SubDeviceId(0))
    if name in HANDLERS:
        _depth.inside += 1
        try:
            return HANDLERS[name](lambda *a, **k: _library_call(operation, a, k), *args, **kwargs)
        finally:
            _depth.inside -= 1
    if name in TRANSPARENT:
        return REAL_CALL(operation, *args, **kwargs)

    golden = GOLDENS.get(name)
    tensors = tensors_in(values)
    inputs = [t for t in tensors if on_device(t)]
    if golden is None and inputs:
        raise MissingGolden(name)
    if len(inputs) < len(tensors):
        check_on_device(operation, args, kwargs)
    slots = {identity(t): slot_of(t) for t in inputs}  # before the call: an op may free or move its inputs
    form = golden and golden.form(operation.function, args, kwargs)
    given = form.given(args, kwargs) if form else {}
    if form:
        hazard_checks.check(golden, given)
        check_fields(name, values)
    device = inputs[0].device() if inputs else None
    chip = None
    if form and "chip" in golden.wants and given.get("program_config") is None:
        chip = buffers.chip_of(device)  # before the call, as the library chooses its program
    for slot in slots.values():
        if (chips := len(slot.devices)) < device.get_num_devices():
            raise GoldenError(f"{name} on {slot}, which is on {chips} of its mesh's chips: the mock cannot run it")
    if traces.capturing and not inputs and operation.is_cpp_operation:
        traces.outside(f"{name}, which makes a tensor on the host and writes it to the device,")
    if traces.capturing and inputs and len(inputs) < len(tensors):
        traces.outside(f"{name} with a tensor on the host, which is written to the device,")
    programs = device.num_program_cache_entries() if device is not None and traces.capturing else None
    _depth.inside += 1
    try:
        # Its program runs on two chips. A mock of more ends in a segmentation fault, so the library is left out.
        if name == "ttnn.point_to_point" and device.get_num_devices() > 2:
            result = kwargs.get("output_tensor") or ttnn.empty_like(inputs[0])
        else:
            result = REAL_CALL(operation, *args, **kwargs)
    finally:
        _depth.inside -= 1
    outputs = [t for t in tensors_in(result) if on_device(t)]
    if not outputs and not inputs:
        return result  # host only
    for tensor in outputs:
        if identity(tensor) not in slots and not (golden and golden.view):
            forget_views(tensor.buffer_address())
    written = tuple(map(slot_of, outputs))
    addresses = {s.address for s in slots.values()}
    _note(operation, outputs, written, addresses)
    if golden is None:
        raise MissingGolden(name)
    if form is None:
        raise GoldenError(f"the golden of {name} does not know this call: ttnn declares no such overload")
    if programs is not None and device.num_program_cache_entries() != programs:
        traces.refuse(f"{name} compiled a new program", "run the same calls once before capturing")

    if any(s.address in addresses for s in written) and not (golden.writes or golden.view):
        places = {_place(s) for s in written if 0 not in s.shape}
        unwritten = {tensor for tensor, s in slots.items() if _place(s) in places and memory.is_unknown(s)}
        given = without_outputs(given, form, lambda x: identity(x) in unwritten)
    read: list[Slot] = []  # each once

    def slot(tensor):
        found = slots.get(identity(tensor))
        if found is None and not on_device(tensor):
            return tensor
        found = found or slot_of(tensor)
        if found not in read:
            read.append(found)
        return found

    try:
        arguments = golden.arguments(form, operation.function, given)
    except TypeError as error:
        raise GoldenError(f"the golden of {name} does not know this call: {error}") from None
    if "configs" in golden.wants:
        configs = substitute(arguments, ttnn.Tensor, ttnn.Tensor.memory_config)
        arguments["configs"] = configs | {"out": outputs[0].memory_config()}
    if "tiled" in golden.wants:
        arguments["tiled"] = outputs[0].layout == ttnn.TILE_LAYOUT
    if "chip" in golden.wants:
        arguments["chip"] = chip
    if golden.view and _place(written[0]) == _place(next(iter(slots.values()))):
        return result  # the input's memory under another shape: nothing was computed
    arguments = substitute(arguments, ttnn.Tensor, slot)
    step = Step(golden, arguments, tuple(read), written, given.get("cluster_axis"))
    if traces.capturing:
        known = {_place(s) for s in slots.values()}
        why = f"is a result of trace {traces.active}, which was captured and not executed: execute_trace computes it"
        for s in written:  # memory is allocated now; the value comes with the trace's execution
            if not golden.writes and _place(s) not in known:
                memory.forget(s, why)
        traces.record(step)
    else:
        run(step)
    return result


def _library_call(operation, args: tuple, kwargs: dict):
    """Call the library alone, for what belongs to another call or computes no values."""
    result = REAL_CALL(operation, *args, **kwargs)
    made = [t for t in tensors_in(result) if on_device(t)]
    if made:
        before = [t for t in tensors_in((args, kwargs)) if on_device(t) and t.is_allocated()]
        _note(operation, made, map(slot_of, made), {t.buffer_address() for t in before})
    return result


def _note(operation, tensors: list[ttnn.Tensor], made: Iterable[Slot], before: set[int]) -> None:
    """Note the buffers that a call made. before: the addresses of its inputs, which it may return or give a view of."""
    for tensor, slot in zip(tensors, made):
        if slot.address not in before:
            buffers.note(operation, tensor, slot)


def _place(slot: Slot) -> tuple:
    return slot.buffer_type, slot.address, slot.part


# FastOperation, or Operation if ttnn was imported with enable_fast_runtime_mode off.
OPERATION = type(ttnn.add)
REAL_CALL = buffers.explaining(OPERATION.__call__)
