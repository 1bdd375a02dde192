"""Transfers from host to device and back.

The host side is real. Packing, tilizing, mesh mappers and composers are ttnn's own, on ttnn's own host
tensors. Golden memory keeps the torch values of the packed host tensor. These are exactly the bytes that ttnn
would send to a chip.
"""

import functools
from typing import Callable, Optional

import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic.block_floats import BlockFloats
from golden_mesh.arithmetic.packer import BLOCK_FLOATS
from golden_mesh.errors import GoldenError, MissingGolden
from golden_mesh.hazards import checks as hazard_checks
from golden_mesh.mesh import meshes
from golden_mesh.mesh.arguments import on_device
from golden_mesh.mesh.dispatch import HANDLERS, forget_views, slot_of, traces, view_key, views
from golden_mesh.mesh.memory import Part, Slot, each_once
from golden_mesh.mesh.steps import memory
from golden_mesh.rounding import BLOCK, round_to


def handles(name: str) -> Callable:
    def register(function: Callable) -> Callable:
        HANDLERS[name] = function
        return function

    return register


def shard_values(host: ttnn.Tensor) -> list[torch.Tensor]:
    """Return the torch value of each shard of a host tensor, in mesh order. Replicas have one buffer and one value."""
    values: dict[int, torch.Tensor] = {}  # by the buffer's address
    result = []
    for shard in ttnn.get_device_tensors(host):
        key = bytes_of(shard).data_ptr()
        if key not in values:
            held = shard.to_torch()
            # a block float's values are rounded already, by blocks of the tensor's own tile
            rounded = round_to(held, ttnn.bfloat16 if host.dtype in BLOCK_FLOATS else host.dtype)
            values[key] = rounded.clone() if rounded is held else rounded
        result.append(values[key])
    return result


def send(host: ttnn.Tensor, tensor: ttnn.Tensor) -> ttnn.Tensor:
    """Write the values of `host` to `tensor` on the device. A host tensor of one shard goes to every chip."""
    slot = slot_of(tensor)
    values = shard_values(host)
    if host.dtype in BLOCK_FLOATS:
        values = each_once(BlockFloats.pack, values)
    values = values if len(values) == len(slot.devices) else values * len(slot.devices)
    memory.write(slot, values, padding=_padding(host))
    return tensor


def _padding(host: ttnn.Tensor) -> float | None:
    """The value in the padding of the tiles of a host tensor. None: there are several, or no tiles are padded."""
    if host.layout != ttnn.TILE_LAYOUT or tuple(host.padded_shape) == tuple(host.shape):
        return None
    whole = ttnn.get_device_tensors(host)[0].to_torch_with_padded_shape()
    inside = torch.zeros(whole.shape, dtype=torch.bool)
    lead = [1] * (whole.dim() - len(host.shape))  # a vector lies in the first row of its tiles
    inside[tuple(map(slice, [*lead, *host.shape]))] = True
    beyond = whole[~inside]
    return beyond[0].item() if len(beyond) and (beyond == beyond[0]).all() else None


def fetch(tensor: ttnn.Tensor) -> ttnn.Tensor:
    """Return a host tensor with the golden values of `tensor`. It keeps the layout, tile and memory config."""
    traces.outside("reading from a device")
    slot = slot_of(tensor)
    padding = known_padding(tensor, slot)
    return _on_host(tensor, memory.read(slot), lambda value: _pack(value, tensor, padding or 0))


def as_host(tensor: ttnn.Tensor) -> ttnn.Tensor:
    return fetch(tensor) if on_device(tensor) else tensor


@functools.cache
def _torch_dtype(dtype: ttnn.DataType) -> ttnn.DataType:
    """The dtype in which the library gives a block float to torch: float32 in ttnn 0.81."""
    given = ttnn.Tensor(torch.zeros(32, 32), dtype, layout=ttnn.TILE_LAYOUT).to_torch().dtype
    return ttnn.float32 if given == torch.float32 else ttnn.bfloat16


def _on_host(tensor: ttnn.Tensor, values: list[torch.Tensor], pack: Callable) -> ttnn.Tensor:
    """Return the host tensor of a value a chip. Replicas are packed once."""
    shards = each_once(pack, values)
    if len(shards) == 1:
        return shards[0]
    host = ttnn.from_host_shards(shards, tensor.device().shape)
    host.update_tensor_topology(tensor.tensor_topology())
    return host


