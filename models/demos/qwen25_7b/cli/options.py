"""Command-line parsing that every program of this repository shares."""

import argparse
from pathlib import Path
from typing import Any, Callable, Mapping, NoReturn, Optional, Sequence

from ..errors import UserError
from ..plans.machines import BACKENDS, MACHINES, TTNN_VERSION, machine

VERSION = "0.2.0"  # of this repository; pyproject.toml reads it


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UserError for a bad option.

    The help shows the first line of `description`, a docstring. It ends with `examples`: command
    lines as a user would type them.
    """

    def __init__(self, *, description: Optional[str] = None, examples: Sequence[str] = (), **kwargs: Any):
        lines = "".join(f"\n  {example}" for example in examples)
        super().__init__(
            description=(description or "").partition("\n")[0],
            epilog=f"examples:{lines}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **kwargs,
        )
        self.add_argument(
            "--version",
            action="version",
            version=f"Qwen2.5-7B on TT-NN {VERSION}, for ttnn {TTNN_VERSION}",
            help="show the version and exit",
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help shows the options)")


def add_commands(parser: Parser, commands: Mapping[str, Any]) -> None:
    """Add a subcommand for each name. Parsing stores the chosen name as `args.command`.

    commands: name -> module or class. The first line of its docstring is the help. It has
    `add_options(parser)`, and may have EXAMPLES.
    """
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar=f"{{{','.join(commands)}}}", parser_class=Parser
    )
    for name, command in commands.items():
        text = command.__doc__
        examples = getattr(command, "EXAMPLES", ())
        command.add_options(
            subparsers.add_parser(name, help=text.partition("\n")[0], description=text, examples=examples)
        )


def path(option: str) -> Callable[[str], Path]:
    """The `type` of an option that names a file or a directory. UserError: it is empty."""

    def named(value: str) -> Path:
        if not value:
            raise UserError(f"{option} is empty: name a file or a directory (is a variable unset?)")
        return Path(value)

    return named


def add_machine(parser: argparse._ActionsContainer) -> None:
    """Add --mesh and --backend to a parser or to an argument group."""
    parser.add_argument(
        "--mesh",
        type=lambda name: machine(name, "--mesh").name,
        default="N300",
        help=f"{', '.join(MACHINES)} (default: %(default)s)",
    )
    parser.add_argument(
        "--backend",
        default="auto",
        choices=BACKENDS,
        help="below ttnn: a device (a card, or the simulator that TT_METAL_SIMULATOR names), or "
        "the golden mesh; auto: the device if there is one (default: %(default)s)",
    )
