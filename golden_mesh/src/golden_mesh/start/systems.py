"""The machines that the golden mesh simulates: N150, N300, N150x4, T3K and GALAXY, and with Blackhole chips P100, P150,
P300, P150x4, P150x8 and BHGLX.

The facts about boards are Tenstorrent's:

- The chips of a board, and which of them sit on PCIe.
- The wiring of the ethernet channels. An N300 joins its two chips by channels 8-0 and 9-1.
- A T3K is four N300 in a 2x4 mesh.
- An N150x4 is four N150 in a ring. A cable of four links joins each to the next. ttnn has no descriptor of this
  machine, and takes its mesh from the links.
- A P150 has one chip with 12 of 14 ethernet cores and one of two PCIe cores. A P150x4 is four P150 in a ring,
  each joined to two others by four cables. A P150x8 is eight P150 in a 2x4 mesh with two links between neighbors.
- A P100 has one chip without ethernet, and seven of eight DRAM banks. A P300 has two chips, both on PCIe, and two
  links. Each has the PCIe core of its side.
- A Galaxy has four trays of eight chips, all on PCIe, in a 4x8 torus. Four links join each chip to each of its four
  neighbors, two with Blackhole chips (BHGLX). The trays lie as tt-metal's physical groupings of a Wormhole Galaxy say.

The descriptor has the shape that tt-umd, the driver library below ttnn, reads of a real machine.

Facts that differ from card to card are made up: board numbers, and which rows of Tensix cores are harvested.
The number of harvested rows is the product's: one on an N150, two on each chip of an N300, none in a Galaxy.
Of a Blackhole's 14 columns two are harvested, one in a BHGLX. A P150 had 14 before firmware 19.5.0 (January 2026),
which switches two off (tt-metal issue 47014). Which channels the cables of an N150x4 use is made up, too.

`tests` opens every mesh.
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
_NONE_HARVESTED = {
    "noc_translation": True,
    "dram_harvesting_mask": 0,
    "eth_harvesting_mask": 0,
    "pcie_harvesting_mask": 0,
}
_TRAY_BUS = {  # tray -> the first number of its PCIe buses
    "wormhole_b0": {1: 0xC0, 2: 0x80, 3: 0x00, 4: 0x40},
    "blackhole": {1: 0x00, 2: 0x40, 3: 0xC0, 4: 0x80},
}
_BLACKHOLE = _NONE_HARVESTED | {
    "eth_harvesting_mask": 0b1_0010_0000,
    "pcie_harvesting_mask": 0b10,
    "l2cpu_harvesting_mask": 0,
}
_HARVESTING = {  # kind of board -> what each has switched off; of the others nothing
    "p100": _BLACKHOLE | {"eth_harvesting_mask": 0x3FFF, "dram_harvesting_mask": 0b1000},
    "p150": _BLACKHOLE,
    "p300": _BLACKHOLE,
    "ubb_blackhole": _BLACKHOLE,
}


@dataclass(frozen=True)
class Board:
    """A card: its product and the chips on it, those on PCIe first."""

    kind: str
    chips: tuple[int, ...]
    on_pcie: int = 1  # how many chips are on PCIe


@dataclass(frozen=True)
class TrayPlace:
    """The place of a Galaxy's chip: its tray (1 to 4) and its location on the tray (1 to 8)."""

    tray: int
    location: int

    @property
    def chip(self) -> int:
        """The chip at this place: we number the chips tray by tray."""
        return 8 * (self.tray - 1) + self.location - 1

    def bus(self, arch: str) -> str:
        """Return the PCIe bus. ttnn takes the tray from it."""
        return f"0x{_TRAY_BUS[arch][self.tray] + self.location:04x}"