def known_padding(tensor: ttnn.Tensor, slot: Slot) -> float | None:
    """Return the value in the padding of the tiles of `tensor`. None: unknown.

    A block float's padding depends on the exponent of its neighbors: a block that has both is known if it is zero.
    """
    padding = memory.padding(slot)
    in_blocks = tensor.dtype in BLOCK_FLOATS and tensor.shape[-1] % BLOCK
    return None if padding and in_blocks else padding


def _pack(value: torch.Tensor, tensor: ttnn.Tensor, padding: float) -> ttnn.Tensor:
    """Return `value` packed in the layout of `tensor`. Unknown padding becomes zeros."""
    packed = _packed(value, tensor)
    as_laid_out = tuple(packed.padded_shape) == tuple(tensor.padded_shape)
    if as_laid_out and (padding == 0 or tensor.layout == ttnn.ROW_MAJOR_LAYOUT):
        return packed
    padded = list(tensor.padded_shape)
    if tensor.layout == ttnn.ROW_MAJOR_LAYOUT:  # on the host only columns are padded
        padded[-2:-1] = value.shape[-2:-1]
    beyond = [extent - own for own, extent in zip(value.shape, padded)]
    whole = F.pad(value, [end for extent in reversed(beyond) for end in (0, extent)], value=padding)
    return ttnn.reshape(_packed(whole, tensor), tensor.shape, ttnn.Shape(padded))


def _packed(value: torch.Tensor, tensor: ttnn.Tensor) -> ttnn.Tensor:
    how = dict(layout=tensor.layout, mem_config=tensor.memory_config(), tile=tensor.tile)
    return ttnn.Tensor(value.contiguous(), tensor.dtype, **how)


@handles("ttnn.to_device")
def move(real: Callable, tensor: ttnn.Tensor, device: ttnn.MeshDevice, memory_config=None, **options) -> ttnn.Tensor:
    """Move `tensor` to the device. One that is on a device already stays as it is, as in the library."""
    if on_device(tensor):
        return real(tensor, device, memory_config, **options)
    traces.outside("writing to a device")
    return send(tensor, real(tensor, device, memory_config, **options))


@handles("ttnn.from_torch")
def from_torch(real, tensor, dtype=None, *, device=None, memory_config=None, spec=None, cq_id=None, **options):
    if device is None or tensor is None:
        return real(tensor, dtype, memory_config=memory_config, spec=spec, **options)
    host = real(tensor, dtype, spec=spec, memory_config=memory_config, **options)
    where = memory_config or (spec.memory_config if spec else None)
    return move(ttnn.to_device, host, device, where)


@handles("ttnn.from_device")
def from_device(real, tensor, *args, **kwargs):
    return fetch(tensor) if on_device(tensor) else real(tensor, *args, **kwargs)


@handles("ttnn.to_dtype")
def to_dtype(real, tensor, dtype):
    """Converts host tensors only. ttnn 0.81.1 itself refuses a tensor on a device."""
    result = real(tensor, dtype)
    if on_device(result):
        raise MissingGolden("ttnn.to_dtype of a tensor on a device")
    return result


@handles("ttnn.to_torch")
def to_torch(real, tensor, *args, **kwargs):
    if on_device(tensor):
        traces.outside("reading from a device")
        dtype = _torch_dtype(tensor.dtype) if tensor.dtype in BLOCK_FLOATS else tensor.dtype
        as_rows = lambda value: ttnn.Tensor(value.contiguous(), dtype)  # become torch's without unpacking
        tensor = _on_host(tensor, memory.read(slot_of(tensor)), as_rows)
    return real(tensor, *args, **kwargs)


@handles("ttnn.from_buffer")
def from_buffer(real, buffer, shape, dtype, device=None, layout=None, memory_config=None):
    tensor = real(buffer, shape, dtype, device, layout, memory_config)
    if on_device(tensor):
        traces.outside("writing to a device")
        send(ttnn.Tensor(list(buffer), list(shape), dtype, tensor.layout), tensor)
    return tensor


@handles("ttnn.copy_host_to_device_tensor")
def copy_host_to_device_tensor(real, host_tensor, device_tensor, cq_id=None):
    _check_copy("ttnn.copy_host_to_device_tensor", host_tensor, device_tensor)
    traces.outside("writing to a device")
    real(host_tensor, device_tensor)
    send(host_tensor, device_tensor)


_fitting: set[tuple[int, str]] = set()  # mesh ids and kinds of tensors that were copied to the host


