"""Run a program on the golden mesh, unchanged: golden-mesh --system N300 script.py ...

Python replaces this process. The program is its command line, and `everywhere` is on its path. Arguments,
sys.path, tracebacks, exit status and signals are Python's own. Every child process that inherits the
environment is on the golden mesh too.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import NoReturn, Sequence

if not __package__:  # started as `python .../src/golden_mesh`, not installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from golden_mesh import SETTINGS
from golden_mesh.errors import GoldenMeshError
from golden_mesh.start.options import parse
from golden_mesh.start.overlay import ttnn_package
from golden_mesh.switches import VARIABLE, Switches

EVERYWHERE = str(Path(__file__).resolve().parent / "everywhere")


def environment(given: Namespace, inherited: dict[str, str]) -> dict[str, str]:
    """Return the environment that makes every Python process the golden mesh of the options `given`."""
    path = [entry for entry in inherited.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", EVERYWHERE)]
    made = {
        "GOLDEN_MESH": given.system,
        VARIABLE: json.dumps({each.name: getattr(given, each.name) for each in fields(Switches) if each.metadata}),
        "PYTHONPATH": os.pathsep.join([EVERYWHERE, *path]),
    }
    if given.command != "run":
        made["GOLDEN_MESH_OBSERVER"] = json.dumps(_observer(given))
    return SETTINGS | inherited | made


def _observer(given: Namespace) -> list:
    """The module that sitecustomize.py starts, and its arguments. Files lie where the command was given."""
    if given.command == "compare":
        files = [path and f"{path.absolute()}" for path in (given.json, given.html)]
        return ["golden_mesh.compare.report", given.below, *files, given.what_if]
    return ["golden_mesh.replay.record", f"{given.to.absolute()}", given.command == "record"]


def interpreter_options(command: list[str], arguments: int) -> list[str]:
    """Return Python's own options in this process's command line. Its last `arguments` words are ours."""
    before = command[1 : len(command) - arguments - 1]  # without the word that names this program
    if before and re.fullmatch("-[a-zA-Z]*m", before[-1]):
        flags = before.pop()[:-1]
        before += [flags] if flags != "-" else []
    return before


def run(given: Namespace, python: Sequence[str]) -> NoReturn:
    """Replace this process with `given.program`. python: the interpreter's options."""
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise GoldenMeshError(
            "the golden mesh comes with PYTHONPATH and sitecustomize: start Python without -I, -E, -S"
        )
    ttnn_package()
    os.execve(sys.executable, [sys.executable, *python, *given.program], environment(given, dict(os.environ)))


def recorded(given: Namespace, python: Sequence[str], to: Path) -> int:
    """Run `given.program` in a child process that records it. Returns its exit status."""
    here = environment(Namespace(**vars(given) | {"to": to}), dict(os.environ))
    status = subprocess.run([sys.executable, *python, *given.program], env=here).returncode
    if not to.exists():
        raise GoldenMeshError("the program ran no device operation outside of a trace: nothing was recorded")
    return status


def cases(given: Namespace, python: Sequence[str]) -> NoReturn:
    """Record `given.program`, and write its operations as a pytest file. Exits with the program's status."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "ops.pt")
        status = recorded(given, python, record)
        program = Path(given.program[-1] if given.program[0] == "-c" else given.program[0]).name
        words = ["-m", "golden_mesh.replay.cases", f"{record}", f"{given.to.absolute()}", program]
        other = environment(parse(["--system", given.system, *words]), dict(os.environ))
        written = subprocess.run([sys.executable, *words], env=other).returncode
    sys.exit(status or written)


def replay(arguments: list[str], system: str | None = None) -> NoReturn:
    """Run golden_mesh.replay: on a golden mesh of this system, else on what ttnn opens."""
    program = ["-m", "golden_mesh.replay", *arguments]
    if system:
        run(parse(["--system", system, *program]), [])
    source = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    quiet = {"TT_LOGGER_LEVEL": "off", "LOGURU_LEVEL": "ERROR"}  # what fails says so in its row
    os.execve(sys.executable, [sys.executable, *program], quiet | os.environ | {"PYTHONPATH": path})


def command() -> NoReturn:
    """The command `golden-mesh`."""
    arguments = sys.argv[1:]
    try:
        given = parse(arguments)
        python = interpreter_options(sys.orig_argv, len(arguments))
        if given.command == "doctor":
            from golden_mesh.start.doctor import report

            print("\n".join(report(given.scripts)))
            sys.exit()
        if given.command == "replay":
            replay(arguments[1:], given.system)
        if given.command == "record" and given.replay:  # on what ttnn opens without a golden mesh
            recorded(given, python, given.to)
            replay([f"{given.to}", "--calls", "0", "--json", f"{given.replay}"])
        if given.command == "cases":
            cases(given, python)
        run(given, python)
    except GoldenMeshError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)  # as Python's own command line does


if __name__ == "__main__":
    command()
