"""The methods of ttnn.Tensor: as in the library, with the values of golden memory.

Every method is in one of these tables. A method that is in none, such as one of a later ttnn, refuses tensors
on a device.
"""

import ctypes
from typing import Callable

import ttnn

from golden_mesh.errors import GoldenError, GoldenMeshError
from golden_mesh.mesh import dispatch, doors, meshes
from golden_mesh.mesh.arguments import on_device
from golden_mesh.mesh.dispatch import slot_of, traces
from golden_mesh.mesh.transfer import as_host, fetch, from_device, known_padding, move, send, to_torch

# Describe a tensor and its place.
PLAIN = frozenset(
    """
    buffer_address buffer_aligned_page_size buffer_num_pages buffer_page_size buffer_unique_id device device_coords
    devices element_size experimental_per_core_buffer_address get_dtype get_layout get_tile is_allocated
    is_per_core_allocated is_range_lockstep_allocated is_sharded logical_volume memory_config storage_type
    tensor_topology update_tensor_topology volume
    """.split()
)
# The library itself refuses tensors on a device. (pad_to_tile returns them if there is nothing to pad.)
HOST_ONLY = frozenset("host_buffer pad pad_to_tile unpad unpad_from_tile".split())


def _read(real, self, *args, **kwargs):
    return real(as_host(self), *args, **kwargs)


def _to_torch_with_padded_shape(real, self):
    padded = on_device(self) and tuple(self.padded_shape) != tuple(self.shape)
    if padded and known_padding(self, slot_of(self)) is None:
        raise GoldenError(
            f"Tensor.to_torch_with_padded_shape of {slot_of(self)}: a chip's padding is unknown. "
            "Read without it (to_torch)"
        )
    return _read(real, self)


def _repr(real, self):
    """Print as the library does: chip by chip if the mesh has several chips."""
    if not on_device(self) or not self.is_allocated():
        return real(self)
    if dispatch.inside():  # the library's error for wrong arguments, which may have no values
        return f"ttnn.Tensor({slot_of(self)})"
    if self.device().get_num_devices() == 1:
        return real(fetch(self))
    slot = slot_of(self)
    shards = ttnn.get_device_tensors(fetch(self))
    return "\n".join(
        f"device_id: {chip}, {ttnn.MeshCoordinate(place)}\n{real(shard)}"
        for chip, place, shard in zip(slot.devices, slot.coordinates, shards, strict=True)
    )


def _to(real, self, *args, **kwargs):
    """Two overloads: (device, mem_config, cq_id) and (target_layout)."""
    target = args[0] if args else kwargs.get("device", kwargs.get("target_layout"))
    if on_device(self) and isinstance(target, ttnn.Layout):
        return ttnn.to_layout(self, target)
    if not isinstance(target, ttnn.MeshDevice):
        return real(self, *args, **kwargs)
    return _to_device(real, self, *args, **kwargs)


def _to_device(real, self, device, mem_config=None, cq_id=None):
    meshes.check_open(device)
    return move(real, self, device, mem_config, cq_id=cq_id)


def _reshape(real, self, *shape):
    if not on_device(self):
        return real(self, *shape)
    return ttnn.reshape(self, shape[0] if len(shape) == 1 else list(shape))


def _init(real, self, *args, **kwargs):
    """With a device among the arguments the library makes the tensor. Its values are those of a tensor without one."""
    given = (*args, *kwargs.values())
    meshes.check_all_open(given)
    if not any(isinstance(value, ttnn.MeshDevice) for value in given):
        real(self, *args, **kwargs)
        return
    traces.outside("writing to a device")
    real(self, *args, **kwargs)
    on_host = [None if isinstance(value, ttnn.MeshDevice) else value for value in args]
    send(ttnn.Tensor(*on_host, **{name: value for name, value in kwargs.items() if name != "device"}), self)


METHODS: dict[str, Callable] = {
    "__init__": _init,
    "__repr__": _repr,
    "cpu": from_device,
    "deallocate": lambda real, self, force=False: (ttnn.deallocate if on_device(self) else real)(self, force),
    "item": _read,
    "reshape": _reshape,
    "to": _to,
    "to_list": _read,
    "to_numpy": _read,
    "to_torch": to_torch,
    "to_torch_with_padded_shape": _to_torch_with_padded_shape,
}


def install() -> None:
    _let_python_construct(ttnn.Tensor)
    for name, real in list(vars(ttnn.Tensor).items()):
        if name in METHODS:
            setattr(ttnn.Tensor, name, doors.standing_in(real, doors.for_values(METHODS[name])))
        elif hasattr(real, "__nb_signature__") and name not in PLAIN | HOST_ONLY:
            setattr(ttnn.Tensor, name, doors.refusing(real, f"Tensor.{name}"))


def _let_python_construct(kind: type) -> None:
    """Make Python call an __init__ that is set on `kind`.

    nanobind gives its types a constructor that Python calls directly (PyTypeObject.tp_vectorcall). Python
    then never looks for __init__. Without this constructor a type behaves like all other classes.
    """

    class Plain:
        pass

    def constructor(of: type) -> ctypes.c_void_p:
        return ctypes.c_void_p.from_address(id(of) + 50 * ctypes.sizeof(ctypes.c_void_p))  # the struct's 51st word

    if constructor(list).value is None or constructor(Plain).value is not None:
        raise GoldenMeshError("the golden mesh runs on CPython 3.10 to 3.12 (64 bits), as ttnn does")
    constructor(kind).value = None
