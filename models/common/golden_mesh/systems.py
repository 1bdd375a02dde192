"""The machines that the golden mesh can pretend to be: N150, N300 and T3K.

Where the facts come from: which chips a board carries, which of them sit on PCIe and how the ethernet channels are
wired is how Tenstorrent builds these boards (an N300 joins its two chips by channels 8-0 and 9-1; a T3K is four N300
in a 2x4 mesh). The shape of the descriptor is what tt-umd, the driver library below ttnn, reads of a real machine. What
differs from card to card - board numbers, and which rows of Tensix cores are harvested - is made up here, in the number
that the product has: one harvested row on an N150, two on each chip of an N300. `tests/golden_mesh` opens every mesh.
"""

from dataclasses import dataclass

import yaml

Port = tuple[int, int]  # (chip, ethernet channel)

_FIRST_SERIAL = {"n150": 0x0100_0186_1190_2000, "n300": 0x0100_0146_1190_2000}  # the product code is in the upper bits


@dataclass(frozen=True)
class Board:
    """A card: its product and the chips on it, the one on PCIe first."""

    kind: str
    chips: tuple[int, ...]


@dataclass(frozen=True)
class System:
    """A machine with Wormhole chips, numbered from 0 as ttnn numbers them."""

    name: str
    coordinates: tuple[tuple[int, int], ...]  # of chip 0, 1, ...: (x, y) in the mesh
    links: tuple[tuple[Port, Port], ...]  # one ethernet cable (or trace on the board) each, written once
    boards: tuple[Board, ...]
    harvested_rows: tuple[int, ...]  # of chip 0, 1, ...: a bit for every row of Tensix cores that is switched off

    @property
    def chips(self) -> int:
        """How many chips the machine has."""
        return len(self.coordinates)

    @property
    def mmio_chips(self) -> tuple[int, ...]:
        """The chips that the host reaches over PCIe; it reaches the others through these."""
        return tuple(sorted(board.chips[0] for board in self.boards))

    def descriptor(self) -> str:
        """The cluster descriptor of this machine (YAML text), as TT_METAL_MOCK_CLUSTER_DESC_PATH wants it in a file."""
        return yaml.safe_dump(
            {
                "arch": {chip: "wormhole_b0" for chip in range(self.chips)},
                # x, y, rack, shelf
                "chips": {chip: [x, y, 0, 0] for chip, (x, y) in enumerate(self.coordinates)},
                "ethernet_connections": [[_port(a), _port(b)] for a, b in self.links],
                "chips_with_mmio": [{chip: slot} for slot, chip in enumerate(self.mmio_chips)],
                "harvesting": {chip: _harvesting(rows) for chip, rows in enumerate(self.harvested_rows)},
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


def _harvesting(rows: int) -> dict[str, int | bool]:
    return {
        "noc_translation": True,
        "harvest_mask": rows,
        "dram_harvesting_mask": 0,
        "eth_harvesting_mask": 0,
        "pcie_harvesting_mask": 0,
    }


def _pair(a: Port, b: Port) -> tuple[tuple[Port, Port], ...]:
    """Two links side by side: neighbouring chips are joined by two consecutive channels each."""
    return (a, b), ((a[0], a[1] + 1), (b[0], b[1] + 1))


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
        # Seen from above, with the chips on PCIe in the middle:     4 - 0 - 2 - 6
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
    )
}
