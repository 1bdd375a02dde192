"""What a load was made of: the list of its tile files, with their sizes and checksums.

One a split and recipe of a checkpoint, written last: where it is, its load was complete. It can be read without knowing the
pieces, which is how the cache is listed, verified and pruned.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterator, Mapping, Optional, Sequence

from models.common.json_file import read_json
from models.common.mesh import TTNN_VERSION
from models.demos.qwen25_7b.loading.record import replace_file
from models.demos.qwen25_7b.loading.tiles import NAME, TileFile
from models.demos.qwen25_7b.weights.parts import VERSION as PARTS_VERSION

VERSION = 1


@dataclass(frozen=True)
class Manifest:
    directory: str  # of the checkpoint
    tp: int
    recipe: str
    ttnn: str  # the version that packed them
    parts: int  # the version of the code that read them
    files: Mapping[str, int]  # bytes of each tile file, by its name, which has its checksum

    @property
    def bytes(self) -> int:
        return sum(self.files.values())

    def tile_files(self, root: Path) -> list[TileFile]:
        found = [NAME.fullmatch(name) for name in self.files]
        return [TileFile(n["key"], int(n["crc32"], 16), root / "tiles" / n["key"][:2] / n[0]) for n in found]

    def missing(self, root: Path) -> list[TileFile]:
        """Tile files that are not there, or not of their size."""
        return [
            file
            for file in self.tile_files(root)
            if not file.path.is_file() or file.path.stat().st_size != self.files[file.path.name]
        ]


def make_manifest(directory: Path, tp: int, recipe: str, files: Sequence[TileFile]) -> Manifest:
    sizes = {file.path.name: file.path.stat().st_size for file in files}
    return Manifest(str(directory), tp, recipe, TTNN_VERSION, PARTS_VERSION, sizes)


def manifest_file(folder: Path, keys: Sequence[str]) -> Path:
    """The manifest of exactly these pieces: another checkpoint, split, recipe or version has other keys."""
    return folder / "loads" / f"{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:16]}.json"


def read_manifest(file: Path) -> Optional[Manifest]:
    """None if there is none that can be used."""
    try:
        fields = read_json(file)
        if fields.pop("version") != VERSION or not all(NAME.fullmatch(name) for name in fields["files"]):
            return None
        return Manifest(**fields)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def write_manifest(file: Path, manifest: Manifest) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(file, json.dumps({"version": VERSION} | asdict(manifest), indent=1).encode())


def forget_manifests(folder: Path) -> None:
    for file in (folder / "loads").glob("*.json"):
        file.unlink()


def all_manifests(root: Path) -> Iterator[tuple[Path, Manifest]]:
    """Every manifest that can be used, with its file."""
    for file in sorted((root / "models").glob("*/loads/*.json")):
        manifest = read_manifest(file)
        if manifest:
            yield file, manifest