@dataclass(frozen=True)
class System:
    """A machine with chips of one architecture, numbered from 0 as ttnn numbers them."""

    name: str
    # Of chip 0, 1, ...: (x, y) in the mesh. Chips of a Blackhole or a Galaxy have None: ttnn finds their places by the
    # links.
    coordinates: tuple[tuple[int, int] | None, ...]
    links: tuple[tuple[Port, Port], ...]  # an ethernet cable, or a trace on the board, each listed once
    boards: tuple[Board, ...]
    harvested_rows: tuple[
        int, ...
    ]  # of chip 0, 1, ...: a bit for every row of Tensix cores that is switched off (for every column of a Blackhole)
    arch: str = "wormhole_b0"
    tray_places: tuple[TrayPlace, ...] = ()  # of chip 0, 1, ... of a Galaxy

    @property
    def chips(self) -> int:
        """How many chips the machine has."""
        return len(self.coordinates)

    @property
    def mmio_chips(self) -> tuple[int, ...]:
        """The chips that the host reaches over PCIe. It reaches the other chips through these."""
        return tuple(sorted(chip for board in self.boards for chip in board.chips[: board.on_pcie]))

    def descriptor(self) -> str:
        """Return the machine's cluster descriptor (YAML). TT_METAL_MOCK_CLUSTER_DESC_PATH names a file with
        this text.
        """
        chips = range(self.chips)
        placed = {chip: place for chip, place in enumerate(self.coordinates) if place is not None}
        identified = {chip: _FIRST_ID + chip for chip in chips if chip not in placed}
        kind = self.boards[0].kind
        locations = {chip: i for board in self.boards for i, chip in enumerate(board.chips)}
        locations |= {place.chip: place.location for place in self.tray_places}
        buses = {place.chip: place.bus(self.arch) for place in self.tray_places}
        return yaml.safe_dump(
            ({"chip_unique_ids": identified, "asic_locations": locations} if identified else {})
            | ({"chip_to_bus_id": buses} if buses else {})
            | {
                "arch": {chip: self.arch for chip in chips},
                # x, y, rack, shelf
                "chips": {chip: [x, y, 0, 0] for chip, (x, y) in placed.items()},
                "ethernet_connections": [[_port(a), _port(b)] for a, b in self.links],
                "chips_with_mmio": [{chip: slot} for slot, chip in enumerate(self.mmio_chips)],
                "harvesting": {
                    chip: _HARVESTING.get(kind, _NONE_HARVESTED)
                    | ({"pcie_harvesting_mask": 2 >> locations[chip]} if kind == "p300" else {})
                    | {"harvest_mask": mask}
                    for chip, mask in enumerate(self.harvested_rows)
                },
                "boards": [
                    [
                        {"board_id": _FIRST_SERIAL[board.kind] + place},
                        {"board_type": board.kind},
                        {"chips": list(board.chips)},
                    ]
                    for place, board in enumerate(self.boards)
                ],
            }
        )


def _port(port: Port) -> dict[str, int]:
    chip, channel = port
    return {"chip": chip, "chan": channel}


def _pair(a: Port, b: Port) -> tuple[tuple[Port, Port], ...]:
    """Return two links side by side. Two consecutive channels each join neighboring chips."""
    return (a, b), ((a[0], a[1] + 1), (b[0], b[1] + 1))


def _cables(
    a: int, b: int, *, first: int, to: int | None = None, count: int = 4, step: int = 1
) -> tuple[tuple[Port, Port], ...]:
    """Return `count` links between two chips, from channel `first` of a on. They end at the channels from `to` on, or
    at channels of the same numbers. Of `step` consecutive channels one has a link.
    """
    to = first if to is None else to
    return tuple(((a, first + step * i), (b, to + step * i)) for i in range(count))


# The chips of a Galaxy from above, in four rows of eight. Each line is half a row: a tray and the locations on it.
_GALAXY_HALVES = (
    ((2, (1, 2, 3, 4)), (4, (4, 3, 2, 1))),
    ((2, (5, 6, 7, 8)), (4, (8, 7, 6, 5))),
    ((1, (5, 6, 7, 8)), (3, (8, 7, 6, 5))),
    ((1, (1, 2, 3, 4)), (3, (4, 3, 2, 1))),
)
_GALAXY = tuple(
    tuple(TrayPlace(tray, location).chip for tray, locations in row for location in locations) for row in _GALAXY_HALVES
)


_TRAY_PLACES = tuple(TrayPlace(tray, location) for tray in range(1, 5) for location in range(1, 9))


def _torus(rows: tuple[tuple[int, ...], ...], count: int) -> tuple[tuple[Port, Port], ...]:
    """Return the links of a torus: `count` to the right and `count` down from each chip."""
    height, width = len(rows), len(rows[0])
    return tuple(
        link
        for y, row in enumerate(rows)
        for x, chip in enumerate(row)
        for link in (
            *_cables(chip, row[(x + 1) % width], first=0, to=count, count=count),
            *_cables(chip, rows[(y + 1) % height][x], first=2 * count, to=3 * count, count=count),
        )
    )


_OTHER_NAMES = {"tg": "GALAXY"}  # tt-metal's tests name a Wormhole Galaxy so in MESH_DEVICE


