"""Ops on memory that was never written: other ops may take their unknown results, the host may not read them."""

from typing import Iterable, Optional

import torch

from golden_mesh.errors import UnknownMemory
from golden_mesh.mesh.memory import GoldenMemory, Slot, unwritten

_DEPENDS = "depends on memory that was never written"
Shards = list[Optional[list[torch.Tensor]]]  # of each input, by chip. None: not read, or unknown


def read_all(
    memory: GoldenMemory, slots: Iterable[Optional[Slot]], op: str, as_codes: frozenset[Slot] = frozenset()
) -> tuple[Shards, dict[Slot, str]]:
    """Return the known values at the slots, and the reason for each unknown slot: it names the first op that read
    unknown memory. A slot of None is not read. as_codes: slots whose values may be BlockFloats.
    """
    shards, unknown = [], {}
    for slot in slots:
        try:
            shards.append(None if slot is None else memory.read(slot, bool(as_codes) and slot in as_codes))
        except UnknownMemory as error:
            first = f"{_DEPENDS}: {op} read {error.slot}, which {error.why}"
            unknown[slot] = error.why if error.why.startswith(_DEPENDS) else first
            shards.append(None)
    return shards, unknown


def as_marks(unknown: dict[Slot, str]) -> Optional[dict[Slot, list[torch.Tensor]]]:
    """Return marks in place of unknown inputs, for an op that only moves its inputs.

    Returns None if an unknown input holds integers. Integers say where an op writes (positions, page tables),
    so every element that the op may write becomes unknown.
    """
    if any("INT" in slot.dtype.name for slot in unknown):
        return None
    return {slot: [unwritten(slot)] * len(slot.devices) for slot in unknown}


def keep_marks(values: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """Return `packed`, the packing of `values`, with their marks, which packing to a block float may change."""
    return torch.where(values.isnan(), torch.nan, packed) if values.is_floating_point() else packed
