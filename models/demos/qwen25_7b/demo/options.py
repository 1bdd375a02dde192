"""The demo's options."""

import argparse
from pathlib import Path

from models.common.options import Parser, add_machine
from models.demos.qwen25_7b.config.options import add_recipe
from models.demos.qwen25_7b.loading.place import default_root

CONTEXT = 1024  # tokens a user, unless the options or the model say otherwise
NEW_TOKENS = 64  # of an answer, unless the options say otherwise


def parse(argv: list[str] | None, description: str) -> argparse.Namespace:
    parser = Parser(description=description)
    option = parser.add_argument
    add_machine(parser)
    option("--tp", type=int, help="chips that share a replica of the model (default: all of the mesh)")
    option("--model", help="directory or hub id of a checkpoint (default: the small one of this repository)")
    add_recipe(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", help="one user's prompt")
    what.add_argument("--prompt-file", type=Path, help="one user's prompt: a text file of any length up to the context")
    what.add_argument("--prompts", type=Path, help="JSON file: a list of prompts; 32 a replica are answered at once")
    what.add_argument("--chat", action="store_true", help="a conversation: type, or pipe lines in; /exit ends it")
    option("--batch-size", type=int, help="users in all; the prompts are repeated or cut to this number")
    option("--instruct", action=argparse.BooleanOptionalAction, default=True, help="use the chat template")
    option(
        "--max-new-tokens",
        type=int,
        help=f"tokens to generate for each user (default: {NEW_TOKENS}; in a chat what the context has room for)",
    )
    option("--stop", action="append", default=[], metavar="TEXT", help="end an answer before TEXT; may be repeated")
    option(
        "--max-seq-len",
        type=int,
        help="context for which cache is allocated, tokens a user "
        f"(default: {CONTEXT}, or the model's where that is less)",
    )
    sampling = parser.add_argument_group("sampling", "In a chat the defaults are those of generation_config.json.")
    option = sampling.add_argument
    option("--temperature", type=float, help="0 is greedy (default: 0)")
    option("--top-k", type=int, help="0 keeps all tokens; beyond 32 the host chooses (default: 32)")
    option("--top-p", type=float, help="1 keeps all tokens (default: 1)")
    option(
        "--repetition-penalty",
        type=float,
        help="above 1: say nothing twice (default: 1)",
    )
    option("--seed", type=int, help="makes sampled text repeatable")
    option(
        "--sample-on",
        default="device",
        choices=("device", "host"),
        help="where tokens are chosen (default: %(default)s)",
    )
    option = parser.add_argument
    option(
        "--speculate",
        type=int,
        default=1,
        metavar="K",
        help="write up to K tokens of a text a step, guessed from what it has said before; the same text (default: 1, off)",
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
    args = parser.parse_args(argv)
    if args.chat and not args.instruct:
        parser.error("--chat needs the chat template, which --no-instruct leaves out")
    if args.chat and args.batch_size is not None:
        parser.error("--chat is one user's; --batch-size is for prompts")
    return args
