"""What an op makes of memory that nobody has written: results that nobody knows, which only the host may not read."""

from typing import Iterable, Optional

import torch

from models.common.golden_mesh.errors import UnknownMemory
from models.common.golden_mesh.memory import GoldenMemory, Slot, unwritten

_DEPENDS = "depends on memory that nobody has written"
Shards = dict[Slot, list[torch.Tensor]]


def read_all(memory: GoldenMemory, slots: Iterable[Slot], op: str) -> tuple[Shards, dict[Slot, str]]:
    """What lies at the slots as far as it is known, and why the rest is not: the op that read unknown memory first."""
    shards, unknown = {}, {}
    for slot in slots:
        try:
            shards[slot] = memory.read(slot)
        except UnknownMemory as error:
            first = f"{_DEPENDS}: {op} read {error.slot}, which {error.why}"
            unknown[slot] = error.why if error.why.startswith(_DEPENDS) else first
    return shards, unknown


def as_marks(unknown: dict[Slot, str]) -> Optional[Shards]:
    """Marks in the place of unknown inputs, for an op that does no more with them than put them somewhere.

    None if one of them is of whole numbers. Those say where an op writes (positions, page tables), so that all of
    what it may write to is unknown.
    """
    if any("INT" in slot.dtype.name for slot in unknown):
        return None
    return {slot: [unwritten(slot)] * len(slot.devices) for slot in unknown}


def keep_marks(values: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """`packed`, the packing of `values`, with their marks, of which a block float may have made anything."""
    return torch.where(values.isnan(), torch.nan, packed) if values.is_floating_point() else packed
