"""Prices of the operations of a golden-mesh record."""

from typing import Any, Optional, Sequence

from golden_mesh.graph.device_ops import Op, Tensor
from golden_mesh.graph.recorder import Launch

from .program import priced


def launches_of(recorded: Sequence[tuple]) -> list[tuple[Launch, int]]:
    """The device operations of a recorded operation, and how often each runs."""
    found = []
    for fields, *where, count in recorded:
        tensors = {key: tuple(Tensor(**tensor) for tensor in fields[key]) for key in ("inputs", "outputs")}
        found.append((Launch(Op(**fields | tensors), *where), count))
    return found


def prices_of(recorded: Sequence[tuple], arch: str) -> dict[str, Any]:
    """modeled_us: of a call, with full caches and one link; None on another architecture than the record's, and for
    none that has prices. device_op: the key of its device operation; None unless there is exactly one.
    """
    launches = launches_of(recorded)
    priced_here = launches and all(launch.arch == arch == "wormhole" for launch, _ in launches)
    modeled: Optional[float] = None
    if priced_here:
        modeled = 1e6 * sum(priced(launch, count, links=1, position=None).seconds for launch, count in launches)
    keys = [launch.op.key for launch, count in launches for _ in range(count)]
    return {"modeled_us": modeled, "device_op": keys[0] if len(keys) == 1 else None}
