"""The machines that the golden mesh simulates, as the cluster descriptors that tt-umd, the driver library below ttnn,
reads of real ones.

Boards, wiring and the number of cores that are switched off are Tenstorrent's: one row of Tensix cores of an N150,
two of each chip of an N300, none of a Galaxy; two of a Blackhole's 14 columns, one of a BHGLX. A P150 had 14 before
firmware 19.5.0 (January 2026, tt-metal issue 47014). The trays of a Galaxy lie as tt-metal's physical groupings say.
ttnn has no descriptor of an N150x4, and takes its mesh from the links.

Facts that differ from card to card are made up: board numbers, which rows of Tensix cores are switched off, and the
channels of an N150x4's cables. `tests` opens every mesh.
"""

from dataclasses import dataclass

import yaml

Port = tuple[int, int]  # (chip, ethernet channel)

_FIRST_SERIAL = {
    "n150": 0x0100_0186_1190_2000,
    "n300": 0x0100_0146_1190_2000,
    "p150": 0x0000_0412_3191_1000,
    "ubb": 0x0100_0350_1190_2000,
    "p100": 0x0000_0432_3191_1000,
    "p300": 0x0000_0451_3191_1000,
    "ubb_blackhole": 0x0000_0473_3191_1000,
}  # the product code is in the upper bits
_FIRST_ID = 0x8246_3222_2000
_TRAY_BUS = {"wormhole_b0": (0xC0, 0x80, 0x00, 0x40), "blackhole": (0x00, 0x40, 0xC0, 0x80)}  # first PCIe bus of trays
# What is switched off, beside rows of Tensix cores.
_WORMHOLE = {"dram_harvesting_mask": 0, "eth_harvesting_mask": 0, "pcie_harvesting_mask": 0, "noc_translation": True}
_BLACKHOLE = {"eth_harvesting_mask": 0b1_0010_0000, "pcie_harvesting_mask": 0b10, "l2cpu_harvesting_mask": 0}
_P100 = {"eth_harvesting_mask": 0x3FFF, "dram_harvesting_mask": 0b1000}


@dataclass(frozen=True)
class Board:
    """A card: its product and the chips on it, those on PCIe first."""

    kind: str
    chips: tuple[int, ...]
    on_pcie: int = 1  # how many chips are on PCIe


