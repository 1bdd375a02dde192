"""The demo's options."""

import argparse
from pathlib import Path

from models.common.options import Parser, add_machine
from models.demos.qwen25_7b.config import RECIPES
from models.demos.qwen25_7b.loading.place import default_root

CONTEXT = 1024  # tokens a user, unless the options or the model say otherwise


def parse(argv: list[str] | None, description: str) -> argparse.Namespace:
    parser = Parser(description=description)
    option = parser.add_argument
    add_machine(parser)
    option("--tp", type=int, help="chips that share a replica of the model (default: all of the mesh)")
    option("--model", help="directory or hub id of a checkpoint (default: the small one of this repository)")
    option(
        "--recipe",
        default="bfp8",
        choices=sorted(RECIPES),
        help="number formats of weights and cache (default: %(default)s)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", help="one user's prompt")
    what.add_argument("--prompt-file", type=Path, help="one user's prompt: a text file of any length up to the context")
    what.add_argument("--prompts", type=Path, help="JSON file: a list of prompts; 32 a replica are answered at once")
    option("--batch-size", type=int, help="users in all; the prompts are repeated or cut to this number")
    option("--instruct", action=argparse.BooleanOptionalAction, default=True, help="use the chat template")
    option("--max-new-tokens", type=int, default=64, help="tokens to generate for each user (default: %(default)s)")
    option(
        "--max-seq-len",
        type=int,
        help="context for which cache is allocated, tokens a user "
        f"(default: {CONTEXT}, or the model's where that is less)",
    )
    option("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    option(
        "--top-k", type=int, default=32, help="0 keeps all tokens; beyond 32 the host chooses (default: %(default)s)"
    )
    option("--top-p", type=float, default=1.0, help="1 keeps all tokens (default: %(default)s)")
    option("--seed", type=int, help="makes sampled text repeatable")
    option(
        "--sample-on",
        default="device",
        choices=("device", "host"),
        help="where tokens are chosen (default: %(default)s)",
    )
    cache = parser.add_mutually_exclusive_group()
    cache.add_argument(
        "--cache",
        type=Path,
        default=default_root(),
        help="where tiled weights are kept for the next start (default: %(default)s)",
    )
    cache.add_argument("--no-cache", action="store_true", help="keep none, use none")
    option("--verify-cache", action="store_true", help="check all of the cache's files before they are used")
    option("--verbose", action="store_true", help="let the libraries log")
    return parser.parse_args(argv)
