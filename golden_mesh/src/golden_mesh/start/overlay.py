"""The runtime root and the mock cluster that ttnn uses without hardware.

ttnn finds kernel sources, linker scripts, chip descriptions and the compiler below one runtime root. The root
is usually the installed wheel. Here it is a directory of symbolic links to the wheel with two changes: a null
compiler, and one number in the description of the cores. The wheel itself is only read.
"""

import importlib.util
from pathlib import Path

import yaml

from golden_mesh.errors import GoldenMeshError
from golden_mesh.start.null_compiler import write_null_compiler
from golden_mesh.start.systems import System
from golden_mesh.versions import NEWEST

_INSTALL = f"pip install ttnn=={NEWEST} (CPython 3.10 or 3.12, Linux x86-64)"
_COMPILER = "runtime/sfpi/compiler/bin/riscv-tt-elf-g++"
_CORES = "tt_metal/core_descriptors"
_WORMHOLE = f"{_CORES}/wormhole_b0_80_arch.yaml"
_GRID = "compute_with_storage_grid_range"  # of programs, in one entry of the description
# libyaml's, where PyYAML was built with it: Python's own take a quarter of a second for the file.
_LOADER, _DUMPER = (getattr(yaml, f"CSafe{part}", getattr(yaml, f"Safe{part}")) for part in ("Loader", "Dumper"))
_NEEDED = ("runtime/hw", "tt_metal/hw", "tt_metal/soc_descriptors", _WORMHOLE)


def make_environment(system: System, directory: Path) -> dict[str, str]:
    """Fill `directory` with the files of a mock `system` and return the environment variables for it.

    `directory` is empty, belongs to this process and is one word to a shell (scratch.shell_safe). ttnn writes its files
    there if it is imported with the variables set.

    GoldenMeshError: ttnn is missing, or its files are unknown.
    """
    directory = directory.absolute()
    package = ttnn_package()
    root, cache, logs, descriptor = (directory / name for name in ("root", "cache", "logs", "cluster.yaml"))
    for folder in (root, cache, logs):
        folder.mkdir(parents=True)
    _link_all(package, root, but=("runtime", "tt_metal", "__pycache__"))
    _link_all(package / "runtime", root / "runtime", but=("sfpi",))
    _link_all(package / "tt_metal", root / "tt_metal", but=("core_descriptors",))
    _link_all(package / _CORES, root / _CORES, but=(Path(_WORMHOLE).name,))
    expect_dispatch(root, on_workers=False)
    write_null_compiler(root / _COMPILER)
    descriptor.write_text(system.descriptor())
    return {
        "TT_METAL_RUNTIME_ROOT": f"{root}",
        "TT_METAL_CACHE": f"{cache}/",  # ttnn appends to it as text
        "TT_METAL_LOGS_PATH": f"{logs}",
        "TT_METAL_MOCK_CLUSTER_DESC_PATH": f"{descriptor}",
    }


def expect_dispatch(root: Path, *, on_workers: bool, by_columns: bool = False) -> None:
    """Write to the runtime root how the next mesh dispatches: from worker cores or (the default) from ethernet cores,
    and from a column or (the default) from a row of the worker cores.

    A mock ttnn checks programs' grids against the entry for a row of worker cores, however the mesh was opened:

    - For a chip with two harvested rows (nebula_x2 in ttnn) that is 8x7. N300 and T3K dispatch from ethernet cores by
      default, which leaves 8x8, so the entry says 8x8 here. A mesh that does dispatch from worker cores would then
      claim 8x8 too, and refuse the last row, so it keeps 8x7.
    - For a mesh that dispatches from a column, the entry for a row is the one for a column here.

    The check keeps what it read first, so all meshes of a process should dispatch from a row, or all from a column.
    """
    cores = yaml.load((ttnn_package() / _WORMHOLE).read_text(), _LOADER)
    if cores.get("nebula_x2", {}).get("row", {}).get(1, {}).get(_GRID, {}).get("end") != [7, 6]:
        raise GoldenMeshError(f"the golden mesh looked for the 8x7 grid of nebula_x2 in {_WORMHOLE}: {_INSTALL}")
    if not on_workers:
        cores["nebula_x2"]["row"][1][_GRID]["end"] = [7, 7]
    elif by_columns:
        for product in cores.values():
            product["row"] = product["col"]
    (root / _WORMHOLE).write_text(yaml.dump(cores, Dumper=_DUMPER))


def ttnn_package() -> Path:
    """Return the folder of the installed ttnn, found without an import."""
    spec = importlib.util.find_spec("ttnn")
    if spec is None or spec.origin is None:
        raise GoldenMeshError(f"the golden mesh looked for the Python package ttnn and there is none: {_INSTALL}")
    package = Path(spec.origin).parent
    for needed in _NEEDED:
        if not (package / needed).exists():
            raise GoldenMeshError(f"the golden mesh looked for {needed} in {package} and there is none: {_INSTALL}")
    return package


def _link_all(source: Path, target: Path, but: tuple[str, ...]) -> None:
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        if entry.name not in but:
            (target / entry.name).symlink_to(entry)
