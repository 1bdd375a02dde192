"""The machine beside what plans assume: python -m models.demos.qwen25_7b.bringup.machine --mesh N300 --out DIR"""

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from ..cli.terminal import markdown, say
from ..files import write_json
from ..plans.chip import Chip
from ..plans.machines import TTNN_VERSION, Split
from ..tt.mesh import describe_backend, open_mesh, select_backend
from .stages import run_program


class Fact(NamedTuple):
    """assumed: None where the plans assume nothing."""

    what: str
    found: str
    assumed: Optional[str] = None


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

    from ..tt.placement import chip_of, links_between, row_topology

    split, cards = Split.of(mesh), sorted(Path("/sys/class/tenstorrent").glob("*"))
    firmware = dict.fromkeys(_read(f"{card}/tt_fw_bundle_ver") for card in cards)
    with open_mesh(split) as device:
        kind, found = split.kind, chip_of(device)
        joins = "right" if found.ttnn >= (0, 81) else "wrong below 0.81 (tt-metal 56171)"
        return [
            Fact("below ttnn", describe_backend(backend).split(" (")[0], "silicon"),
            Fact("ttnn", version("ttnn").split("+")[0], TTNN_VERSION),
            Fact("decode attention of several cores a KV head, float32 dest", joins, "right"),
            Fact("driver", _read("/sys/module/tenstorrent/version")),
            Fact("firmware", ", ".join(firmware) or "not readable"),
            Fact("huge pages of 1 GB", _read("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages")),
            Fact("chips", f"{ttnn.get_num_devices()}", f"{kind.chips}"),
            *(Fact(what, f"{of(found)}", f"{of(kind.chip)}") for what, of in CHIP.items()),
            Fact("links between neighbors", f"{links_between(device)}", f"{kind.links if kind.chips > 1 else 1}"),
            Fact("topology of a row", row_topology(device), "ring" if kind.is_ring(kind.row) else "line"),
        ]


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "not readable"


def compare(args: argparse.Namespace) -> None:
    found = facts(args.mesh, select_backend(args.backend, args.mesh))
    write_json(args.out / "machine.json", [fact._asdict() for fact in found])
    say(markdown(("what", "found", "assumed"), [(f.what, f.found, f.assumed or "") for f in found]))


if __name__ == "__main__":
    run_program(__doc__, compare)
