"""Views of a part of a tensor (ttnn.narrow). A view may share the tensor's address; then only its cores
differ.

A view shows a part of the whole tensor's memory until that memory is freed or given to another tensor.
"""

import ttnn

from golden_mesh.errors import GoldenError
from golden_mesh.mesh.memory import Part, Slot


class Views:
    def __init__(self):
        self._of: dict[int, dict[tuple, Part]] = {}  # address of the whole tensor -> views of it

    def look(self, slot: Slot, memory: ttnn.MemoryConfig) -> Slot:
        """Return the slot. For a view it includes the part that the view shows."""
        for views in self._of.values():
            part = views.get(_key(slot, memory))
            if part is not None:
                return slot._replace(part=part)
        return slot

    def add(self, whole: Slot, view: Slot, memory: ttnn.MemoryConfig, dim: int, start: int, length: int) -> None:
        """`view` shows `length` elements from `start` along dim of the tensor in `whole`."""
        if whole.part is not None:
            raise GoldenError("ttnn.narrow of what is narrowed already: narrow the whole tensor")
        part = Part(whole, dim % len(whole.shape), start % whole.shape[dim], length)
        self._of.setdefault(whole.address, {})[_key(view, memory)] = part

    def forget(self, address: int) -> None:
        """Drop the views of memory that is freed or replaced."""
        if self._of:
            self._of.pop(address, None)

    def clear(self) -> None:
        self._of.clear()


def _key(slot: Slot, memory: ttnn.MemoryConfig) -> tuple:
    return slot.buffer_type, slot.address, slot.shape, str(memory.shard_spec)
