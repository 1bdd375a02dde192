"""Run somebody's program on the golden mesh, unchanged: python -m models.common.golden_mesh script.py ...

Python is started in the place of this process, with the program as its command line and `everywhere` on its path, so that
the program is __main__ as it always is: its arguments, sys.path, tracebacks, exit status and signals are Python's own.
Every Python process that it starts with its environment is on the golden mesh, too.
"""

import os
import re
import sys
from pathlib import Path
from typing import NoReturn

if not __package__:  # started as `python .../models/common/golden_mesh`, from any folder
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from models.common.errors import UserError
from models.common.golden_mesh import SETTINGS, SYSTEMS
from models.common.golden_mesh.overlay import ttnn_package

USAGE = (
    f"usage: python -m models.common.golden_mesh [--system {'|'.join(SYSTEMS)}] "
    "(script.py | -m module | -c code) [arguments ...]"
)
DEFAULT_SYSTEM = "N300"
EVERYWHERE = str(Path(__file__).resolve().parent / "everywhere")
_REFUSED = 2  # the status of what a user can mend, here as in Python's own command line


def split(arguments: list[str]) -> tuple[str, list[str]]:
    """The system that is asked for, and the program's command line. UserError for what is neither."""
    system, rest = DEFAULT_SYSTEM, list(arguments)
    while rest and rest[0].startswith("--"):
        name, has_value, value = rest.pop(0).partition("=")
        if name != "--system":
            raise UserError(f"{name} is no option of the golden mesh's, which has --system. {USAGE}")
        if not has_value and not rest:
            raise UserError(f"--system wants one of {', '.join(SYSTEMS)}. {USAGE}")
        system = value if has_value else rest.pop(0)
    if system.upper() not in SYSTEMS:
        raise UserError(f"--system knows {', '.join(SYSTEMS)}; got {system!r}")
    _check_program(rest)
    return system.upper(), rest


def _check_program(program: list[str]) -> None:
    if not program:
        raise UserError(f"nothing to run. {USAGE}")
    first = program[0]
    if first in ("-m", "-c") and len(program) == 1:
        raise UserError(f"{first} wants what to run behind it. {USAGE}")
    if first.startswith("-") and first not in ("-m", "-c", "-"):
        raise UserError(f"{first} is no option of the golden mesh's: Python's own go before -m. {USAGE}")
    if not first.startswith("-") and not Path(first).exists():
        raise UserError(f"there is no script {first!r} in {Path.cwd()}")


def environment(system: str, inherited: dict[str, str]) -> dict[str, str]:
    """The environment in which every Python process is a golden `system`."""
    path = [entry for entry in inherited.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", EVERYWHERE)]
    return SETTINGS | inherited | {"GOLDEN_MESH": system, "PYTHONPATH": os.pathsep.join([EVERYWHERE, *path])}


def interpreter_options(command: list[str], arguments: int) -> list[str]:
    """Options of Python's own in the command line of this process, of which the last `arguments` words are ours."""
    before = command[1 : len(command) - arguments - 1]  # the last one left out names this program
    if before and re.fullmatch("-[a-zA-Z]*m", before[-1]):
        flags = before.pop()[:-1]
        before += [flags] if flags != "-" else []
    return before


def main(arguments: list[str]) -> NoReturn:
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise UserError("the golden mesh comes with PYTHONPATH and sitecustomize: start Python without -I, -E and -S")
    system, program = split(arguments)
    ttnn_package()
    command = [sys.executable, *interpreter_options(sys.orig_argv, len(arguments)), *program]
    os.execve(sys.executable, command, environment(system, dict(os.environ)))


if __name__ == "__main__":
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(USAGE)
        sys.exit()
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(_REFUSED)
