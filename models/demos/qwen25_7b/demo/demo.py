"""Text from Qwen2.5 on an N150, N300, T3K or Galaxy. Start here to read the repository.

    python models/demos/qwen25_7b/demo/demo.py --mesh N300 --model Qwen/Qwen2.5-7B-Instruct --prompt "Hello"

Without --model, the small checkpoint of this repository answers and nothing is downloaded.

The call path of a decode step, which returns its token id to `answer` below:
`answer` -> Generator (serving/generator.py) -> Scheduler (serving/scheduler.py)
-> InputBatch (serving/input_batch.py) -> Replica (serving/replica.py) -> TracedStep (serving/trace.py)
-> TtTransformer (tt/transformer.py) -> TtSampler (tt/sampler.py)
"""

import os
import sys
import time
from argparse import Namespace
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Iterator

sys.path.insert(
    0, os.path.realpath(f"{__file__}/../../../../..")
)  # so that the file runs from a plain checkout

from models.common.command import quiet_libraries, run, status_of  # noqa: E402
from models.common.terminal import Progress, say  # noqa: E402

if TYPE_CHECKING:
    from models.demos.qwen25_7b.config import QwenConfig
    from models.demos.qwen25_7b.loading.opened import OpenedCheckpoint
    from models.demos.qwen25_7b.serving.open_model import OpenModel
    from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer

CONTEXT = 1024  # tokens of prompt and answer, unless the options or a prompt ask for more
CHAT_CONTEXT = 4096  # the default for a conversation
NEW_TOKENS = 64  # of an answer, unless the options say otherwise


def main(argv: list[str] | None = None) -> int:
    """Run the demo with these arguments (default: the command line's) and return the exit status."""
    return status_of(lambda: _run(argv))


def _run(argv: list[str] | None) -> None:
    """Check everything that needs no weights, then answer or chat."""
    from models.demos.qwen25_7b.demo.options import parse
    from models.demos.qwen25_7b.demo.prompts import read_prompts
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

    args = parse(argv)
    if not args.verbose:
        quiet_libraries()
    prompts = [] if args.chat else read_prompts(args)
    with Progress("starting"):  # torch and transformers take seconds to import
        from models.demos.qwen25_7b.demo.options import check
        from models.demos.qwen25_7b.loading.opened import open_checkpoint
        from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer

        check(args)
        name = SMALL_CHECKPOINT if args.model is None else args.model
        checkpoint = open_checkpoint(name, cache=args.cache, use_cache=not args.no_cache, say=say)
        if args.model is None:
            say("model: the small checkpoint of this repository (--model for another)")
        _check_context(args, checkpoint.config)
        tokenizer = ChatTokenizer(checkpoint.directory, instruct=args.instruct)
    if args.chat:
        _chat(args, checkpoint, tokenizer)
    else:
        _answer_prompts(args, checkpoint, tokenizer, prompts)


def _answer_prompts(
    args: Namespace,
    checkpoint: "OpenedCheckpoint",
    tokenizer: "ChatTokenizer",
    prompts: list[str],
) -> None:
    from models.demos.qwen25_7b.serving.request import check_request

    config = checkpoint.config
    new_tokens = NEW_TOKENS if args.max_new_tokens is None else args.max_new_tokens
    with Progress("tokenizing", "prompts") as progress:
        tokenizer.check_lengths(prompts, args.max_seq_len or config.context)
        encoded = dict.fromkeys(prompts)
        for i, prompt in enumerate(encoded):
            encoded[prompt] = tokenizer.encode(prompt)
            progress(i + 1, len(encoded))
        token_ids = [encoded[prompt] for prompt in prompts]
    context = _context(args, config, max(map(len, token_ids)) + new_tokens)
    check_request(token_ids, new_tokens, context, vocab_size=config.vocab_size)
    with _open(args, checkpoint, tokenizer, len(prompts), context) as model:
        answer(args, model, prompts, token_ids, new_tokens)


