"""`perf run --csv`: a table of operations in the form of tt-metal's profiler, for tt-perf-report and
ttnn-visualizer.

Times are modeled. A row is a launch: its kernel's price, and the gap before it.
"""

import csv
from pathlib import Path
from typing import Iterable

from golden_mesh.outputs import write_whole

from . import TABLE
from .device_ops import TILE, Tensor, ceil_div
from .prices import Row

INPUTS, OUTPUTS = 3, 1  # tensors of a row
NANOSECONDS = 1e9


def write(folder: Path, rows: Iterable[tuple[Row, int]]) -> Path:
    """rows: launches in the program's order, each with the cores of a chip."""
    records, now = [], 0
    for number, (row, cores) in enumerate(rows, 1):
        records.append(_record(number, row, cores, now))
        now += round(NANOSECONDS * row.seconds)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / TABLE
    write_whole(path, lambda part: _write_table(part, records))
    return path


def _write_table(path: Path, records: list[dict]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(records[0]) if records else [])
        table.writeheader()
        table.writerows(records)


def _record(number: int, row: Row, cores: int, now: int) -> dict:
    op, bound = row.op, row.bound
    program = "MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig" * op.dram_sharded
    kernel, launch, floor, compute, dram = (
        round(NANOSECONDS * seconds) for seconds in (bound.kernel, bound.gap, bound.floor, bound.compute, bound.dram)
    )
    return {
        "OP CODE": f"{op.name}DeviceOperation",
        "OP TYPE": "tt_dnn_device",
        "GLOBAL CALL COUNT": number,
        "DEVICE ID": 0,
        "DEVICE ARCH": "wormhole_b0",
        "ATTRIBUTES": f"{{'times': 'modeled'; 'program_factory': '{op.factory}'; 'program_config': '{program}'}}",
        "MATH FIDELITY": op.fidelity or "",
        "CORE COUNT": row.work.cores or cores,
        "AVAILABLE WORKER CORE COUNT": cores,
        "HOST START TS": now,
        "OP TO OP LATENCY [ns]": launch,
        "DEVICE FW DURATION [ns]": kernel,
        "DEVICE KERNEL DURATION [ns]": max(1, kernel),
        **_tensors("INPUT", op.inputs, INPUTS),
        **_tensors("OUTPUT", op.results or op.inputs, OUTPUTS),
        "PM IDEAL [ns]": floor,
        "PM COMPUTE [ns]": compute,
        "PM BANDWIDTH [ns]": dram,
    }


def _tensors(kind: str, tensors: tuple[Tensor, ...], count: int) -> dict:
    """Columns of the first tensors. An extent is written padded[logical]."""
    columns = {}
    for i in range(count):
        tensor = tensors[i] if i < len(tensors) else None
        shape = (1,) * (4 - len(tensor.shape)) + tensor.shape[-4:] if tensor else ()
        for dim, name in enumerate("WZYX"):
            extent = shape[dim] if shape else ""
            padded = ceil_div(extent, TILE) * TILE if shape and tensor.tiled and dim > 1 else extent
            columns[f"{kind}_{i}_{name}_PAD[LOGICAL]"] = f"{padded}[{extent}]" if shape else ""
        place = tensor and f"DEV_0_{tensor.buffer}_{tensor.layout.upper().replace('-', '_')}"
        columns[f"{kind}_{i}_LAYOUT"] = tensor and ("TILE" if tensor.tiled else "ROW_MAJOR")
        columns[f"{kind}_{i}_DATATYPE"] = tensor and tensor.dtype.upper()
        columns[f"{kind}_{i}_MEMORY"] = place
    return columns
