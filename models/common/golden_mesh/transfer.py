"""Host to device and back.

The host side is real: packing, tilizing, mesh mappers and composers are ttnn's own, on ttnn's own host tensors. Only
the bytes that a chip would hold are kept as torch values, read out of the packed host tensor, so that what golden
memory holds is exactly what would have been sent.
"""

from typing import Callable, Optional

import torch
import torch.nn.functional as F
import ttnn

from models.common.golden_mesh import dispatch, hazard_checks, meshes
from models.common.golden_mesh.arguments import on_device
from models.common.golden_mesh.dispatch import HANDLERS, slot_of, traces, views
from models.common.golden_mesh.errors import GoldenError, missing
from models.common.golden_mesh.memory import Slot
from models.common.golden_mesh.rounding import round_to
from models.common.golden_mesh.steps import memory


def handles(name: str) -> Callable:
    def register(function: Callable) -> Callable:
        HANDLERS[name] = function
        return function

    return register


def shard_values(host: ttnn.Tensor) -> list[torch.Tensor]:
    """The torch value of each shard of a host tensor, in mesh order; replicas are one torch tensor."""
    shards = ttnn.get_device_tensors(host)
    topology = host.tensor_topology()
    placements = list(topology.placements())
    extents = list(topology.distribution_shape())
    values: dict[tuple, torch.Tensor] = {}
    result = []
    for index, shard in enumerate(shards):
        key, rest = [], index
        for placement, extent in zip(reversed(placements), reversed(extents)):
            rest, at = divmod(rest, extent)
            key.append(None if isinstance(placement, ttnn.PlacementReplicate) else at)
        key = tuple(key)
        if key not in values:
            values[key] = round_to(shard.to_torch(), _holder(host.dtype)).clone()
        result.append(values[key])
    return result


def _holder(dtype: ttnn.DataType) -> ttnn.DataType:
    """The dtype that values are kept in: what a host tensor holds is rounded already, by blocks of its own tile."""
    return ttnn.bfloat16 if dtype in (ttnn.bfloat8_b, ttnn.bfloat4_b) else dtype


def send(host: ttnn.Tensor, tensor: ttnn.Tensor, padding: float | None = None) -> ttnn.Tensor:
    """`tensor` on the device now holds what `host` holds; a host tensor of one shard goes to every chip.

    padding: what `host` has in the padding of its tiles, where that is known.
    """
    slot = slot_of(tensor)
    values = shard_values(host)
    memory.write(slot, values if len(values) == len(slot.devices) else values * len(slot.devices), padding=padding)
    return tensor


def fetch(tensor: ttnn.Tensor) -> ttnn.Tensor:
    """A host tensor with the values that golden memory has for `tensor`; its layout, tile and memory config stay."""
    traces.outside("reading from a device")
    packed: dict[int, ttnn.Tensor] = {}
    shards = []
    slot = slot_of(tensor)
    padding = known_padding(tensor, slot)
    for value in memory.read(slot):
        if id(value) not in packed:
            packed[id(value)] = _pack(value, tensor, padding or 0)
        shards.append(packed[id(value)])
    if len(shards) == 1:
        return shards[0]
    host = ttnn.from_host_shards(shards, tensor.device().shape)
    host.update_tensor_topology(tensor.tensor_topology())
    return host


def known_padding(tensor: ttnn.Tensor, slot: Slot) -> float | None:
    """What fills the tiles of `tensor` beyond its values; None: nobody knows. A block float's is of its neighbours' step."""
    padding = memory.padding(slot)
    return None if padding and tensor.dtype in (ttnn.bfloat8_b, ttnn.bfloat4_b) else padding


def _pack(value: torch.Tensor, tensor: ttnn.Tensor, padding: float) -> ttnn.Tensor:
    """`value` as `tensor` on the device is laid out. (Where nobody knows what a chip has in the padding it is zeros.)"""
    packed = _packed(value, tensor)
    as_laid_out = tuple(packed.padded_shape) == tuple(tensor.padded_shape)
    if as_laid_out and (padding == 0 or tensor.layout == ttnn.ROW_MAJOR_LAYOUT):
        return packed
    beyond = [extent - own for own, extent in zip(value.shape, tensor.padded_shape)]
    whole = F.pad(value, [end for extent in reversed(beyond) for end in (0, extent)], value=padding)
    return ttnn.reshape(_packed(whole, tensor), tensor.shape, tensor.padded_shape)


def _packed(value: torch.Tensor, tensor: ttnn.Tensor) -> ttnn.Tensor:
    return ttnn.Tensor(
        tensor=value.contiguous(),
        data_type=tensor.dtype,
        layout=tensor.layout,
        mem_config=tensor.memory_config(),
        tile=tensor.tile,
    )


