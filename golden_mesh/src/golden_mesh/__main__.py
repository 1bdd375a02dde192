"""Run a program on the golden mesh, unchanged: golden-mesh --system N300 script.py ...

golden-mesh perf ... runs it, too, and prints the modeled times of its device operations at exit.
golden-mesh compare ... prints their errors against float32.
Python replaces this process. The program is its command line, and `everywhere` is on its path. Arguments,
sys.path, tracebacks, exit status and signals are Python's own. Every child process that inherits the
environment is on the golden mesh too.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn

if not __package__:  # started as `python .../src/golden_mesh`, not installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from golden_mesh import SETTINGS, SYSTEMS
from golden_mesh.errors import GoldenMeshError
from golden_mesh.hazards import RESPONSES
from golden_mesh.overlay import ttnn_package
from golden_mesh.replay_options import parse
from golden_mesh.sums import SUMS

USAGE = (
    f"usage: golden-mesh [perf|compare|record] [--system {'|'.join(SYSTEMS)}] [--hazards {'|'.join(RESPONSES)}] "
    f"[--sums {'|'.join(SUMS)}] [--profile] (script.py | -m module | -c code) [arguments ...], or golden-mesh --doctor, "
    "or golden-mesh replay [--system NAME] FILE; "
    "perf takes also [--links 1|2] [--position TOKENS] [--csv FOLDER], compare [--below PCC] [--what-if SETTING=VALUE] [--json FILE] [--html FILE], "
    "record [--to FILE]"
)
DEFAULT_SYSTEM = "N300"
HELP = f"""{USAGE}

Runs a program on the golden mesh, unchanged: the real ttnn library on a mock machine, with torch values.

  --system NAME       the machine (default: {DEFAULT_SYSTEM})
  --hazards RESPONSE  to calls that a chip gets wrong: warn, error, or default, which follows HAZARDS.md
  --sums KIND         of matrix products: default sums as torch does, exact as the matrix engine does (30 to 100 times slower)
  --profile           print at exit where the time went
  --doctor [SCRIPT]   check ttnn, the machine and the temporary directory, and run nothing;
                      of scripts: name the operations that are not like a chip's here

  perf                print at exit the modeled time of each device operation; Wormhole only
    --links 1|2       ethernet links between two chips (default: 1)
    --position TOKENS tokens in the caches (default: full caches)
    --csv FOLDER      write ops_perf_results_modeled.csv there, for tt-perf-report and ttnn-visualizer

  compare             print at exit the error of each device operation against float32, worst first
    --below PCC       name the first operation at which the program so far is below (default: 0.99)
    --what-if S=V     add a column with another setting: fidelity=HiFi4, dest=float32, dtype=bfloat16 (of results)
    --json FILE       write all operations
    --html FILE       write a page with a plot of the error along the program

  record              keep each distinct device operation with its inputs, arguments and results
    --to FILE         (default: ops.pt)
  replay FILE         run a record on a card, or on a golden mesh (replay --system NAME FILE): values and times beside it
    --calls N         of the shorter of two traces; 0 takes no times (default: 20)
    --json FILE       write the rows

examples:
  golden-mesh script.py
  golden-mesh --system T3K -m pytest tests/
  golden-mesh perf --system N150 script.py
"""
EVERYWHERE = str(Path(__file__).resolve().parent / "everywhere")
_REFUSED = 2  # exit status of a user's error, as in Python's own command line


class Choice(NamedTuple):
    """The settings of the command line's options."""

    system: str = DEFAULT_SYSTEM
    hazards: str = "default"
    sums: str = "default"
    profile: bool = False  # print at exit where the time went
    perf: bool = False  # print at exit what the device operations would take
    links: str = "1"  # ethernet links between two chips, for perf
    position: str | None = None  # tokens in the caches, for perf; None: full caches
    csv: str | None = None  # folder of perf's table
    compare: bool = False  # print at exit the errors of the device operations
    below: str = "0.99"  # PCC, for compare
    what_if: str | None = None  # a setting to try, for compare
    json: str | None = None  # files of compare
    html: str | None = None
    record: bool = False  # keep the device operations
    to: str = "ops.pt"  # file of record


