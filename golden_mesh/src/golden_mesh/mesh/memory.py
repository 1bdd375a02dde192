"""Golden memory: the values that every chip of the mesh holds, keyed by the chips' own addresses.

An entry is the torch value of one tensor on one chip. Its key is (device id, buffer type, address). The real
allocator gives the addresses, so lifetimes need no bookkeeping here: memory that is allocated again replaces the old
entry, and a view reads the entry of its base under another shape. New content that begins at another address, or has
another size, is an error here, garbage on a chip.

Values that are equal by construction are one torch tensor: replicas, and results of ops that only move data. Before
an op writes in place, `exclusive` copies a shared value.

Memory that was only allocated is unknown, and so is a value computed from it; `read` refuses it. A tensor is known
or unknown as a whole, but for ops that write parts of a tensor without reading it (into a cache). They leave marks
in the elements that were never written, and the tensor is known again when none are left. The mark is NaN, so
writing a NaN counts as writing nothing.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import prod
from typing import Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F

from golden_mesh.arithmetic.block_floats import BlockFloats
from golden_mesh.errors import GoldenError, UnknownMemory

TILE = 32  # rows and columns
# An object's id. id() itself raises an audit event, for which filelock, which huggingface_hub loads, has a hook.
identity = object.__hash__
NEVER_WRITTEN = "was allocated and never written"
PARTLY_WRITTEN = "was allocated and is written only in part"


class Part(NamedTuple):
    """A view of `length` elements from `start` along `dim`, as ttnn.narrow makes them."""

    whole: "Slot"
    dim: int
    start: int
    length: int


class Slot(NamedTuple):
    """Where a device tensor lives, and how it reads the memory."""

    devices: tuple[int, ...]  # chip ids, in the tensor's order of mesh coordinates
    coordinates: tuple[tuple[int, ...], ...]  # mesh coordinates of these chips
    buffer_type: object  # ttnn.BufferType
    address: int  # bytes, the same in every bank
    size: int  # bytes in a bank
    shape: tuple[int, ...]  # logical shape on one chip
    dtype: object  # ttnn.DataType
    part: Optional["Part"] = None  # set if the tensor is a part of the memory's content

    @property
    def whole(self) -> "Slot":
        """Of a view the tensor that it is a part of."""
        return self if self.part is None else self.part.whole

    def __hash__(self) -> int:
        return hash((self.address, self.shape))  # ttnn's enums take most of the time of a whole tuple's

    def __str__(self) -> str:
        return f"{list(self.shape)} {self.dtype.name} at {self.buffer_type.name} address {self.address:#x}"


@dataclass
class Entry:
    value: torch.Tensor | BlockFloats | None  # None: completely unknown
    size: int  # bytes in a bank
    unknown: str | None  # why the value is unknown; a partly known value has marks
    padding: float | None = None  # value in the padding of its tiles; None: unknown


Region = dict[int, Entry]  # the entries of one chip and buffer type, by address


class GoldenMemory:
    def __init__(self):
        # By device and the identity of the buffer type: an enum's own hash takes longer than the rest of a look-up.
        self._regions: dict[tuple[int, int], Region] = defaultdict(dict)
        self._holders: Counter[int] = Counter()  # torch storage -> number of entries with a value in it

    def forget(self, slot: Slot, why: str = NEVER_WRITTEN) -> None:
        """Make the slot's memory unknown from now on. Every entry that overlaps it is removed."""
        self.write(slot, [None] * len(slot.devices), why)

    def write(self, slot: Slot, values: list, unknown: str | None = None, padding: float | None = None) -> None:
        """Put one value a chip (None: unknown) at the slot. Every other entry that overlaps it is removed."""
        if 0 in slot.shape:  # all empty tensors have one address
            return
        kind = identity(slot.buffer_type)
        for device, value in zip(slot.devices, values, strict=True):
            region = self._regions[device, kind]
            entry = region.get(slot.address)
            if entry is None or entry.size != slot.size:  # else no other entry can overlap
                end = slot.address + slot.size
                for address in [at for at, other in region.items() if at < end and slot.address < at + other.size]:
                    self._release(region.pop(address))
                entry = region[slot.address] = Entry(None, slot.size, unknown)
            entry.unknown, entry.padding = unknown, padding
            self._hold(entry, value)

    def read(self, slot: Slot, as_codes: bool = False) -> list[torch.Tensor]:
        """Return the value on each chip in the slot's shape. Replicas are one torch tensor.

        as_codes: return BlockFloats where the memory holds them.
        """
        if as_codes and slot.part is None:
            entries = [self._held(device, slot) for device in slot.devices]
            if all(isinstance(e.value, BlockFloats) and e.value.shape == slot.shape for e in entries):
                return [entry.value for entry in entries]
        return self._read(slot, known=True)

    def padding(self, slot: Slot) -> float | None:
        """Return the value in the padding of the slot's tiles, on all of its chips. None: unknown, or a view."""
        if slot.part is not None:  # it may begin inside of its tensor's memory
            return None
        found = {
            entry.padding if entry.value is not None and _same_tiles(entry.value, slot) else None
            for entry in (self._entry(device, slot) for device in slot.devices)
        }
        return found.pop() if len(found) == 1 else None

    def is_unknown(self, slot: Slot) -> bool:
        """Whether a chip's memory at the slot was never written, or not all of it."""
        return any(self._held(device, slot.whole).unknown is not None for device in slot.devices)

    def writable(self, slot: Slot) -> list[torch.Tensor]:
        """Return the values for an op that writes to the slot without reading it. Unknown elements are marks."""
        target = slot.whole
        missing = [d for d in target.devices if self._entry(d, target).value is None]
        marks = unwritten(target) if missing else None
        for device in missing:
            self._hold(self._entry(device, target), marks)
        return self._read(slot, known=False)

    def settle(self, slot: Slot, unknown: str | None) -> None:
        """Update the slot after an op has written to it in place. unknown: why written values are unknown, or None."""
        entries = [self._entry(device, slot) for device in slot.devices]
        if unknown is None and not any(entry.unknown for entry in entries):
            return
        marked = {id(entry.value): _has_marks(entry.value) for entry in entries}
        for entry in entries:
            if not marked[id(entry.value)]:
                entry.unknown = None
            elif entry.unknown is None or entry.unknown == NEVER_WRITTEN:
                entry.unknown = unknown or PARTLY_WRITTEN

    def _read(self, slot: Slot, known: bool) -> list[torch.Tensor]:
        """known: whether unknown memory is refused."""
        if slot.part is not None:
            whole, part = self._read(slot.part.whole, known), slot.part
            return each_once(lambda value: value.narrow(part.dim, part.start, part.length), whole)
        values, views = [], {}
        for device in slot.devices:
            entry = self._entry(device, slot)
            if known and entry.unknown is not None:
                raise UnknownMemory(device, f"{slot}", entry.unknown)
            value = entry.value
            if value.shape != slot.shape:
                if id(value) not in views:
                    views[id(value)] = _as_view(value, slot, entry.padding)
                value = views[id(value)]
            values.append(value)
        return values

    def _entry(self, device: int, slot: Slot) -> Entry:
        """The entry, with its value as a tensor from now on: another op than a product reads it."""
        entry = self._held(device, slot)
        if isinstance(entry.value, BlockFloats):
            self._hold(entry, entry.value.unpacked())
        return entry

    def _held(self, device: int, slot: Slot) -> Entry:
        if 0 in slot.shape:
            return Entry(torch.empty(slot.shape, dtype=_HOLDERS.get(slot.dtype.name, torch.bfloat16)), 0, None)
        entry = self._regions[device, identity(slot.buffer_type)].get(slot.address)
        if entry is None:
            raise GoldenError(f"chip {device} has no value for {slot}: it was overwritten after it was made")
        return entry

    def exclusive(self, slot: Slot, members: list[int]) -> torch.Tensor:
        """Return the value that the chips `members` (indices into slot.devices) share, to be written in place: a copy
        if any other entry has a value in its storage.
        """
        if 0 in slot.shape:
            return self._read(slot, known=False)[0]
        devices = [slot.devices[i] for i in members]
        if slot.part is not None:
            raise GoldenError(f"an op writes in place into {slot}, which is only a part of what lies there")
        for device in devices:
            self._entry(device, slot).padding = None  # unknown after the op
        value = self._entry(devices[0], slot).value
        if value.numel() != prod(slot.shape):
            raise GoldenError(f"an op writes in place into {slot}, which is only some rows of what lies there")
        if self._holders[_storage(value)] != len(members) or not value.is_contiguous():
            value = value.clone(memory_format=torch.contiguous_format)
            for device in devices:
                self._hold(self._entry(device, slot), value)
        return value.view(slot.shape)

    def free(self, slot: Slot) -> None:
        """Forget the slot's values: its buffer was deallocated."""
        for device in slot.devices:
            region = self._regions[device, identity(slot.buffer_type)]
            if slot.address in region:
                self._release(region.pop(slot.address))

    def forget_devices(self, devices: list[int]) -> None:
        """Forget everything on these chips: their mesh was closed."""
        for key in [key for key in self._regions if key[0] in devices]:
            for entry in self._regions.pop(key).values():
                self._release(entry)

    def host_bytes(self) -> int:
        """Bytes of host memory that the values take, each storage counted once."""
        entries = (entry for region in self._regions.values() for entry in region.values())
        values = (entry.value for entry in entries if entry.value is not None)
        return sum({_storage(value): value.untyped_storage().nbytes() for value in values}.values())

    def _hold(self, entry: Entry, value: torch.Tensor | None) -> None:
        """Put a value into the entry in place of the one that it has."""
        if value is not None:
            self._holders[_storage(value)] += 1
        self._release(entry)
        entry.value = value

    def _release(self, entry: Entry) -> None:
        if entry.value is not None:
            self._holders[_storage(entry.value)] -= 1


