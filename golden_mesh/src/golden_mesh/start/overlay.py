"""The runtime root and the mock cluster that ttnn uses without hardware.

ttnn finds kernel sources, linker scripts, chip descriptions and the compiler below one runtime root. The root
is usually the installed wheel. Here it is a directory of symbolic links to the wheel with two changes: a null
compiler, and one number in the description of the cores. The wheel itself is only read.

ttnn compiles an op's kernels at the op's first call, on a mock cluster too. It continues only if it finds an
object file, a list of dependencies and an ELF that its loader accepts. The null compiler, a shell script, provides
these. It starts no other program, because a decode layer makes some 400 calls.
"""

import importlib.util
from pathlib import Path

import yaml

from golden_mesh.errors import GoldenMeshError
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
    _write_null_compiler(root / _COMPILER)
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


# ttnn keys its kernel cache by this string too. No real compiler prints it, so a stub is never taken for a kernel,
# even in a moved cache. Precompiled firmware of ttnn is valid for the real compiler's string only.
_VERSION = "riscv-tt-elf-g++ (golden mesh: null compiler, generates no code) 1.0"

_SCRIPT = r"""#!/bin/sh
# Not a compiler: see start/overlay.py of the golden mesh. POSIX sh, builtins only.
output= dependencies= source=
while [ $# -gt 0 ]; do
    case $1 in
        --version) echo '@VERSION@'; exit ;;
        -o) output=$2; shift ;;
        -MF) dependencies=$2; shift ;;
        *.c|*.cc|*.cpp|*.S) source=$1 ;;
    esac
    shift
done
if [ -n "$dependencies" ]; then  # source to object: ttnn hashes the files that the list names
    : > "$output" && printf '%s: %s\n' "$output" "$source" > "$dependencies"
else                             # objects to program (or a precompiled header, which is never read)
    printf '@ELF@' > "$output"
fi
"""
# The smallest ELF that ttnn's loader accepts as a kernel of any core: a 32-bit RISC-V executable with one segment that
# starts at the entry point, a text section, and the section's table of relocations, which is empty.
_ELF = bytes.fromhex(
    "7f454c46010101000000000000000000"  # 32 bit, little-endian
    "0200f300 01000000 00600000 34000000 74000000 00000000"  # RISC-V, entry 0x6000, segments at 0x34, sections at 0x74
    "34002000 01002800 04000300"  # one segment, four sections, the last one has their names
    "01000000 54000000 00600000 00600000 04000000 04000000 05000000 04000000"  # segment: the text, to read and execute
    "67800000"  # text: ret
    "002e7465 7874002e 72656c61 2e746578 74002e73 68737472 74616200"  # .text .rela.text .shstrtab
    "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000"  # section 0: none
    "01000000 01000000 06000000 00600000 54000000 04000000 00000000 00000000 04000000 00000000"  # text
    "07000000 04000000 00000000 00000000 58000000 00000000 00000000 01000000 04000000 0c000000"  # its relocations
    "12000000 03000000 00000000 00000000 58000000 1c000000 00000000 00000000 01000000 00000000"  # names
)


def _write_null_compiler(path: Path) -> None:
    octal = "".join(f"\\{byte:03o}" for byte in _ELF)
    path.parent.mkdir(parents=True)
    path.write_text(_SCRIPT.replace("@VERSION@", _VERSION).replace("@ELF@", octal))
    path.chmod(0o755)
