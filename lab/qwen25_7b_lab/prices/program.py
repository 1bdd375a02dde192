"""`perf run`: prints the prices of a program's device operations at its exit; and prices of a golden-mesh record."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from golden_mesh.mesh import dispatch
from golden_mesh.outputs import at_exit
from golden_mesh.replay.kinds import from_plain

from . import ops_csv
from .device_ops import operations, program_fields
from .op_costs import chips_of
from .prices import Row
from .recorder import Launch, Recorder, launch_of, recording
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


def prices_of(op: dict[str, Any], device, arch: str) -> dict[str, Any]:
    """modeled_us: of a call, with full caches and one link; None where the architecture has no prices. device_op: the
    key of its device operation; None unless there is exactly one. op: of golden-mesh record.
    """
    program = from_plain(op["arguments"][1].get("program_config"))
    ring = "Topology', 'Ring'" in repr(op["arguments"])
    found = [replace(each, ring=each.ring or ring, **program_fields(program)) for each in operations(op["graph"])]
    modeled: Optional[float] = None
    if found and arch == "wormhole":
        launches = (launch_of(each, device) for each in found)
        modeled = 1e6 * sum(priced(launch, 1, links=1, position=None).seconds for launch in launches)
    return {"modeled_us": modeled, "device_op": found[0].key if len(found) == 1 else None}
