"""What the lab's commands share: subcommands, recipes by name, results that replace an earlier run's, tables, steps
without values."""

import argparse
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Optional, Sequence

from models.demos.qwen25_7b.cli.options import Parser
from models.demos.qwen25_7b.config.recipe import KNOWN, recipe_named
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import FileError, check_output, read_json


class Command(NamedTuple):
    """A subcommand."""

    run: Callable[[argparse.Namespace], Any]  # its docstring is the help
    add_options: Callable[[Parser], Any]
    examples: tuple[str, ...]  # what a user would type after its name


def add_commands(parser: Parser, commands: Mapping[str, Command]) -> None:
    """Add a subcommand for each name. Parsing stores the chosen name as `args.command`."""
    names = f"{{{','.join(commands)}}}"
    subparsers = parser.add_subparsers(dest="command", required=True, metavar=names, parser_class=Parser)
    for name, command in commands.items():
        text, examples = command.run.__doc__, [f"{parser.prog} {name} {each}".rstrip() for each in command.examples]
        line = text.partition("\n")[0]
        command.add_options(subparsers.add_parser(name, help=line, description=text, examples=examples))


def add_recipes(parser: argparse._ActionsContainer, default: Optional[str], shown: str = "%(default)s") -> None:
    """Add --recipes. Its value is a list of Recipe, by names and files that commas separate. shown: for the help."""
    named = lambda names: [recipe_named(name, "--recipes") for name in dict.fromkeys(names.split(","))]
    text = f"comma-separated: {KNOWN} (default: {shown})"
    parser.add_argument("--recipes", type=named, default=default, metavar="NAMES", help=text)


def check_result(option: str, file: Path, *keys: str) -> None:
    """As check_output, for JSON that replaces an earlier run's. UserError: a file without these keys stands there."""
    check_output(option, file)
    if file.exists():
        with suppress(FileError):
            found = read_json(file)
            if isinstance(found, dict) and found.keys() >= set(keys):
                return
        raise UserError(f"{option} {file}: exists, and is no result of this command; move it, or give another folder")


def host_alone(backend: str) -> AbstractContextManager:
    """Turn off a golden mesh's values in the block, so that a call's time is the host's work alone."""
    if backend != "golden":
        return nullcontext()
    import golden_mesh

    return golden_mesh.without_values()


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], *, aligned: bool = False) -> str:
    """A table, one line a row. aligned: with columns of equal width, for a table that fits a terminal."""
    lines = [header, ("---",) * len(header), *rows]
    if aligned:
        widths = [max(map(len, column)) for column in zip(*lines)]
        lines = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in lines]
        lines[1] = ["-" * width for width in widths]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
