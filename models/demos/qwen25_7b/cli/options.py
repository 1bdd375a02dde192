"""Command-line parsing that every program of this repository shares."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Optional, Sequence

from ..config import BFP8
from ..config.recipe import KNOWN, recipe_named
from ..errors import UserError
from ..plans.machines import BACKENDS, MACHINES, TTNN_VERSION, machine

VERSION = "0.2.0"  # pyproject.toml reads it


def number(least: int = 1) -> dict[str, Any]:
    """The type of an option that takes an integer of `least` or more, and the name of its value."""

    def integer(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more, got {text}")
        return int(text)

    return dict(type=integer, metavar="N")


def path(text: str) -> Path:
    """The type of an option that takes a file or a folder. An unset variable of a shell is none."""
    if not text:
        raise argparse.ArgumentTypeError("got an empty name; give a file or folder, or leave the option out")
    return Path(text)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UserError for a bad option.

    The help shows the first line of `description`, a docstring, and ends with `examples`, which are command lines.
    """

    def __init__(self, *, description: Optional[str] = None, examples: Sequence[str] = (), **kwargs: Any):
        lines = "".join(f"\n  {example}" for example in examples)
        super().__init__(
            description=(description or "").partition("\n")[0],
            epilog=f"examples:{lines}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **kwargs,
        )
        version = f"Qwen2.5-7B on TT-NN {VERSION}, for ttnn {TTNN_VERSION}"
        self.add_argument("--version", action="version", version=version, help="show the version and exit")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help shows the options)")


def add_machine(parser: argparse._ActionsContainer) -> None:
    """Add --mesh and --backend to a parser or to an argument group."""
    known, default = (lambda name: machine(name, "--mesh").name), "(default: %(default)s)"
    parser.add_argument("--mesh", type=known, default="N300", help=f"{', '.join(MACHINES)} {default}")
    below = "below ttnn: a device (a card, or the simulator that TT_METAL_SIMULATOR names), or the golden mesh"
    how = f"{below}; auto: the device if there is one {default}"
    parser.add_argument("--backend", default="auto", choices=BACKENDS, help=how)


def add_recipe(parser: argparse._ActionsContainer, default: str = BFP8.name) -> None:
    """Add --recipe. Its value is a Recipe."""
    known = partial(recipe_named, option="--recipe")
    text = f"number formats of weights and cache: {KNOWN} (default: %(default)s)"
    parser.add_argument("--recipe", type=known, default=default, metavar="NAME|FILE.json", help=text)