def named(name: str) -> str:
    """Return the system's name as SYSTEMS spells it, for a name in any case; an unknown name as it is."""
    name = _OTHER_NAMES.get(name.lower(), name)
    return next((known for known in SYSTEMS if known.lower() == name.lower()), name)


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System(
            name="N150",
            coordinates=((0, 0),),
            links=(),
            boards=(Board("n150", (0,)),),
            harvested_rows=(0b00_0100_0000,),
        ),
        System(
            name="N300",
            coordinates=((0, 0), (1, 0)),
            links=_pair((0, 8), (1, 0)),
            boards=(Board("n300", (0, 1)),),
            harvested_rows=(0b00_0100_0001, 0b00_0000_0101),
        ),
        System(
            name="N150x4",
            coordinates=(None,) * 4,
            links=tuple(link for a in range(4) for link in _cables(a, (a + 1) % 4, first=0, to=8)),
            boards=tuple(Board("n150", (chip,)) for chip in range(4)),
            harvested_rows=(0b00_0100_0000,) * 4,
        ),
        # From above; chips on PCIe in the middle:                   4 - 0 - 2 - 6
        #                                                            |   |   |   |
        #                                                            5 - 1 - 3 - 7
        System(
            name="T3K",
            coordinates=((1, 0), (1, 1), (2, 0), (2, 1), (0, 0), (0, 1), (3, 0), (3, 1)),
            links=(
                # inside a board
                *_pair((0, 8), (4, 0)),
                *_pair((1, 8), (5, 0)),
                *_pair((2, 8), (6, 0)),
                *_pair((3, 8), (7, 0)),
                # between boards, along the long side of the mesh
                *_pair((0, 6), (2, 6)),
                *_pair((1, 0), (3, 0)),
                # between boards, along the short side
                *_pair((4, 6), (5, 6)),
                *_pair((0, 14), (1, 14)),
                *_pair((2, 14), (3, 14)),
                *_pair((6, 6), (7, 6)),
            ),
            boards=(Board("n300", (0, 4)), Board("n300", (1, 5)), Board("n300", (2, 6)), Board("n300", (3, 7))),
            harvested_rows=(0b10_0000_0001,) * 8,
        ),
        System(
            name="GALAXY",
            coordinates=(None,) * 32,
            links=_torus(_GALAXY, 4),
            boards=(Board("ubb", tuple(range(32)), on_pcie=32),),
            harvested_rows=(0,) * 32,
            tray_places=_TRAY_PLACES,
        ),
        System(
            name="P150",
            coordinates=(None,),
            links=(),
            boards=(Board("p150", (0,)),),
            harvested_rows=(0b10_0000_0100_0000,),
            arch="blackhole",
        ),
        System(
            name="P150x4",
            coordinates=(None,) * 4,
            links=(*_cables(0, 2, first=4), *_cables(0, 3, first=8), *_cables(1, 3, first=4), *_cables(1, 2, first=8)),
            boards=tuple(Board("p150", (chip,)) for chip in range(4)),
            harvested_rows=(0b10_0000_0100_0000, 0b1_0001_0000, 0b1100_0000, 0b100_0000_0001),
            arch="blackhole",
        ),
        # From above:                                                1 - 0 - 2 - 3
        #                                                            |   |   |   |
        #                                                            5 - 4 - 6 - 7
        System(
            name="P150x8",
            coordinates=(None,) * 8,
            links=(
                *(
                    link
                    for a, b in ((1, 0), (0, 2), (2, 3), (5, 4), (4, 6), (6, 7))
                    for link in _cables(a, b, first=9, to=4, count=2, step=2)
                ),
                *_cables(1, 5, first=4, count=2, step=2),
                *_cables(0, 4, first=5, count=2, step=2),
                *_cables(2, 6, first=8, count=2, step=2),
                *_cables(3, 7, first=9, count=2, step=2),
            ),
            boards=tuple(Board("p150", (chip,)) for chip in range(8)),
            harvested_rows=(0b10_0000_0100_0000, 0b1_0001_0000, 0b1100_0000, 0b100_0000_0001) * 2,
            arch="blackhole",
        ),
        System(
            name="P100",
            coordinates=(None,),
            links=(),
            boards=(Board("p100", (0,)),),
            harvested_rows=(0b1100_0000,),
            arch="blackhole",
        ),
        System(
            name="P300",
            coordinates=(None,) * 2,
            links=(((0, 2), (1, 9)), ((0, 3), (1, 8))),
            boards=(Board("p300", (0, 1), on_pcie=2),),
            harvested_rows=(0b10_0000_1000_0000, 0b1_0001_0000),
            arch="blackhole",
        ),
        System(
            name="BHGLX",
            coordinates=(None,) * 32,
            links=_torus(_GALAXY, 2),
            boards=(Board("ubb_blackhole", tuple(range(32)), on_pcie=32),),
            harvested_rows=(0b1000_0000,) * 32,
            arch="blackhole",
            tray_places=_TRAY_PLACES,
        ),
    )
}
