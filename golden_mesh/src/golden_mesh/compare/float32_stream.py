"""The float32 stream beside golden memory, and the results of one call in float32 (golden-mesh compare)."""

from typing import Optional

import torch

from golden_mesh.mesh.memory import Entry, GoldenMemory, Region, Slot, unwritten
from golden_mesh.mesh.steps import Step

# Modules of goldens that compute alike from bfloat16 and from float32 holders of equal values. Their large inputs
# (weights, caches) need no copy in float32.
_ANY_HOLDER = tuple(
    f"golden_mesh.goldens.{name}" for name in "matmul attention attention_decode heads layout data_movement".split()
)
_ANY_HOLDER_OPS = frozenset({"ttnn.embedding"})


class Stream(GoldenMemory):
    """The float32 stream. Values may be in the dtype of their source; an operation that writes in place widens them."""

    def __init__(self, beside: GoldenMemory):
        super().__init__()
        self._holders = beside._holders  # one storage may be in both memories

    def take_all(self, other: GoldenMemory) -> None:
        """Share all values of the other memory."""
        for key, region in other._regions.items():
            mine = self._regions[key] = Region()
            for address, entry in region.entries.items():
                copy = Entry(None, entry.size, entry.unknown, entry.padding)
                self._hold(copy, entry.value)
                mine.insert(address, copy)

    def clear(self) -> None:
        self.forget_devices([device for device, _ in self._regions])

    def exclusive(self, slot: Slot, members: list[int]) -> torch.Tensor:
        entries = [self._entry(slot.devices[i], slot) for i in members]
        value = entries[0].value  # the members share it
        if is_float(value) and value.dtype != torch.float32:
            value = value.float()
            for entry in entries:
                self._hold(entry, value)
        return super().exclusive(slot, members)


class Reader:
    """A memory's values as the goldens of one call take them: in float32."""

    def __init__(self, source: GoldenMemory, step: Step, in_float32: bool = True):
        self.source, self.step = source, step
        self.in_float32 = in_float32
        golden = step.golden
        takes_any = golden.function.__module__.startswith(_ANY_HOLDER) or golden.name in _ANY_HOLDER_OPS
        self.wide = in_float32 and not takes_any
        self._widened: dict[int, tuple] = {}  # id -> (the tensor, itself in float32)

    def __getattr__(self, name):
        return getattr(self.source, name)

    def read(self, slot: Slot, as_codes: bool = False) -> list[torch.Tensor]:
        return [self._float32(value) for value in self.source.read(slot, as_codes)]

    def _float32(self, value: torch.Tensor) -> torch.Tensor:
        if not self.wide or not is_float(value):
            return value
        if id(value) not in self._widened:
            self._widened[id(value)] = value, value.float()
        return self._widened[id(value)][1]


class Scratch(Reader):
    """Takes the results of one call and leaves the memory that it reads as it is."""

    def __init__(self, source: GoldenMemory, step: Step, in_float32: bool = True):
        super().__init__(source, step, in_float32)
        self.results: dict[Slot, list] = {}

    def write(self, slot: Slot, values, unknown=None, padding=None) -> None:
        self.results[slot] = values

    def forget(self, slot: Slot, why: str) -> None:
        pass

    def settle(self, slot: Slot, unknown) -> None:
        pass

    def exclusive(self, slot: Slot, members: list[int]) -> torch.Tensor:
        """A copy of the value to write in place. Elements that the op never reads are NaN."""
        value = unwritten(slot) if self.step.golden.unread else self.source.read(slot)[members[0]]
        dtype = torch.float32 if self.in_float32 and is_float(value) else value.dtype
        value = torch.empty(slot.shape, dtype=dtype).copy_(value)
        results = self.results.setdefault(slot, [None] * len(slot.devices))
        for chip in members:
            results[chip] = value
        return value


def is_float(value: Optional[torch.Tensor]) -> bool:
    return value is not None and value.is_floating_point()
