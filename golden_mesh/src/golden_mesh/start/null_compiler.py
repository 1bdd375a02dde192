"""A kernel compiler that compiles nothing, for a mesh that executes nothing.

ttnn compiles an op's kernels at the op's first call, on a mock cluster too. It continues only if it finds an
object file, a list of dependencies and an ELF that its loader accepts. This module provides a shell script
and an ELF of 276 bytes. The script starts no other program, because a decode layer makes some 400 calls.
"""

import struct
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


def write_null_compiler(path: Path) -> None:
    """Write the script to `path` and make it executable. Creates the parent folder."""
    octal = "".join(f"\\{byte:03o}" for byte in stub_elf())
    path.parent.mkdir(parents=True)
    path.write_text(_SCRIPT.replace("@VERSION@", VERSION).replace("@ELF@", octal))
    path.chmod(0o755)


def stub_elf(address: int = 0x6000) -> bytes:
    """Return the smallest ELF that ttnn's loader accepts as a kernel of any core: one instruction (`ret`) at
    `address`.

    The loader wants a 32-bit RISC-V executable with one segment that starts at the entry point. The segment
    contains a text section. The section has a table of relocations, which may be empty.
    """
    ret = struct.pack("<I", 0x0000_8067)
    names = b"\0.text\0.rela.text\0.shstrtab\0"
    names += bytes(-len(names) % 4)

    header_size, segment_size, section_size = 52, 32, 40
    text_at = header_size + segment_size
    names_at = text_at + len(ret)
    sections_at = names_at + len(names)

    def section(name, kind, flags, at, offset, size, info, align, entry_size):
        name_at = names.index(name + b"\0")
        return struct.pack("<10I", name_at, kind, flags, at, offset, size, 0, info, align, entry_size)

    progbits, strtab, rela = 1, 3, 4
    alloc_exec, read_exec = 6, 5
    sections = (
        bytes(section_size)  # index 0: none, by definition
        + section(b".text", progbits, alloc_exec, address, text_at, len(ret), 0, 4, 0)
        + section(b".rela.text", rela, 0, 0, names_at, 0, 1, 4, 12)  # info 1: the relocations of section 1
        + section(b".shstrtab", strtab, 0, 0, names_at, len(names), 0, 1, 0)
    )
    identification = b"\x7fELF" + bytes([1, 1, 1]) + bytes(9)  # 32 bit, little-endian, version 1
    executable, riscv = 2, 243
    header = identification + struct.pack(
        "<HHIIIIIHHHHHH",
        executable, riscv, 1, address, header_size, sections_at, 0, header_size, segment_size, 1, section_size, 4, 3,
    )  # fmt: skip
    loaded = 1
    segment = struct.pack("<8I", loaded, text_at, address, address, len(ret), len(ret), read_exec, 4)
    return header + segment + ret + names + sections
