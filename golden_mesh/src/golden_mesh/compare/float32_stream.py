"""The float32 stream beside golden memory, the results of one call in float32, and the values of host tensors before
ttnn.from_torch rounded them (golden-mesh compare).
"""

import functools
from typing import Callable, NamedTuple, Optional

import torch
import ttnn

from golden_mesh.arithmetic.packer import BLOCK_FLOATS
from golden_mesh.arithmetic.plain import is_plain
from golden_mesh.mesh.memory import Entry, GoldenMemory, Slot, unwritten
from golden_mesh.mesh.steps import Step
from golden_mesh.mesh.transfer import bytes_of, shard_values

# Files of goldens that compute alike from bfloat16 and from float32 holders of equal values. Their large inputs
# (weights, caches) need no copy in float32. So does ttnn.embedding.
_ANY_HOLDER = frozenset("matmul attention attention_decode heads layout data_movement".split())
KEPT = 64  # host tensors that may still be sent to a device


class Stream(GoldenMemory):
    """The float32 stream. Values may be in the dtype of their source; an operation that writes in place widens them."""

    def __init__(self, beside: GoldenMemory):
        """It begins with the values of the memory beside it, which they share."""
        super().__init__()
        self._holders = beside._holders  # one storage may be in both memories
        for key, region in beside._regions.items():
            for address, entry in region.items():
                copy = self._regions[key][address] = Entry(None, entry.size, entry.unknown, entry.padding)
                self._hold(copy, entry.value)

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
    """A memory's values as the goldens of one call take them: in float32 inside `plain_float32`."""

    def __init__(self, source: GoldenMemory, step: Step):
        self.source, self.step = source, step
        self.takes_any = step.golden.family in _ANY_HOLDER or step.golden.name == "ttnn.embedding"
        self._widened: dict[int, tuple] = {}  # id -> (the tensor, itself in float32)

    def __getattr__(self, name):
        return getattr(self.source, name)

    def read(self, slot: Slot, as_codes: bool = False) -> list[torch.Tensor]:
        return [self._float32(value) for value in self.source.read(slot, as_codes)]

    def _float32(self, value: torch.Tensor) -> torch.Tensor:
        if self.takes_any or not is_plain() or not is_float(value):
            return value
        if id(value) not in self._widened:
            self._widened[id(value)] = value, value.float()
        return self._widened[id(value)][1]


class Scratch(Reader):
    """Takes the results of one call and leaves the memory that it reads as it is."""

    def __init__(self, source: GoldenMemory, step: Step):
        super().__init__(source, step)
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
        dtype = torch.float32 if is_plain() and is_float(value) else value.dtype
        value = torch.empty(slot.shape, dtype=dtype).copy_(value)
        results = self.results.setdefault(slot, [None] * len(slot.devices))
        for chip in members:
            results[chip] = value
        return value


def is_float(value: Optional[torch.Tensor]) -> bool:
    return value is not None and value.is_floating_point()


class Source(NamedTuple):
    """A shard of a host tensor: the call of ttnn.from_torch that made it, and the shard's number."""

    shards: Callable[[], list[torch.Tensor]]  # in float32, or in bfloat16 if they came in bfloat16
    index: int
    site: object


class Sources:
    """Host tensors by the address of their buffers. An address may be used again: the caller checks the values."""

    def __init__(self):
        self._by_address: dict[int, Source] = {}  # the last one noted is the last

    def note(self, host: ttnn.Tensor, tensor: torch.Tensor, site, convert: Callable) -> None:
        """`host` was made of `tensor`. convert(tensor, dtype): the same call to another dtype, on the host."""
        narrow = tensor.dtype == torch.bfloat16
        rounds = host.dtype in BLOCK_FLOATS if narrow else host.dtype != ttnn.float32
        if not tensor.is_floating_point() or not rounds:
            return

        @functools.cache
        def shards() -> list[torch.Tensor]:
            return shard_values(convert(tensor, ttnn.bfloat16 if narrow else ttnn.float32))

        for index, address in enumerate(addresses(host)):
            self._by_address.pop(address, None)
            self._by_address[address] = Source(shards, index, site)
        for address in list(self._by_address)[:-KEPT]:
            del self._by_address[address]

    def find(self, host: ttnn.Tensor) -> Optional[tuple[list[torch.Tensor], object]]:
        """The shards of `host` before they were rounded, and where. None: they are unknown."""
        found = [self._by_address.get(address) for address in addresses(host)]
        if None in found:
            return None
        return [source.shards()[source.index] for source in found], found[0].site


def addresses(host: ttnn.Tensor) -> list[int]:
    """Where each shard lies in the host's memory."""
    return [bytes_of(shard).data_ptr() for shard in ttnn.get_device_tensors(host)]
