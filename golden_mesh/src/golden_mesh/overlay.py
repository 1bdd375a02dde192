"""The runtime root and the mock cluster that ttnn uses without hardware.

ttnn finds kernel sources, linker scripts, chip descriptions and the compiler below one runtime root. The root
is usually the installed wheel. Here it is a directory of symbolic links to the wheel with two changes: a null
compiler, and one number in the description of the cores. The wheel itself is only read.
"""

import importlib.util
from pathlib import Path

from golden_mesh.errors import GoldenMeshError
from golden_mesh.null_compiler import write_null_compiler
from golden_mesh.systems import System
from golden_mesh.versions import NEWEST

_INSTALL = f"pip install ttnn=={NEWEST} (CPython 3.10 or 3.12, Linux x86-64)"
_COMPILER = "runtime/sfpi/compiler/bin/riscv-tt-elf-g++"
_CORES = "tt_metal/core_descriptors"
_WORMHOLE = f"{_CORES}/wormhole_b0_80_arch.yaml"
_NEEDED = ("runtime/hw", "tt_metal/hw", "tt_metal/soc_descriptors", _WORMHOLE)


def make_environment(system: System, directory: Path) -> dict[str, str]:
    """Fill `directory` with the files of a mock `system` and return the environment variables for it.

    `directory` is empty, belongs to this process and is one word to a shell (scratch.shell_safe). Set the
    variables before ttnn is imported. ttnn then writes its files below `directory`.

    GoldenMeshError: ttnn is missing, or its files are unknown.
    """
    directory = directory.absolute()
    package = ttnn_package()
    root, cache, logs, descriptor = (
        directory / name for name in ("root", "cache", "logs", "cluster.yaml")
    )
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
    """Write to the runtime root how the next mesh dispatches: from worker cores, or (the default) from
    ethernet cores.

    The grid of programs is checked by ttnn on a mock only. For a chip with two harvested rows (nebula_x2 in
    ttnn) the check takes the grid from the entry for worker dispatch, 8x7. It does so however the mesh was
    opened. N300 and T3K dispatch from ethernet cores by default, which leaves 8x8. For them the entry says
    8x8 here.

    A mesh that does dispatch from worker cores would then claim 8x8 too, and refuse the last row. So this
    function restores 8x7 for it. The file is read by ttnn whenever it opens a mesh.
    """
    cores = (ttnn_package() / _WORMHOLE).read_text()
    before, product, rest = cores.partition("\nnebula_x2:\n")
    entry, next_entry, after = rest.partition(
        "\n    2:\n"
    )  # of one command queue: the check reads this entry
    if entry.count("end: [7, 6]") != 1 or not next_entry:
        raise GoldenMeshError(
            f"the golden mesh looked for the 8x7 grid of nebula_x2 in {_WORMHOLE}: {_INSTALL}"
        )
    if not on_workers:
        entry = entry.replace("end: [7, 6]", "end: [7, 7]")
    (root / _WORMHOLE).write_text(before + product + entry + next_entry + after)


def ttnn_package() -> Path:
    """Return the folder of the installed ttnn, found without an import."""
    spec = importlib.util.find_spec("ttnn")
    if spec is None or spec.origin is None:
        raise GoldenMeshError(
            f"the golden mesh looked for the Python package ttnn and there is none: {_INSTALL}"
        )
    package = Path(spec.origin).parent
    for needed in _NEEDED:
        if not (package / needed).exists():
            raise GoldenMeshError(
                f"the golden mesh looked for {needed} in {package} and there is none: {_INSTALL}"
            )
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
