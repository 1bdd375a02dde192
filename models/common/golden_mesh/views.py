"""Views of a part of a tensor (ttnn.narrow). They may share its address: only their cores tell them from it.

A view shows a part of what lies at the whole tensor's address until that is freed or given to another tensor.
"""

import ttnn

from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.memory import Part, Slot


class Views:
    def __init__(self):
        self._of: dict[int, dict[tuple, Part]] = {}  # address of the whole tensor -> views of it

    def look(self, slot: Slot, memory: ttnn.MemoryConfig) -> Slot:
        """The slot, saying which part it shows if it is a view's."""
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
        """What lay there is freed or replaced."""
        if self._of:
            self._of.pop(address, None)

    def clear(self) -> None:
        self._of.clear()


def _key(slot: Slot, memory: ttnn.MemoryConfig) -> tuple:
    return slot.buffer_type, slot.address, slot.shape, str(memory.shard_spec)
