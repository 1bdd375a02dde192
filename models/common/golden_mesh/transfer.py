"""Host to device and back.

The host side is real: packing, tilizing, mesh mappers and composers are ttnn's own, on ttnn's own host tensors. Only
the bytes that a chip would hold are kept as torch values, read out of the packed host tensor, so that what golden
memory holds is exactly what would have been sent.
"""

from typing import Callable

import torch
import ttnn

from models.common.golden_mesh import hazard_checks
from models.common.golden_mesh.dispatch import HANDLERS, memory, on_device, slot_of, traces, views
from models.common.golden_mesh.rounding import round_to


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
            values[key] = round_to(shard.to_torch(), host.dtype).clone()
        result.append(values[key])
    return result


def send(host: ttnn.Tensor, tensor: ttnn.Tensor) -> ttnn.Tensor:
    """`tensor` on the device now holds what `host` holds; a host tensor of one shard goes to every chip."""
    slot = slot_of(tensor)
    values = shard_values(host)
    memory.write(slot, values if len(values) == len(slot.devices) else values * len(slot.devices))
    return tensor


def fetch(tensor: ttnn.Tensor) -> ttnn.Tensor:
    """A host tensor with the values that golden memory has for `tensor`."""
    traces.outside("reading from a device")
    packed: dict[int, ttnn.Tensor] = {}
    shards = []
    for value in memory.read(slot_of(tensor)):
        if id(value) not in packed:
            packed[id(value)] = _pack(value, tensor)
        shards.append(packed[id(value)])
    if len(shards) == 1:
        return shards[0]
    host = ttnn.from_host_shards(shards, tensor.device().shape)
    host.update_tensor_topology(tensor.tensor_topology())
    return host


def _pack(value: torch.Tensor, tensor: ttnn.Tensor) -> ttnn.Tensor:
    return ttnn.Tensor(tensor=value.contiguous(), data_type=tensor.dtype, layout=tensor.layout)


@handles("ttnn.from_torch")
def from_torch(real, tensor, dtype=None, *, device=None, memory_config=None, spec=None, cq_id=None, **options):
    if device is None or tensor is None:
        return real(tensor, dtype, memory_config=memory_config, spec=spec, **options)
    host = real(tensor, dtype, spec=spec, memory_config=memory_config, **options)
    return to_device(ttnn.to_device, host, device, memory_config or (spec.memory_config if spec else None))


@handles("ttnn.to_device")
def to_device(real, tensor, device, memory_config=None, **options):
    traces.outside("writing to a device")
    return send(tensor, real(tensor, device, memory_config=memory_config, **options))


@handles("ttnn.from_device")
def from_device(real, tensor, *args, **kwargs):
    return fetch(tensor)


@handles("ttnn.to_torch")
def to_torch(real, tensor, *args, **kwargs):
    return real(fetch(tensor) if on_device(tensor) else tensor, *args, **kwargs)


@handles("ttnn.copy_host_to_device_tensor")
def copy_host_to_device_tensor(real, host_tensor, device_tensor, cq_id=None):
    traces.outside("writing to a device")
    real(host_tensor, device_tensor)
    send(host_tensor, device_tensor)


@handles("ttnn.copy_device_to_host_tensor")
def copy_device_to_host_tensor(real, device_tensor, host_tensor, blocking=True, cq_id=None):
    raise NotImplementedError("copy_device_to_host_tensor: read with ttnn.from_device or ttnn.to_torch")


@handles("ttnn.deallocate")
def deallocate(real, tensor, *args, **kwargs):
    slot = slot_of(tensor) if on_device(tensor) and tensor.is_allocated() else None
    real(tensor, *args, **kwargs)
    if slot is not None and not tensor.is_allocated():
        whole = slot.part.whole if slot.part is not None else slot  # freeing a view frees what it shows
        views.forget(whole.address)
        if not traces.capturing:
            memory.free(whole)


@handles("ttnn.narrow")
def narrow(real, input_tensor, dim, start, length):
    """A view: the same memory, so there is nothing to compute, only to remember."""
    view = real(input_tensor, dim, start, length)
    if on_device(input_tensor) and tuple(view.shape) != tuple(input_tensor.shape):
        if dim in (-1, len(input_tensor.shape) - 1):
            hazard_checks.check_narrow(input_tensor, view, start)
        views.add(slot_of(input_tensor), slot_of(view), view.memory_config(), dim, start, length)
    return view


@handles("ttnn.empty")
@handles("ttnn.empty_like")
@handles("ttnn.allocate_tensor_on_device")
def allocate(real, *args, **kwargs):
    tensor = real(*args, **kwargs)
    if on_device(tensor):
        slot = slot_of(tensor)
        memory.write(slot, [None] * len(slot.devices))
    return tensor


@handles("ttnn.load_tensor")
def load_tensor(real, file_name, *, device=None):
    host = real(file_name)
    return host if device is None else to_device(ttnn.to_device, host, device)


def install() -> None:
    """Route the ways around the registered operations (tensor methods, loading onto a device) through the same door."""
    real_to, real_reshape, real_free = ttnn.Tensor.to, ttnn.Tensor.reshape, ttnn.Tensor.deallocate
    real_load = ttnn._ttnn.tensor.load_tensor_flatbuffer

    def to(self, target, mem_config=None, cq_id=None):
        if isinstance(target, ttnn.MeshDevice):
            return ttnn.to_device(self, target, memory_config=mem_config)
        return real_to(self, target)

    def reshape(self, *shape):
        if not on_device(self):
            return real_reshape(self, *shape)
        return ttnn.reshape(self, shape[0] if len(shape) == 1 else list(shape))

    def load(file_name, device=None):
        host = real_load(file_name)
        return host if device is None else ttnn.to_device(host, device)

    ttnn.Tensor.to = to
    ttnn.Tensor.cpu = lambda self, blocking=True, cq_id=None: ttnn.from_device(self)
    ttnn.Tensor.reshape = reshape
    ttnn.Tensor.deallocate = lambda self, force=False: (
        ttnn.deallocate(self, force) if on_device(self) else real_free(self, force)
    )
    for name in ("item", "to_list", "to_numpy"):
        real = getattr(ttnn.Tensor, name)
        setattr(
            ttnn.Tensor, name,
            lambda self, *args, _real=real, **kwargs: _real(fetch(self) if on_device(self) else self, *args, **kwargs),
        )  # fmt: skip
    ttnn._ttnn.tensor.load_tensor_flatbuffer = load
