"""The machines: how many chips each has, how they are joined, and what ttnn runs on. Nothing here imports ttnn."""

from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Optional

from ..errors import UserError, is_integer, shown
from .chip import BLACKHOLE, P100, WORMHOLE, Chip

TTNN_VERSION = "0.81.1"  # what this port was tested with
BACKENDS = ("auto", "device", "golden")  # below ttnn; see tt/mesh.py


def ttnn_version() -> Optional[str]:
    """The installed ttnn; None for a build that is not installed: a tt-metal checkout on PYTHONPATH."""
    with suppress(PackageNotFoundError):
        return version("ttnn")
    return None


class MeshError(UserError):
    """A requested machine or mesh is missing."""


@dataclass(frozen=True)
class MachineKind:
    """A machine as it is sold."""

    name: str
    shape: tuple[int, int]  # rows, columns of the mesh that is opened; a replica lies within a row
    mesh_device: str  # its name in MESH_DEVICE of tt-metal and vLLM
    links: int = 1  # ethernet links between neighbors that collectives may use (links_between)
    chip: Chip = WORMHOLE

    @property
    def chips(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def row(self) -> int:
        """Chips of a row. More cannot share a replica."""
        return self.shape[1]

    def is_ring(self, tp: int) -> bool:
        """Whether `tp` chips of a row are a ring: all chips of a row that is cabled around.

        Four N150 or four P150 are cabled in a ring. The row of a T3K or of eight P150 runs around
        2x4 chips. A Galaxy's row of 8 is a ring of its torus. Two chips are a line. Of an
        opened mesh the library decides (row_topology in tt/placement.py): a Galaxy may lack the cables of the torus.
        """
        return tp == self.row > 2


_KINDS = (
    MachineKind("N150", (1, 1), "N150"),
    MachineKind("N300", (1, 2), "N300"),
    MachineKind("N150x4", (1, 4), "N150x4", links=4),
    MachineKind("T3K", (1, 8), "T3K"),
    MachineKind("GALAXY", (4, 8), "TG", links=4),
    MachineKind("P100", (1, 1), "P100", chip=P100),
    MachineKind("P150", (1, 1), "P150", chip=BLACKHOLE),
    MachineKind("P300", (1, 2), "P300", links=2, chip=BLACKHOLE),
    MachineKind("P150x4", (1, 4), "P150x4", links=2, chip=BLACKHOLE),
    MachineKind("P150x8", (1, 8), "P150x8", links=2, chip=BLACKHOLE),
)
MACHINES = {kind.name: kind for kind in _KINDS}
BY_NAME = {name.upper(): kind for kind in _KINDS for name in (kind.name, kind.mesh_device)}
BY_NAME["P300X2"] = MACHINES["P150x4"]  # a QuietBox 2: two P300 are a ring of four chips, too


def machine(name: str, argument: str = "mesh") -> MachineKind:
    """The machine called `name`, in any case; TG is GALAXY, P300x2 is P150x4. argument: for an error."""
    if not isinstance(name, str) or name.upper() not in BY_NAME:
        raise MeshError(f"{argument} must be one of {', '.join(MACHINES)}; got {shown(name)}")
    return BY_NAME[name.upper()]


@dataclass(frozen=True)
class Split:
    """A machine's chips: tp chips of a row hold a replica of the model, and dp replicas run side by side."""

    kind: MachineKind
    tp: int

    @classmethod
    def of(cls, mesh: str, tp: Optional[int] = None) -> "Split":
        """mesh: a machine's name. tp: default all chips of a row. MeshError unless rows are cut evenly."""
        kind = machine(mesh)
        tp = kind.row if tp is None else tp
        if not is_integer(tp) or tp < 1 or kind.row % tp:
            chips = f"{kind.chips} chip{'s' if kind.chips > 1 else ''}"
            rows = f" in rows of {kind.row}" if kind.row < kind.chips else ""
            raise MeshError(f"{kind.name} has {chips}{rows}; tp must divide {kind.row}, got {shown(tp)}")
        return cls(kind, tp)

    @property
    def dp(self) -> int:
        return self.kind.chips // self.tp

    def __str__(self) -> str:
        return f"{self.kind.name}, tp {self.tp} x dp {self.dp}"