@handles("ttnn.copy_device_to_host_tensor")
def copy_device_to_host_tensor(real, device_tensor, host_tensor, blocking=True, cq_id=None):
    slot = _check_copy("ttnn.copy_device_to_host_tensor", host_tensor, device_tensor)
    traces.outside("reading from a device")
    tensors = device_tensor.spec, host_tensor.spec, host_tensor.tensor_topology()
    kind = device_tensor.device().id(), repr(tensors)
    if kind not in _fitting:  # a mock keeps each read, and waits for ever for room after 8,192
        real(device_tensor, host_tensor)  # checks that the two tensors fit
        _fitting.add(kind)
    padding = known_padding(device_tensor, slot) or 0
    for place, value in zip(slot.coordinates, memory.read(slot), strict=True):
        bytes_of(host_tensor, place).copy_(bytes_of(_pack(value, device_tensor, padding)))


def bytes_of(host: ttnn.Tensor, place: tuple[int, ...] = (0, 0)) -> torch.Tensor:
    """Return the memory of the shard for the chip at mesh coordinate `place`."""
    return torch.from_dlpack(host.host_buffer().get_shard(ttnn.MeshCoordinate(place)))


def _check_copy(name: str, host_tensor: ttnn.Tensor, device_tensor: ttnn.Tensor) -> Slot:
    """Return the slot of device_tensor. GoldenError: a tensor is on the wrong side, where the library crashes."""
    if on_device(host_tensor):
        raise GoldenError(f"{name}: host_tensor is on the device")
    if not on_device(device_tensor):
        raise GoldenError(f"{name}: device_tensor is on the host")
    return slot_of(device_tensor)


@handles("ttnn.deallocate")
def deallocate(real, tensor, *args, **kwargs):
    there = on_device(tensor) and tensor.is_allocated() and meshes.is_open(tensor.device())
    slot = slot_of(tensor) if there else None
    real(tensor, *args, **kwargs)
    if slot is not None and not tensor.is_allocated():
        forget_views(slot.whole.address)  # freeing a view frees the whole tensor
        if not traces.capturing:
            memory.free(slot.whole)


@handles("ttnn.narrow")
def narrow(real, input_tensor, dim, start, length):
    """A view has its tensor's memory, so nothing is computed. The view is only remembered."""
    whole = slot_of(input_tensor) if on_device(input_tensor) else None
    view = real(input_tensor, dim, start, length)
    if whole is not None and tuple(view.shape) != tuple(input_tensor.shape):
        if dim in (-1, len(input_tensor.shape) - 1):
            hazard_checks.check_narrow(input_tensor, view, start)
        if whole.part is not None:
            raise GoldenError("ttnn.narrow of what is narrowed already: narrow the whole tensor")
        part = Part(whole, dim % len(whole.shape), start % whole.shape[dim], length)
        views[view_key(slot_of(view), view.memory_config())] = part
    return view


@handles("ttnn.empty_like")
def empty_like(real, tensor, *args, **kwargs):
    if on_device(tensor):
        slot_of(tensor)  # raises an error if the tensor was freed
    elif not any(isinstance(value, ttnn.MeshDevice) for value in (*args, *kwargs.values())):
        raise GoldenError("ttnn.empty_like of a tensor on the host needs a device: the library crashes without one")
    return allocate(real, tensor, *args, **kwargs)


@handles("ttnn.empty")
@handles("ttnn.allocate_tensor_on_device")
def allocate(real, *args, **kwargs):
    tensor = real(*args, **kwargs)
    if on_device(tensor):
        memory.forget(slot_of(tensor))
    return tensor


# ---- stand-ins for functions that are no registered operations; mesh/doors.py installs them


def _load(real, file_name, device: Optional[ttnn.MeshDevice] = None):
    host = real(file_name)
    return host if device is None else host.to(device)


def _distribute(real, tensor, mapper, mesh_device: Optional[ttnn.MeshDevice] = None):
    host = real(tensor, mapper)
    return host if mesh_device is None else host.to(mesh_device)


def _refuse_overlapped(real, *args, **kwargs):
    """The tensors are parts of objects that do not show them, so their values cannot be put in."""
    raise MissingGolden("ttnn._ttnn.tensor.dump_overlapped_tensors")


STAND_INS = {
    "tensor.load_tensor_flatbuffer": _load,
    "tensor.dump_tensor_flatbuffer": lambda real, file_name, x, *args, **how: real(file_name, as_host(x), *args, **how),
    "tensor.dump_overlapped_tensors": _refuse_overlapped,
    "multi_device.distribute_tensor": _distribute,
    "multi_device.aggregate_tensor": lambda real, tensor, composer: real(as_host(tensor), composer),
}
