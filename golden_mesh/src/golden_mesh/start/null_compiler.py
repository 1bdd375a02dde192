"""A kernel compiler that compiles nothing, for a mesh that executes nothing.

ttnn compiles an op's kernels at the op's first call, on a mock cluster too. It continues only if it finds an
object file, a list of dependencies and an ELF that its loader accepts. This module provides a shell script
and an ELF of 276 bytes. The script starts no other program, because a decode layer makes some 400 calls.
"""

from pathlib import Path

# ttnn keys its kernel cache by this string too. No real compiler prints it, so a stub is never taken for a kernel,
# even in a moved cache. Precompiled firmware of ttnn is valid for the real compiler's string only.
VERSION = "riscv-tt-elf-g++ (golden mesh: null compiler, generates no code) 1.0"

_SCRIPT = r"""#!/bin/sh
# Not a compiler: see start/null_compiler.py of the golden mesh. POSIX sh, builtins only.
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


def write_null_compiler(path: Path) -> None:
    """Write the script to `path` and make it executable. Creates the parent folder."""
    octal = "".join(f"\\{byte:03o}" for byte in _ELF)
    path.parent.mkdir(parents=True)
    path.write_text(_SCRIPT.replace("@VERSION@", VERSION).replace("@ELF@", octal))
    path.chmod(0o755)