_OPTIONS = {"--system": tuple(SYSTEMS), "--hazards": RESPONSES, "--sums": SUMS}
_COMMANDS = {
    "perf": {
        "--links": ("1", "2"),
        "--position": ("a number of tokens",),
        "--csv": ("a folder",),
    },
    "compare": {
        "--below": ("a PCC of 0 to 1",),
        "--what-if": (
            "fidelity=HiFi4",
            "dest=float32",
            "dtype=bfloat16",
            "or other values of these",
        ),
        "--json": ("a file",),
        "--html": ("a file",),
    },
    "record": {"--to": ("a file",)},
}
_FREE = {  # options of any fitting value
    "--position": r"[0-9]+",
    "--what-if": "fidelity=(LoFi|HiFi[234])|dest=(float32|bfloat16)|dtype=(float32|bfloat16|bfloat8_b)",
    "--below": r"0?\.[0-9]+|[01]",
    "--csv": r"[^-].*",
    "--json": r"[^-].*",
    "--html": r"[^-].*",
    "--to": r"[^-].*",
}


def split(arguments: list[str]) -> tuple[Choice, list[str]]:
    """Return the options and the program's command line.

    GoldenMeshError: an unknown option or value, or no program.
    """
    options, rest = {}, list(arguments)
    known_options = _OPTIONS
    if rest and rest[0] in _COMMANDS:
        options[rest[0]] = True
        known_options = _OPTIONS | _COMMANDS[rest.pop(0)]
    while rest and rest[0].startswith("--"):
        name, has_value, value = rest.pop(0).partition("=")
        if name == "--profile" and not has_value:
            options["profile"] = True
            continue
        if name not in known_options:
            raise GoldenMeshError(
                f"golden-mesh has no option {name}; it has {', '.join(known_options)} and --profile"
            )
        values = known_options[name]
        if not has_value and not rest:
            raise GoldenMeshError(f"{name} needs {', '.join(values)}")
        value = value if has_value else rest.pop(0)
        fitting = [known for known in values if known.lower() == value.lower()]
        if name in _FREE and re.fullmatch(_FREE[name], value, re.ASCII):
            fitting = [value]
        if not fitting:
            raise GoldenMeshError(f"{name} knows {', '.join(values)}; got {value!r}")
        if values == ("a file",) and (Path(value).is_dir() or not Path(value).parent.is_dir()):
            raise GoldenMeshError(
                f"{name}: {value} cannot be written: name a file in a folder that exists"
            )
        if name == "--csv" and Path(value).exists() and not Path(value).is_dir():
            raise GoldenMeshError(f"{name}: {value} is a file: name a folder")
        options[name.removeprefix("--").replace("-", "_")] = fitting[0]
    _check_program(rest)
    if "record" in options and "to" not in options and "--to" in rest:
        raise GoldenMeshError("--to goes before the program: golden-mesh record --to FILE ...")
    choice = Choice(**options)
    if choice.perf and SYSTEMS[choice.system].arch != "wormhole_b0":
        raise GoldenMeshError(
            f"golden-mesh perf has the rates of Wormhole chips; there are none of a {choice.system}'s"
        )
    return choice, rest


def _check_program(program: list[str]) -> None:
    if not program:
        raise GoldenMeshError("nothing to run: golden-mesh --help shows how")
    first = program[0]
    if first in ("-m", "-c") and len(program) == 1:
        raise GoldenMeshError(f"{first} must be followed by what to run")
    if first.startswith("-") and first not in ("-m", "-c", "-"):
        raise GoldenMeshError(
            f"golden-mesh has no option {first}: Python's own options go before -m"
        )
    if not first.startswith("-") and not Path(first).exists():
        raise GoldenMeshError(f"there is no script {first!r} in {Path.cwd()}")