_HOLDERS = {"FLOAT32": torch.float32, "INT32": torch.int32, "UINT16": torch.int32, "UINT32": torch.int64}
_MARK = -(1 << 31)  # for integers: neither a uint16 nor a uint32, and the one int32 that a chip cannot negate


def unwritten(slot: Slot) -> torch.Tensor:
    """Return marks in the slot's shape: one element, expanded."""
    if slot.dtype.name == "UINT8":  # every code is a valid value
        raise GoldenError(f"an op writes in place into {slot}, which {NEVER_WRITTEN}")
    holder = _HOLDERS.get(slot.dtype.name, torch.bfloat16)
    return torch.full((), torch.nan if holder.is_floating_point else _MARK, dtype=holder).expand(slot.shape)


def _has_marks(value: torch.Tensor) -> bool:
    """Whether an element is marked. A tensor of the device meta has shapes alone, as in a test of what fits."""
    if value.is_meta:
        return False
    return bool(value.isnan().any() if value.is_floating_point() else (value == _MARK).any())


def _as_view(value: torch.Tensor, slot: Slot, padding: float | None) -> torch.Tensor:
    """Return `value` in the slot's shape. The slot may hold:

    - all elements;
    - the first rows of each matrix, or of its equal parts that are whole tiles: the others are the view's padding;
    - the first rows and columns of the same tiles, after an op (ttnn.pad) wrote into their padding;
    - also the rows and columns that pad a tile: `padding`. None: unknown, so NaN (0 for integers) here.
    """
    if value.numel() == prod(slot.shape):
        return value.reshape(slot.shape)
    if value.dim() >= 2 and len(slot.shape) >= 2:
        (rows, columns), count = slot.shape[-2:], prod(slot.shape[:-2])
        matrices = value.reshape(-1, *value.shape[-2:])
        if len(matrices) != count and value.shape[-1] == columns and value.shape[-2] % _in_tiles(rows) == 0:
            matrices = matrices.reshape(-1, _in_tiles(rows), columns)
        (height, width), matches = matrices.shape[1:], len(matrices) == count
        cuts_rows = rows < height and columns == width
        if matches and (cuts_rows or (rows <= height <= _in_tiles(rows) and columns <= width <= _in_tiles(columns))):
            return matrices[:, :rows, :columns].reshape(slot.shape)
        if matches and rows in (height, _in_tiles(height)) and columns in (width, _in_tiles(width)):
            unknown = torch.nan if value.is_floating_point() else 0
            filled = unknown if padding is None else padding
            return F.pad(matrices, (0, columns - width, 0, rows - height), value=filled).reshape(slot.shape)
    raise GoldenError(
        f"{list(value.shape)} lies where {slot} is read: a view must keep its elements, cut off rows or add a tile's "
        "padding"
    )


def _in_tiles(extent: int) -> int:
    return -(-extent // TILE) * TILE


def _same_tiles(value: torch.Tensor, slot: Slot) -> bool:
    """Whether the slot differs from `value` at most in its outer dimensions."""
    return tuple(value.shape[-2:]) == slot.shape[-2:] and value.numel() == prod(slot.shape)


def each_once(function: Callable, *lists: list) -> list:
    """Call the function with the values of each chip, and once for replicas."""
    distinct = {tuple(map(id, values)): values for values in zip(*lists)}
    results = {key: function(*values) for key, values in distinct.items()}
    return [results[tuple(map(id, values))] for values in zip(*lists)]


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata
