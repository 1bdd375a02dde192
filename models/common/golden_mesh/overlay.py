"""The ground that ttnn stands on when there is no hardware: a runtime root with a null compiler, and a mock cluster.

ttnn finds what it needs at run time (kernel sources, linker scripts, chip descriptions, the compiler) below one runtime
root, as a rule the installed wheel. Here it is a directory of symbolic links to the wheel with two things changed: the
compiler, and one number in the description of the cores. The wheel itself is only read.
"""

import importlib.util
from pathlib import Path

from models.common.golden_mesh.errors import GoldenMeshError
from models.common.golden_mesh.null_compiler import write_null_compiler
from models.common.golden_mesh.systems import System

_INSTALL = "install ttnn 0.81.1 (pip install -r requirements.txt, on CPython 3.10 or 3.12, Linux x86-64)"
_COMPILER = "runtime/sfpi/compiler/bin/riscv-tt-elf-g++"
_CORES = "tt_metal/core_descriptors"
_WORMHOLE = f"{_CORES}/wormhole_b0_80_arch.yaml"
_NEEDED = ("runtime/hw", "tt_metal/hw", "tt_metal/soc_descriptors", _WORMHOLE)


def make_environment(system: System, directory: Path) -> dict[str, str]:
    """Lay out in `directory` all that ttnn needs to run on a mock `system`, and return the environment that says so.

    `directory` must be this process's own, not yet used for this, and a path that a shell takes as one word
    (scratch.shell_safe). Set the variables before ttnn is imported. Everything that ttnn writes then goes below
    `directory` as well. GoldenMeshError: no ttnn, or another one.
    """
    directory = directory.absolute()
    package = ttnn_package()
    root, cache, logs, descriptor = (directory / name for name in ("root", "cache", "logs", "cluster.yaml"))
    for folder in (root, cache, logs):
        folder.mkdir(parents=True)
    _lay_root(package, root)
    descriptor.write_text(system.descriptor())
    return {
        "TT_METAL_RUNTIME_ROOT": f"{root}",
        "TT_METAL_CACHE": f"{cache}/",  # ttnn appends to it as text
        "TT_METAL_LOGS_PATH": f"{logs}",
        "TT_METAL_MOCK_CLUSTER_DESC_PATH": f"{descriptor}",
    }


def expect_dispatch(root: Path, *, on_workers: bool) -> None:
    """Say in the runtime root how the next mesh dispatches: from worker cores, or (the default) from ethernet cores.

    A check that ttnn makes only on a mock takes the grid of programs on a chip with two harvested rows (in ttnn's words
    nebula_x2) from the entry for worker dispatch, 8x7, however the mesh was opened. N300 and T3K dispatch from ethernet
    cores by default, which leaves 8x8: for them the entry says 8x8 here. With it a mesh that does dispatch from worker
    cores would claim 8x8 too, and refuse the last row. ttnn reads the file whenever it opens a mesh.
    """
    cores = (ttnn_package() / _WORMHOLE).read_text()
    before, product, rest = cores.partition("\nnebula_x2:\n")
    entry, next_entry, after = rest.partition("\n    2:\n")  # of one command queue, which is what the check reads
    if entry.count("end: [7, 6]") != 1 or not next_entry:
        raise GoldenMeshError(f"the golden mesh looked for the 8x7 grid of nebula_x2 in {_WORMHOLE}: {_INSTALL}")
    if not on_workers:
        entry = entry.replace("end: [7, 6]", "end: [7, 7]")
    (root / _WORMHOLE).write_text(before + product + entry + next_entry + after)


def ttnn_package() -> Path:
    """The folder of the installed ttnn, found without importing it."""
    spec = importlib.util.find_spec("ttnn")
    if spec is None or spec.origin is None:
        raise GoldenMeshError(f"the golden mesh looked for the Python package ttnn and there is none: {_INSTALL}")
    package = Path(spec.origin).parent
    for needed in _NEEDED:
        if not (package / needed).exists():
            raise GoldenMeshError(f"the golden mesh looked for {needed} in {package} and there is none: {_INSTALL}")
    return package


def _lay_root(package: Path, root: Path) -> None:
    _link_all(package, root, but=("runtime", "tt_metal", "__pycache__"))
    _link_all(package / "runtime", root / "runtime", but=("sfpi",))
    _link_all(package / "tt_metal", root / "tt_metal", but=("core_descriptors",))
    _link_all(package / _CORES, root / _CORES, but=(Path(_WORMHOLE).name,))
    expect_dispatch(root, on_workers=False)
    write_null_compiler(root / _COMPILER)


def _link_all(source: Path, target: Path, but: tuple[str, ...]) -> None:
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        if entry.name not in but:
            (target / entry.name).symlink_to(entry)
