"""The demo's command line: its options, its prompts, and the checks that need neither a model nor a device."""

import argparse
from dataclasses import replace
from pathlib import Path

from ..cli.options import Parser, add_machine, add_recipe, number, path
from ..config.sampling import SamplingParams
from ..errors import UserError, shown
from ..files import check_output, parse_json, read_json_lines, read_text
from ..plans.machines import Split
from ..text.request import check_speculate

CONTEXT = 1024  # tokens of prompt and answer, unless the options or a prompt ask for more
CHAT_CONTEXT = 4096  # the default for a conversation
NEW_TOKENS = 64  # tokens of an answer to a prompt
DEFAULT_PROMPT = "What is the capital of France?"

DEMO = f"python {__package__.replace('.', '/')}/demo.py"
EXAMPLES = (
    f'{DEMO} --prompt "What is the capital of Japan?"',
    f"{DEMO} --mesh T3K --tp 4 --prompts prompts.json --out answers.jsonl",
    f"{DEMO} --model Qwen/Qwen2.5-7B-Instruct --chat --temperature 0.7 --seed 1",
)
SAMPLING = "temperature", "top_k", "top_p", "repetition_penalty", "seed"


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line; args.split is the machine with its tp. UserError names the option that cannot be."""
    parser = Parser(description="Text from Qwen2.5 on an N150, N300, N150x4, T3K or Galaxy.", examples=EXAMPLES)
    _add_options(parser)
    args = parser.parse_args(argv)
    if args.chat and not args.instruct:
        parser.error("--chat needs the chat template, which --no-instruct leaves out")
    if args.chat and (args.batch_size is not None or args.out is not None):
        parser.error("--chat has one user and shows its answers; --batch-size and --out are for prompts")
    if not all(args.stop):
        parser.error("--stop needs one character or more")
    args.split = Split.of(args.mesh, args.tp)
    check_speculate(args.speculate, on_host=args.sample_on == "host")
    if args.out is not None:
        check_output("--out", args.out, new=True)
    if args.max_new_tokens is None and not args.chat:
        args.max_new_tokens = NEW_TOKENS
    return args


def sampling(args: argparse.Namespace, default: SamplingParams) -> SamplingParams:
    """The sampling of the options, with the values of `default` for absent options."""
    return replace(default, **{name: value for name in SAMPLING if (value := getattr(args, name)) is not None})


def _add_options(parser: Parser) -> None:
    group = parser.add_argument_group("prompts (one of the first four)")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--prompt", metavar="TEXT", help="one prompt")
    one.add_argument("--prompt-file", type=path, metavar="FILE", help="one prompt: a text file or a pipe")
    several = 'JSON list or JSON lines: strings, or objects with a "prompt"; a replica runs 32 at once'
    one.add_argument("--prompts", type=path, metavar="FILE", help=several)
    one.add_argument("--chat", action="store_true", help="a conversation: type, or pipe lines in; /exit ends it")
    group.add_argument("--batch-size", **number(), help="number of users; prompts are repeated or cut to this number")
    group.add_argument("--instruct", action=argparse.BooleanOptionalAction, default=True, help="use the chat template")

    option = parser.add_argument_group("answers").add_argument
    tokens = "an answer ends after N tokens (default: 64; in a chat the rest of the context)"
    option("--max-new-tokens", **number(), help=tokens)
    option("--stop", action="append", default=[], metavar="TEXT", help="end an answer before TEXT; may be repeated")
    context = (
        "context, tokens a user (default: what the longest prompt and its answer need, at least 1024; in a chat 4096)"
    )
    option("--max-seq-len", **number(), help=context)
    option("--out", type=path, metavar="FILE", help="write the answers to a new file, a line of JSON for each prompt")

    defaults = "The defaults of a chat are those of generation_config.json."
    option = parser.add_argument_group("sampling", defaults).add_argument
    option("--temperature", type=float, metavar="T", help="0 is greedy (default: 0)")
    top_k = "0 keeps all tokens; the host samples where K is above 32, or 0 with --top-p below 1 (default: 32)"
    option("--top-k", type=int, metavar="K", help=top_k)
    option("--top-p", type=float, metavar="P", help="1 keeps all tokens (default: 1)")
    penalty = "above 1: repeated tokens become less likely (default: 1)"
    option("--repetition-penalty", type=float, metavar="P", help=penalty)
    option("--seed", **number(0), help="makes sampled text repeatable")
    where = "where tokens are sampled (default: %(default)s)"
    option("--sample-on", default="device", choices=("device", "host"), help=where)
    draft = "accept up to K tokens of a text in a step, drafted from the text itself; the answers stay the same"
    option("--speculate", type=int, default=1, metavar="K", help=f"{draft} (default: 1, off)")

    group = parser.add_argument_group("model and machine")
    add_machine(group)
    group.add_argument("--tp", **number(), help="chips of a replica of the model (default: all of a row of the mesh)")
    group.add_argument("--model", help="directory or hub id of a checkpoint (default: this repository's small one)")
    add_recipe(group)
    cache = group.add_mutually_exclusive_group()
    folder = "where packed weights are kept for the next start (default: ~/.cache)"
    cache.add_argument("--cache", type=path, metavar="DIR", help=folder)
    cache.add_argument("--no-cache", action="store_true", help="keep none, use none")


def read_prompts(args: argparse.Namespace) -> list[str]:
    """One prompt for each user, from --prompt, --prompt-file, --prompts or the default.

    --batch-size repeats them or cuts them to its number. UserError names the option, the file or the
    prompt that cannot be.
    """
    if args.prompts is not None:
        prompts = _from_json(args.prompts)
    elif args.prompt_file is not None:
        prompts = [read_text(args.prompt_file, "--prompt-file")]
    else:
        prompts = [DEFAULT_PROMPT if args.prompt is None else args.prompt]
    for i, prompt in enumerate(prompts):
        if not prompt.strip():
            raise UserError(f"prompt {i} is empty: a prompt needs at least one character")
    users = len(prompts) if args.batch_size is None else args.batch_size
    return [prompts[i % len(prompts)] for i in range(users)]


def _from_json(file: Path) -> list[str]:
    """The prompts of a JSON list or of JSON lines."""
    text, label = read_text(file, "--prompts"), f"--prompts {file}"
    if text.lstrip().startswith("["):
        items = parse_json(text, label)
    else:
        items = [item for _, item in read_json_lines(text, label)]
    if not items:
        raise UserError(f"--prompts {file}: no prompts; expected a JSON list or JSON lines")
    prompts = [item.get("prompt") if isinstance(item, dict) else item for item in items]
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise UserError(
                f'--prompts {file}: item {i} must be a string or an object with a "prompt", got {shown(items[i])}'
            )
    return prompts
