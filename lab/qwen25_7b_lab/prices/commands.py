"""The commands of `perf` that know nothing of Qwen: prices of any ttnn program, and of measured operations."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from golden_mesh.errors import GoldenMeshError
from golden_mesh.start.options import add_program, program_of
from golden_mesh.start.systems import SYSTEMS

from golden_mesh import __main__ as launcher
from models.demos.qwen25_7b.cli.options import number, path
from models.demos.qwen25_7b.errors import UserError

from ..options import Command
from . import TABLE

LAB = Path(__file__).resolve().parents[2]  # the folder of the package
MEASURED = LAB / "measured/operations.csv"  # in a checkout


def _check_ours(option: str, file: Path, header: str) -> None:
    """UserError if `file` exists and does not begin with this header."""
    if file.exists() and not (file.is_file() and file.read_bytes().startswith(header.encode())):
        raise UserError(f"{option} {file}: exists, and this command did not write it; give another name")


def run_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--links", type=int, choices=(1, 2), default=1, help="ethernet links between two chips (default: 1)")
    option("--position", **number(0), help="tokens in the caches (default: full caches)")
    option("--csv", type=path, metavar="FOLDER", help=f"write {TABLE} there, for tt-perf-report")
    add_program(parser)


def run(args: argparse.Namespace) -> NoReturn:
    """Run a program on the golden mesh, and print the modeled time of each device operation at exit. Wormhole only."""
    if SYSTEMS[args.system].arch != "wormhole_b0":
        raise UserError(f"--system {args.system}: perf run has the rates of Wormhole chips: N150, N300, T3K, ...")
    if args.csv and args.csv.exists() and not args.csv.is_dir():
        raise UserError(f"--csv {args.csv} is a file: name a folder")
    if args.csv:
        _check_ours("--csv", args.csv / TABLE, "OP CODE,OP TYPE,GLOBAL CALL COUNT,")
    folder = f"{args.csv.absolute()}" if args.csv else None
    here = {"GOLDEN_MESH_OBSERVER": json.dumps([f"{__package__}.program", args.links, args.position, folder])}
    paths = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.environ |= here | {"PYTHONPATH": os.pathsep.join(dict.fromkeys([*paths, f"{LAB}"]))}
    try:
        args.command, args.program = "run", program_of(args)
        launcher.run(args, launcher.interpreter_options(sys.orig_argv, len(sys.argv) - 1))
    except GoldenMeshError as error:
        raise UserError(f"{error}") from None


def rows_options(parser: argparse.ArgumentParser) -> None:
    ours = "default: lab/measured/operations.csv; its README has the columns"
    parser.add_argument("file", nargs="?", type=path, default=MEASURED, metavar="FILE.csv", help=ours)


def rows(args: argparse.Namespace) -> str:
    """Price the measured operations of a csv file: errors by kind and in all."""
    from .judge import table

    return table(args.file)


def fit_options(parser: argparse.ArgumentParser) -> None:
    rows_options(parser)
    parser.add_argument("--to", type=path, metavar="FILE", help="a file for the constants")


def fit(args: argparse.Namespace) -> str:
    """Fit the prices' constants to a csv file of measured operations again."""
    from .fit import COLUMNS, refit

    if args.to:
        _check_ours("--to", args.to, ",".join(COLUMNS))
    return refit(args.file, args.to)


COMMANDS = {
    "run": Command(run, run_options, ("--system N150 golden_mesh/examples/perceptron.py", "-m pytest tests/")),
    "rows": Command(rows, rows_options, ("", "FILE.csv")),
    "fit": Command(fit, fit_options, ("", "FILE.csv --to constants.csv")),
}
