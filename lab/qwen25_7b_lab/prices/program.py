"""`perf run`: prints the prices of a program's device operations at its exit; and prices of a golden-mesh record."""

from collections import Counter
from pathlib import Path
from typing import Any, Optional, Sequence

from golden_mesh.graph.device_ops import Op, Tensor
from golden_mesh.graph.recorder import Launch, Recorder, recording
from golden_mesh.mesh import dispatch
from golden_mesh.outputs import at_exit

from . import ops_csv
from .op_costs import chips_of
from .prices import Row
from .report import Section, report


def section(name: str, runs: int, launches: Counter[Launch], links: int, position: Optional[int]) -> Section:
    """The priced operations of a captured part."""
    rows = [priced(launch, count, links, position) for launch, count in launches.items()]
    return Section(name, runs, max((launch.devices for launch in launches), default=1), tuple(rows))


def priced(launch: Launch, count: int, links: int, position: Optional[int]) -> Row:
    op, devices, cores, arch = launch
    where = dict(links=links, chips=chips_of(op, devices), grid_cores=cores, arch=arch)
    return Row.make(op, count, position=position, **where)


def start(links: int, position: Optional[int], folder: Optional[str] = None) -> None:
    """Record this process's operations from now on. Call it after the golden mesh was activated.

    links: ethernet links between two chips. position: tokens in the caches of decode attention; None: full caches.
    folder: of the table for tt-perf-report (ops_csv.py).
    """
    recorder = Recorder()
    dispatch.REAL_CALL = recording(dispatch.REAL_CALL, recorder)

    def show() -> None:
        parts = [section(*part, links, position) for part in recorder.captured()]
        print(report(parts, links=links, position=position))
        if folder:
            launches = ((priced(each, 1, links, position), each.cores) for each in recorder.in_order)
            print(f"\nwritten: {ops_csv.write(Path(folder), launches)} (modeled times)")

    at_exit(show)


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