def environment(choice: Choice, inherited: dict[str, str]) -> dict[str, str]:
    """Return the environment that makes every Python process the golden mesh of `choice`."""
    path = [
        entry
        for entry in inherited.get("PYTHONPATH", "").split(os.pathsep)
        if entry not in ("", EVERYWHERE)
    ]
    return (
        SETTINGS
        | inherited
        | {
            "GOLDEN_MESH": choice.system,
            "GOLDEN_MESH_HAZARDS": choice.hazards,
            "GOLDEN_MESH_SUMS": choice.sums,
            "PYTHONPATH": os.pathsep.join([EVERYWHERE, *path]),
        }
        | ({"GOLDEN_MESH_PROFILE": "1"} if choice.profile else {})
        | ({"GOLDEN_MESH_PERF": _perf_settings(choice)} if choice.perf else {})
        | ({"GOLDEN_MESH_COMPARE": _compare_settings(choice)} if choice.compare else {})
        | ({"GOLDEN_MESH_RECORD": _record_settings(choice)} if choice.record else {})
    )


def _perf_settings(choice: Choice) -> str:
    """JSON: the arguments of perf.recorder.start. The folder lies where the command was given."""
    position = None if choice.position is None else int(choice.position)
    folder = [str(Path(choice.csv).absolute())] if choice.csv else []
    return json.dumps([int(choice.links), position, *folder])


def _compare_settings(choice: Choice) -> str:
    """JSON: the arguments of compare.report_at_exit. Files lie where the command was given."""
    files = [path and str(Path(path).absolute()) for path in (choice.json, choice.html)]
    return json.dumps([float(choice.below), *files, choice.what_if])


def _record_settings(choice: Choice) -> str:
    """JSON: the arguments of record.start. A Wormhole's operations have prices."""
    is_wormhole = SYSTEMS[choice.system].arch == "wormhole_b0"
    return json.dumps([str(Path(choice.to).absolute()), is_wormhole])


def replay(arguments: list[str]) -> NoReturn:
    """Run golden_mesh.replay: on a golden mesh after --system, else on what ttnn opens."""
    program = ["-m", "golden_mesh.replay"]
    on_golden_mesh = arguments[:1] == ["--system"]
    parse(arguments[2:] if on_golden_mesh else arguments)
    if on_golden_mesh:
        main([*arguments[:2], *program, *arguments[2:]])
    source = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, *program, *arguments]
    os.execve(sys.executable, command, os.environ | {"PYTHONPATH": path})


def interpreter_options(command: list[str], arguments: int) -> list[str]:
    """Return Python's own options in this process's command line. Its last `arguments` words are ours."""
    before = command[1 : len(command) - arguments - 1]  # without the word that names this program
    if before and re.fullmatch("-[a-zA-Z]*m", before[-1]):
        flags = before.pop()[:-1]
        before += [flags] if flags != "-" else []
    return before


def main(arguments: list[str]) -> NoReturn:
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise GoldenMeshError(
            "the golden mesh comes with PYTHONPATH and sitecustomize: start Python without -I, -E and -S"
        )
    choice, program = split(arguments)
    ttnn_package()
    command = [sys.executable, *interpreter_options(sys.orig_argv, len(arguments)), *program]
    os.execve(sys.executable, command, environment(choice, dict(os.environ)))


def _script(word: str) -> Path:
    if not Path(word).is_file():
        raise GoldenMeshError(f"--doctor takes scripts; there is no {word!r} in {Path.cwd()}")
    return Path(word)


def command() -> NoReturn:
    """The command `golden-mesh`."""
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(HELP, end="")
        sys.exit()
    try:
        if sys.argv[1:2] == ["--doctor"]:
            from golden_mesh.doctor import report

            print("\n".join(report([_script(word) for word in sys.argv[2:]])))
            sys.exit()
        if sys.argv[1:2] == ["replay"]:
            replay(sys.argv[2:])
        main(sys.argv[1:])
    except GoldenMeshError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(_REFUSED)


if __name__ == "__main__":
    command()
