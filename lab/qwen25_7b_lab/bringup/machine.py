"""The machine beside what plans assume: python -m qwen25_7b_lab.bringup.machine --mesh N300 --out DIR"""

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import Callable, Optional

from models.demos.qwen25_7b.cli.terminal import say
from models.demos.qwen25_7b.files import write_json
from models.demos.qwen25_7b.plans.chip import Chip
from models.demos.qwen25_7b.plans.machines import TTNN_VERSION, Split
from models.demos.qwen25_7b.tt.mesh import backend_name, open_mesh, select_backend

from ..options import markdown
from .stages import run_program

Fact = tuple[str, str, Optional[str]]  # what, found, assumed by the plans: None where they assume nothing

CHIP: dict[str, Callable[[Chip], object]] = {
    "architecture": lambda chip: chip.architecture,
    "compute grid": lambda chip: f"{chip.grid.x}x{chip.grid.y}",
    "banks of DRAM": lambda chip: chip.banks,
    "DRAM of a chip": lambda chip: f"{chip.dram_bytes / 1e9:.2f} GB",
    "alignment in DRAM": lambda chip: f"{chip.dram_alignment} bytes",
    "L1 of a core for buffers": lambda chip: f"{chip.l1:,} bytes",
}


def facts(mesh: str, backend: str) -> list[Fact]:
    import ttnn

    from models.demos.qwen25_7b.tt.placement import chip_of, links_between, row_topology

    split, cards = Split.of(mesh), sorted(Path("/sys/class/tenstorrent").glob("*"))
    firmware = dict.fromkeys(_read(f"{card}/tt_fw_bundle_ver") for card in cards)
    with open_mesh(split) as device:
        kind, found = split.kind, chip_of(device)
        installed = tuple(map(int, version("ttnn").split(".")[:2]))
        joins = "right" if installed >= (0, 81) else "wrong below 0.81 (tt-metal 56171)"
        return [
            ("below ttnn", backend_name(backend), "silicon"),
            ("ttnn", version("ttnn").split("+")[0], TTNN_VERSION),
            ("decode attention of several cores a KV head, float32 dest", joins, "right"),
            ("driver", _read("/sys/module/tenstorrent/version"), None),
            ("firmware", ", ".join(firmware) or "not readable", None),
            ("huge pages of 1 GB", _read("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"), None),
            ("chips", f"{ttnn.get_num_devices()}", f"{kind.chips}"),
            *((what, f"{of(found)}", f"{of(kind.chip)}") for what, of in CHIP.items()),
            ("links between neighbors", f"{links_between(device)}", f"{kind.links if kind.chips > 1 else 1}"),
            ("topology of a row", row_topology(device), "ring" if kind.is_ring(kind.row) else "line"),
        ]


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "not readable"


def compare(args: argparse.Namespace) -> None:
    found = facts(args.mesh, select_backend(args.backend, args.mesh))
    header = "what", "found", "assumed"
    write_json(args.out / "machine.json", [dict(zip(header, fact)) for fact in found])
    say(markdown(header, [(what, value, assumed or "") for what, value, assumed in found]))


if __name__ == "__main__":
    run_program(__doc__, compare)