def move(
    real: Callable, tensor: ttnn.Tensor, device: ttnn.MeshDevice, memory_config, *, padding=None, **options
) -> ttnn.Tensor:
    """`tensor` on the device. One that is on a device stays where and what it is, whatever is asked, as in the library."""
    if on_device(tensor):
        return real(tensor, device, memory_config, **options)
    traces.outside("writing to a device")
    return send(tensor, real(tensor, device, memory_config, **options), padding)


@handles("ttnn.from_torch")
def from_torch(real, tensor, dtype=None, *, device=None, memory_config=None, spec=None, cq_id=None, **options):
    if device is None or tensor is None:
        return real(tensor, dtype, memory_config=memory_config, spec=spec, **options)
    host = real(tensor, dtype, spec=spec, memory_config=memory_config, **options)
    padding = options.get("pad_value") or 0.0  # ttnn's own
    where = memory_config or (spec.memory_config if spec else None)
    return move(ttnn.to_device, host, device, where, padding=padding)


@handles("ttnn.to_device")
def to_device(real, tensor, device, memory_config=None, **options):
    return move(real, tensor, device, memory_config, **options)


@handles("ttnn.from_device")
def from_device(real, tensor, *args, **kwargs):
    return fetch(tensor) if on_device(tensor) else real(tensor, *args, **kwargs)


@handles("ttnn.to_dtype")
def to_dtype(real, tensor, dtype):
    """For tensors on the host: one on a device ttnn 0.81.1 refuses, and says so itself."""
    result = real(tensor, dtype)
    if on_device(result):
        raise missing("ttnn.to_dtype of a tensor on a device")
    return result


@handles("ttnn.to_torch")
def to_torch(real, tensor, *args, **kwargs):
    return real(fetch(tensor) if on_device(tensor) else tensor, *args, **kwargs)


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


@handles("ttnn.copy_device_to_host_tensor")
def copy_device_to_host_tensor(real, device_tensor, host_tensor, blocking=True, cq_id=None):
    slot = _check_copy("ttnn.copy_device_to_host_tensor", host_tensor, device_tensor)
    traces.outside("reading from a device")
    real(device_tensor, host_tensor)  # checks that one fits the other
    padding = known_padding(device_tensor, slot) or 0
    for place, value in zip(slot.coordinates, memory.read(slot), strict=True):
        _bytes(host_tensor, place).copy_(_bytes(_pack(value, device_tensor, padding), (0, 0)))


def _bytes(host: ttnn.Tensor, place: tuple[int, ...]) -> torch.Tensor:
    """The memory of the shard for the chip at mesh coordinate `place`."""
    return torch.from_dlpack(host.host_buffer().get_shard(ttnn.MeshCoordinate(place)))


def _check_copy(name: str, host_tensor: ttnn.Tensor, device_tensor: ttnn.Tensor) -> Slot:
    """Where device_tensor is. GoldenError if the tensors are not where they should be: the library crashes on those."""
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
        whole = slot.part.whole if slot.part is not None else slot  # freeing a view frees what it shows
        views.forget(whole.address)
        if not traces.capturing:
            memory.free(whole)


@handles("ttnn.narrow")
def narrow(real, input_tensor, dim, start, length):
    """A view: the same memory, so there is nothing to compute, only to remember."""
    whole = slot_of(input_tensor) if on_device(input_tensor) else None
    view = real(input_tensor, dim, start, length)
    if whole is not None and tuple(view.shape) != tuple(input_tensor.shape):
        if dim in (-1, len(input_tensor.shape) - 1):
            hazard_checks.check_narrow(input_tensor, view, start)
        views.add(whole, slot_of(view), view.memory_config(), dim, start, length)
    return view


@handles("ttnn.empty_like")
def empty_like(real, tensor, *args, **kwargs):
    if on_device(tensor):
        slot_of(tensor)  # which is an error if it is gone
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


# ---- what is no registered operation: doors.py puts it in its place


def _load(real, file_name, device: Optional[ttnn.MeshDevice] = None):
    host = real(file_name)
    return host if device is None else host.to(device)


def _dump(real, file_name, tensor, *args, **kwargs):
    real(file_name, fetch(tensor) if on_device(tensor) else tensor, *args, **kwargs)


def _distribute(real, tensor, mapper, mesh_device: Optional[ttnn.MeshDevice] = None):
    host = real(tensor, mapper)
    return host if mesh_device is None else host.to(mesh_device)


def _aggregate(real, tensor, composer):
    return real(fetch(tensor) if on_device(tensor) else tensor, composer)


def _with_values(stand_in: Callable) -> Callable:
    """The library alone where nobody wants values."""
    return lambda real, *args, **kwargs: (stand_in if dispatch.computing else _alone)(real, *args, **kwargs)


def _alone(real, *args, **kwargs):
    return real(*args, **kwargs)


STAND_INS = {
    "tensor.load_tensor_flatbuffer": _with_values(_load),
    "tensor.dump_tensor_flatbuffer": _with_values(_dump),
    "multi_device.distribute_tensor": _with_values(_distribute),
    "multi_device.aggregate_tensor": _with_values(_aggregate),
}
