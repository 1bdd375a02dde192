"""The command line of golden-mesh. It loads neither torch nor ttnn, so a mistake is answered at once."""

import argparse
import re
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Callable, NoReturn, Sequence

from golden_mesh.errors import GoldenMeshError
from golden_mesh.outputs import check_kind
from golden_mesh.start.systems import SYSTEMS, named
from golden_mesh.switches import Switches

COMMANDS = {
    "run": "run a program",
    "compare": "also print the error of each device operation against float32 at exit, worst first",
    "record": "also keep each distinct device operation with its inputs, arguments and results",
    "replay": "run a record on whatever ttnn opens: values and times beside it",
    "cases": "also write each distinct device operation as a test, for a card or a simulator",
    "doctor": "check ttnn, the machine and the temporary directory, and name the operations of scripts that are not "
    "like a chip's here",
}
WITH_PROGRAM = ("run", "compare", "record", "cases")
DEFAULT_SYSTEM = "N300"
_MACHINE = dict(type=named, choices=tuple(SYSTEMS), metavar="NAME")  # of --system
EXAMPLES = """examples:
  golden-mesh script.py
  golden-mesh --system T3K -m pytest tests/
  golden-mesh compare --system N150 script.py

golden-mesh run --help, compare --help and so on list the options. Without a command, run is meant."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise GoldenMeshError(message.removeprefix("argument "))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command and its options. `program` is what Python runs: its words after the interpreter.

    GoldenMeshError: an unknown option or value, or no program.
    """
    words = list(arguments)
    if words[:1] == ["--doctor"]:
        words[0] = "doctor"
    if not words or words[0] not in (*COMMANDS, "-h", "--help"):
        words.insert(0, "run")
    given, unknown = _parser().parse_known_args(words)
    if unknown:
        place = "Python's own options go before -m golden_mesh"
        raise GoldenMeshError(f"golden-mesh {given.command} has no option {unknown[0]}; {place}")
    if given.command in WITH_PROGRAM:
        given.program = program_of(given)
    if given.command == "record" and given.to is None:
        if "--to" in given.program:
            raise GoldenMeshError("--to goes before the program: golden-mesh record --to FILE ...")
        given.to = _output("record --to")("ops.pt")
    if given.command == "compare" and given.json and given.html and given.json.resolve() == given.html.resolve():
        raise GoldenMeshError(f"--html: {given.html} is the file of --json: name another file")
    return given


def program_of(given: argparse.Namespace) -> list[str]:
    """What Python runs, of the options that add_program added."""
    for option, words in (("-m", given.module), ("-c", given.code)):
        if words == []:
            raise GoldenMeshError(f"{option} must be followed by what to run")
        if words is not None:
            return [option, *words]
    if not given.script:
        raise GoldenMeshError("nothing to run: golden-mesh --help shows how")
    if given.script[0] != "-":
        _file(given.script[0], "script")
    return given.script


def _parser() -> _Parser:
    parser = _Parser(
        prog="golden-mesh",
        description="Runs a program on the golden mesh, unchanged: the real ttnn on a mock machine, with torch values.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    of = {name: commands.add_parser(name, help=what, allow_abbrev=False) for name, what in COMMANDS.items()}
    of["run"].description = parser.description
    for name in WITH_PROGRAM:
        add_program(of[name])
    add = of["compare"].add_argument
    below = "name the first operation at which the program so far is below (default: %(default)s)"
    add("--below", type=_pcc, default=0.99, metavar="PCC", help=below)
    other = "add a column with another setting: fidelity=HiFi4, dest=float32, dtype=bfloat16 (of results)"
    add("--what-if", type=_setting, metavar="SETTING=VALUE", help=other)
    add("--json", type=_output("compare --json"), metavar="FILE", help="a file for all operations")
    add("--html", type=_output("compare --html"), metavar="FILE", help="a page with a plot of the error")
    add = of["record"].add_argument
    add("--to", type=_output("record --to"), metavar="FILE", help="the record (default: ops.pt)")
    then = "then run the record on what ttnn opens (a card), print what differs, and write all rows to this file"
    add("--replay", type=_output("replay --json"), metavar="FILE", help=then)
    tests = dict(type=_output("cases --to"), default="test_ops.py", metavar="FILE")
    of["cases"].add_argument("--to", **tests, help="the tests (default: %(default)s)")
    add = of["replay"].add_argument
    add("file", type=partial(_file, kind="record"), metavar="FILE", help="of golden-mesh record")
    add("--system", **_MACHINE, help="a golden mesh of this machine (default: what ttnn opens)")
    add("--calls", type=_count, default=20, help="of the shorter trace; 0: no times (default: %(default)s)")
    add("--json", type=_output("replay --json"), help="a file for the rows, one a line, written as they come")
    of["doctor"].add_argument("scripts", nargs="*", type=partial(_file, kind="script"), metavar="SCRIPT")
    return parser


def add_program(parser: argparse.ArgumentParser) -> None:
    """The machine's options, and the program with all words after it."""
    parser.usage = f"{parser.prog} [options] (script.py | -m module | -c code) [arguments ...]"
    machine = f"the machine: {', '.join(SYSTEMS)} (default: {DEFAULT_SYSTEM})"
    parser.add_argument("--system", **_MACHINE, default=DEFAULT_SYSTEM, help=machine)
    for each in fields(Switches):
        if each.metadata:
            parser.add_argument(f"--{each.name}", **each.metadata)
    rest = argparse.REMAINDER
    parser.add_argument("-m", dest="module", nargs=rest, help=argparse.SUPPRESS)
    parser.add_argument("-c", dest="code", nargs=rest, help=argparse.SUPPRESS)
    parser.add_argument("script", nargs=rest, help=argparse.SUPPRESS)


def _file(word: str, kind: str) -> Path:
    if not Path(word).is_file():
        raise GoldenMeshError(f"there is no {kind} {word!r} in {Path.cwd()}")
    return Path(word)


def _output(kind: str) -> Callable[[str], Path]:
    """The type of an option that names a file to write. An existing file must be of the kind."""

    def path(word: str) -> Path:
        file = Path(word)
        if file.is_dir() or not file.parent.is_dir():
            raise GoldenMeshError(f"{kind} {word} cannot be written: name a file in a folder that exists")
        check_kind(file, kind)
        return file

    return path


def _matching(pattern: str, needed: str, kind: Callable) -> Callable[[str], Any]:
    """The type of an option whose words are of a pattern."""

    def value(word: str) -> Any:
        if not re.fullmatch(pattern, word, re.ASCII):
            raise argparse.ArgumentTypeError(f"{needed}, got {word!r}")
        return kind(word)

    return value


_SETTINGS = "fidelity=(LoFi|HiFi[234])|dest=(float32|bfloat16)|dtype=(float32|bfloat16|bfloat8_b)"
_count = _matching("[0-9]+", "0 or a larger number is needed", int)
_pcc = _matching(r"0?\.[0-9]+|[01]", "a PCC from 0 to 1 is needed", float)
_setting = _matching(_SETTINGS, f"{_SETTINGS.replace('|', ' | ')} are known", str)
