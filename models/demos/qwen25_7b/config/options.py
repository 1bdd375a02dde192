"""The option that every command has which loads or models something."""

import argparse

from models.demos.qwen25_7b.config.recipe import BFP8
from models.demos.qwen25_7b.config.recipe_file import KNOWN, recipe_named


def add_recipe(parser: argparse.ArgumentParser, name: str = "--recipe", default: str = BFP8.name) -> None:
    """Its value is a Recipe."""
    parser.add_argument(
        name,
        type=lambda named: recipe_named(named, name),
        default=default,
        metavar="NAME|FILE.json",
        help=f"number formats of weights and cache: {KNOWN} (default: %(default)s)",
    )