@dataclass(frozen=True)
class System:
    """A machine with chips of one architecture, numbered from 0 as ttnn numbers them; of a Galaxy tray by tray."""

    boards: tuple[Board, ...]
    # Of chip 0, 1, ...: a bit for every row of Tensix cores that is switched off (for every column of a Blackhole).
    harvested_rows: tuple[int, ...]
    links: tuple[tuple[Port, Port], ...] = ()  # an ethernet cable, or a trace on the board, each listed once
    # Of chip 0, 1, ...: (x, y) in the mesh. Chips of a Blackhole or a Galaxy have none: ttnn finds them by the links.
    coordinates: tuple[tuple[int, int], ...] = ()
    arch: str = "wormhole_b0"

    @property
    def chips(self) -> int:
        """How many chips the machine has."""
        return len(self.harvested_rows)

    def descriptor(self) -> str:
        """Return the machine's cluster descriptor (YAML), for the file that TT_METAL_MOCK_CLUSTER_DESC_PATH names."""
        chips, kind = range(self.chips), self.boards[0].kind
        on_pcie = sorted(chip for board in self.boards for chip in board.chips[: board.on_pcie])
        locations = {chip: i for board in self.boards for i, chip in enumerate(board.chips)}
        found = {}
        if kind.startswith("ubb"):  # four trays of eight; ttnn takes the tray from the bus
            locations = {chip: chip % 8 + 1 for chip in chips}
            buses = {chip: _TRAY_BUS[self.arch][chip // 8] + locations[chip] for chip in chips}
            found["chip_to_bus_id"] = {chip: f"0x{bus:04x}" for chip, bus in buses.items()}
        if not self.coordinates:
            found["chip_unique_ids"] = {chip: _FIRST_ID + chip for chip in chips}
            found["asic_locations"] = locations
        harvesting = _WORMHOLE | (_BLACKHOLE if self.arch == "blackhole" else {}) | (_P100 if kind == "p100" else {})
        return yaml.safe_dump(
            found
            | {
                "arch": {chip: self.arch for chip in chips},
                # x, y, rack, shelf
                "chips": {chip: [x, y, 0, 0] for chip, (x, y) in enumerate(self.coordinates)},
                "ethernet_connections": [[{"chip": c, "chan": n} for c, n in link] for link in self.links],
                "chips_with_mmio": [{chip: slot} for slot, chip in enumerate(on_pcie)],
                "harvesting": {
                    chip: harvesting
                    | ({"pcie_harvesting_mask": 2 >> locations[chip]} if kind == "p300" else {})
                    | {"harvest_mask": mask}
                    for chip, mask in enumerate(self.harvested_rows)
                },
                "boards": [
                    [{"board_id": _FIRST_SERIAL[each.kind] + i}, {"board_type": each.kind}, {"chips": list(each.chips)}]
                    for i, each in enumerate(self.boards)
                ],
            }
        )


def _links(*pairs: tuple[Port, Port], count: int = 2, step: int = 1) -> tuple[tuple[Port, Port], ...]:
    """Return `count` links for each pair of ports: one between them, the others `step` channels further each."""
    return tuple(((a, first + i), (b, to + i)) for (a, first), (b, to) in pairs for i in range(0, count * step, step))


# The chips of a Galaxy from above, in four rows of eight: trays 2 and 4, below them 1 and 3.
_GALAXY = (
    (8, 9, 10, 11, 27, 26, 25, 24),
    (12, 13, 14, 15, 31, 30, 29, 28),
    (4, 5, 6, 7, 23, 22, 21, 20),
    (0, 1, 2, 3, 19, 18, 17, 16),
)


def _torus(count: int) -> tuple[tuple[Port, Port], ...]:
    """Return a Galaxy's links: `count` to the right and `count` down from each chip."""
    found = []
    for y, row in enumerate(_GALAXY):
        for x, chip in enumerate(row):
            found += _links(((chip, 0), (row[(x + 1) % 8], count)), count=count)
            found += _links(((chip, 2 * count), (_GALAXY[(y + 1) % 4][x], 3 * count)), count=count)
    return tuple(found)


def named(name: str) -> str:
    """Return the system's name as SYSTEMS spells it, for a name in any case; an unknown name as it is."""
    names = {known.lower(): known for known in SYSTEMS} | {"tg": "GALAXY"}  # as tt-metal's tests say in MESH_DEVICE
    return names.get(name.lower(), name)


_P150_COLUMNS = (0b10_0000_0100_0000, 0b1_0001_0000, 0b1100_0000, 0b100_0000_0001)
SYSTEMS: dict[str, System] = {
    "N150": System(boards=(Board("n150", (0,)),), harvested_rows=(0b00_0100_0000,), coordinates=((0, 0),)),
    "N300": System(
        boards=(Board("n300", (0, 1)),),
        harvested_rows=(0b00_0100_0001, 0b00_0000_0101),
        links=_links(((0, 8), (1, 0))),
        coordinates=((0, 0), (1, 0)),
    ),
    "N150x4": System(
        boards=tuple(Board("n150", (chip,)) for chip in range(4)),
        harvested_rows=(0b00_0100_0000,) * 4,
        links=_links(*(((a, 0), ((a + 1) % 4, 8)) for a in range(4)), count=4),
    ),
    # From above; chips on PCIe in the middle:                   4 - 0 - 2 - 6
    #                                                            |   |   |   |
    #                                                            5 - 1 - 3 - 7
    "T3K": System(
        boards=(Board("n300", (0, 4)), Board("n300", (1, 5)), Board("n300", (2, 6)), Board("n300", (3, 7))),
        harvested_rows=(0b10_0000_0001,) * 8,
        links=(
            *_links(*(((chip, 8), (chip + 4, 0)) for chip in range(4))),  # inside a board
            *_links(((0, 6), (2, 6)), ((1, 0), (3, 0))),  # along the long side of the mesh
            *_links(((4, 6), (5, 6)), ((0, 14), (1, 14)), ((2, 14), (3, 14)), ((6, 6), (7, 6))),  # the short side
        ),
        coordinates=((1, 0), (1, 1), (2, 0), (2, 1), (0, 0), (0, 1), (3, 0), (3, 1)),
    ),
    "GALAXY": System(boards=(Board("ubb", tuple(range(32)), on_pcie=32),), harvested_rows=(0,) * 32, links=_torus(4)),
    "P150": System(boards=(Board("p150", (0,)),), harvested_rows=_P150_COLUMNS[:1], arch="blackhole"),
    "P150x4": System(
        boards=tuple(Board("p150", (chip,)) for chip in range(4)),
        harvested_rows=_P150_COLUMNS,
        links=_links(((0, 4), (2, 4)), ((0, 8), (3, 8)), ((1, 4), (3, 4)), ((1, 8), (2, 8)), count=4),
        arch="blackhole",
    ),
    # From above:                                                1 - 0 - 2 - 3
    #                                                            |   |   |   |
    #                                                            5 - 4 - 6 - 7
    "P150x8": System(
        boards=tuple(Board("p150", (chip,)) for chip in range(8)),
        harvested_rows=_P150_COLUMNS * 2,
        links=_links(
            *(((a, 9), (b, 4)) for a, b in ((1, 0), (0, 2), (2, 3), (5, 4), (4, 6), (6, 7))),
            *(((chip, channel), (chip + 4, channel)) for chip, channel in ((1, 4), (0, 5), (2, 8), (3, 9))),
            step=2,
        ),
        arch="blackhole",
    ),
    "P100": System(boards=(Board("p100", (0,)),), harvested_rows=(0b1100_0000,), arch="blackhole"),
    "P300": System(
        boards=(Board("p300", (0, 1), on_pcie=2),),
        harvested_rows=(0b10_0000_1000_0000, 0b1_0001_0000),
        links=(((0, 2), (1, 9)), ((0, 3), (1, 8))),
        arch="blackhole",
    ),
    "BHGLX": System(
        boards=(Board("ubb_blackhole", tuple(range(32)), on_pcie=32),),
        harvested_rows=(0b1000_0000,) * 32,
        links=_torus(2),
        arch="blackhole",
    ),
}