def answer(
    args: Namespace,
    model: "OpenModel",
    prompts: list[str],
    token_ids: list[list[int]],
    new_tokens: int,
) -> None:
    """Generate an answer to each prompt, show the answers as they come, then the speed.

    token_ids: the prompts' tokens. new_tokens: the most of an answer.
    """
    from models.demos.qwen25_7b.config.sampling import GREEDY
    from models.demos.qwen25_7b.demo.options import sampling
    from models.demos.qwen25_7b.demo.report import Answers, speculation_line

    answers = Answers(prompts, token_ids, model, args.stop)
    answers.begin(time.perf_counter())
    with Progress("answers", "answers") as finished, Progress("prompts", "tokens") as prefilled:
        for token in model.generator.generate(
            token_ids,
            new_tokens,
            stop_ids=model.stop_ids,
            sampling=sampling(args, GREEDY),
            progress=prefilled,
        ):
            if answers.add(token, time.perf_counter()):
                model.generator.cancel(token.user)
            finished(answers.finished, len(prompts))
    answers.end()
    if args.out is not None:
        answers.save(args.out)
    say(answers.summary(_where(args), args.recipe))
    if args.speculate > 1:
        say(speculation_line(model.generator.stats))


def _chat(args: Namespace, checkpoint: "OpenedCheckpoint", tokenizer: "ChatTokenizer") -> None:
    from models.demos.qwen25_7b.demo.chat import Chat, Lines
    from models.demos.qwen25_7b.demo.options import sampling
    from models.demos.qwen25_7b.demo.report import sampling_line, speculation_line
    from models.demos.qwen25_7b.serving.generation_config import (
        default_sampling,
        unsupported_fields,
    )

    lines = Lines()
    how = sampling(args, default_sampling(checkpoint.directory))
    context = args.max_seq_len or min(CHAT_CONTEXT, checkpoint.config.context)
    for name in unsupported_fields(checkpoint.directory):
        say(f"note: generation_config.json sets {name}, which is not supported")
    with _open(args, checkpoint, tokenizer, 1, context) as model:
        say(f"\n{_where(args)}, recipe {args.recipe}, below ttnn {model.backend}")
        say(f"sampling: {sampling_line(how)}; context {context} tokens")
        Chat(model, how, args.stop, context=context, most=args.max_new_tokens).run(lines)
        if args.speculate > 1:
            say(speculation_line(model.generator.stats))


@contextmanager
def _open(
    args: Namespace,
    checkpoint: "OpenedCheckpoint",
    tokenizer: "ChatTokenizer",
    prompts: int,
    context: int,
) -> "Iterator[OpenModel]":
    """The model on the machine, with a user for each prompt, up to 32 a replica."""
    from models.common.machines import machine
    from models.demos.qwen25_7b.config import MAX_USERS
    from models.demos.qwen25_7b.serving.open_model import open_model

    replicas = machine(args.mesh).chips // args.tp
    with ExitStack() as stack:
        with Progress(f"opening {args.mesh}"):
            model = stack.enter_context(
                open_model(
                    checkpoint,
                    mesh=args.mesh,
                    tp=args.tp,
                    backend=args.backend,
                    recipe=args.recipe,
                    users=min(prompts, MAX_USERS * replicas),
                    max_seq_len=context,
                    tokenizer=tokenizer,
                    on_host=args.sample_on == "host",
                    speculate=args.speculate,
                    verify_cache=args.verify_cache,
                    progress=lambda name: Progress(name, "bytes"),
                )
            )
        yield model


def _check_context(args: Namespace, config: "QwenConfig") -> None:
    from models.common.errors import UserError

    if args.max_seq_len is not None and not 1 <= args.max_seq_len <= config.context:
        raise UserError(
            f"--max-seq-len must be 1 to {config.context}, the model's longest context "
            f"(max_position_embeddings, or what YaRN makes of it), got {args.max_seq_len}"
        )


def _context(args: Namespace, config: "QwenConfig", longest: int) -> int:
    """Tokens of the longest text: --max-seq-len, else CONTEXT or the need of the longest text."""
    if args.max_seq_len is not None:
        return args.max_seq_len
    context = min(max(CONTEXT, longest), config.context)
    if CONTEXT < longest <= context:
        say(f"context: {context} tokens, for the longest prompt and its answer (--max-seq-len)")
    return context


def _where(args: Namespace) -> str:
    from models.common.machines import machine

    return f"{args.mesh}, tp {args.tp} x dp {machine(args.mesh).chips // args.tp}"


if __name__ == "__main__":
    run(main)
