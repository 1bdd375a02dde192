"""One run of the demo: prompts to text."""

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING, ContextManager, Optional

from models.common.command import quiet_libraries
from models.common.errors import UserError
from models.common.mesh import check_tp, machine
from models.common.terminal import say
from models.demos.qwen25_7b.config import MAX_USERS, QwenConfig
from models.demos.qwen25_7b.demo.options import CONTEXT, NEW_TOKENS
from models.demos.qwen25_7b.demo.prompts import from_argument, read_prompts
from models.demos.qwen25_7b.demo.report import Bar, Report, described, shortened, show_table, speculated
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

if TYPE_CHECKING:
    from models.demos.qwen25_7b.config.sampling import Sampling
    from models.demos.qwen25_7b.loading.opened import OpenedCheckpoint
    from models.demos.qwen25_7b.serving.open_model import OpenModel
    from models.demos.qwen25_7b.serving.text import Text


def answer(args: argparse.Namespace) -> None:
    """Prompts from the options, answers to stdout. UserError for what cannot be, before anything is loaded."""
    if not args.verbose:
        quiet_libraries()
    # These take seconds to import.
    from models.demos.qwen25_7b.config.sampling import GREEDY
    from models.demos.qwen25_7b.loading.opened import open_checkpoint
    from models.demos.qwen25_7b.serving.generation_config import default_sampling
    from models.demos.qwen25_7b.serving.request import check_new_tokens, check_request, check_speculate, check_stop
    from models.demos.qwen25_7b.serving.text import Text

    check_tp(args.mesh, _tp(args))
    args.stop = [from_argument("--stop", stop) for stop in args.stop]
    check_stop(args.stop)
    check_speculate(args.speculate, on_host=args.sample_on == "host")
    new_tokens = NEW_TOKENS if args.max_new_tokens is None else args.max_new_tokens
    check_new_tokens(new_tokens)
    given = _sampling(args, GREEDY)
    prompts = [] if args.chat else read_prompts(args.prompt, args.prompt_file, args.prompts, args.batch_size)
    name = SMALL_CHECKPOINT if args.model is None else args.model
    checkpoint = open_checkpoint(name, cache=args.cache, use_cache=not args.no_cache, say=say)
    if args.model is None:
        say("model: the small checkpoint of this repository (--model for another)")
    max_seq_len = _context(args.max_seq_len, checkpoint.config)
    text = Text(checkpoint.directory, instruct=args.instruct)
    if args.chat:
        _chat(args, checkpoint, text, _sampling(args, default_sampling(checkpoint.directory)), max_seq_len)
        return
    text.check_lengths(prompts, max_seq_len)
    tokens = [text.encode(prompt) for prompt in prompts]
    check_request(tokens, new_tokens, max_seq_len, vocab_size=checkpoint.config.vocab_size)
    with _opened(args, checkpoint, text, len(prompts), max_seq_len) as model:
        _answers(args, model, prompts, tokens, new_tokens, given)


def _answers(
    args: argparse.Namespace,
    model: "OpenModel",
    prompts: list[str],
    tokens: list[list[int]],
    new_tokens: int,
    sampling: "Sampling",
) -> None:
    report = Report(len(prompts), model.backend)
    streams = [model.text.stream(args.stop) for _ in prompts]
    if len(prompts) == 1:
        say(f"\n> {shortened(prompts[0])}")
    report.start(time.perf_counter())
    with Bar("prompts", "tokens") as bar:
        for token in model.generator.generate(
            tokens, new_tokens, stop_ids=model.stop_ids, sampling=sampling, progress=bar
        ):
            report.token(token.user, time.perf_counter())
            stream = streams[token.user]
            piece = stream.add(token.id, last=token.last)
            if stream.stopped:
                model.generator.cancel(token.user)
            if len(prompts) == 1:
                bar.close()
                say(piece, end="")
    if len(prompts) == 1:
        say("\n")
    else:
        show_table(prompts, [stream.text for stream in streams], report.tokens)
    say(report.summary(_where(args), args.recipe))
    if args.speculate > 1:
        say(speculated(model.generator.tally))


def _chat(
    args: argparse.Namespace, checkpoint: "OpenedCheckpoint", text: "Text", sampling: "Sampling", max_seq_len: int
) -> None:
    from models.demos.qwen25_7b.demo.chat import Chat
    from models.demos.qwen25_7b.demo.lines import Lines
    from models.demos.qwen25_7b.serving.generation_config import not_done

    lines = Lines()
    for name in not_done(checkpoint.directory):
        say(f"note: generation_config.json sets {name}, which is not done here")
    with _opened(args, checkpoint, text, 1, max_seq_len) as model:
        say(f"\n{_where(args)}, recipe {args.recipe}, below ttnn {model.backend}")
        say(f"sampling: {described(sampling)}; context {max_seq_len} tokens")
        Chat(model, sampling, args.stop, context=max_seq_len, most=args.max_new_tokens).run(lines)
        if args.speculate > 1:
            say(speculated(model.generator.tally))


def _opened(
    args: argparse.Namespace, checkpoint: "OpenedCheckpoint", text: "Text", prompts: int, max_seq_len: int
) -> "ContextManager[OpenModel]":
    from models.demos.qwen25_7b.serving.open_model import open_model

    kind, tp = machine(args.mesh), _tp(args)
    return open_model(
        checkpoint,
        mesh=kind.name,
        tp=tp,
        backend=args.backend,
        recipe=args.recipe,
        users=min(prompts, MAX_USERS * (kind.chips // tp)),
        max_seq_len=max_seq_len,
        text=text,
        on_host=args.sample_on == "host",
        speculate=args.speculate,
        verify_cache=args.verify_cache,
        progress=lambda name: Bar(name, "bytes"),
    )


def _tp(args: argparse.Namespace) -> int:
    return machine(args.mesh).chips if args.tp is None else args.tp


def _where(args: argparse.Namespace) -> str:
    kind, tp = machine(args.mesh), _tp(args)
    return f"{kind.name}, tp {tp} x dp {kind.chips // tp}"


def _sampling(args: argparse.Namespace, default: "Sampling") -> "Sampling":
    """What the options say, and `default` where they say nothing."""
    names = "temperature", "top_k", "top_p", "repetition_penalty", "seed"
    return replace(default, **{name: value for name in names if (value := getattr(args, name)) is not None})


def _context(wanted: Optional[int], config: QwenConfig) -> int:
    """Tokens a user, from --max-seq-len."""
    most = config.context
    if wanted is None:
        return min(CONTEXT, most)
    if not 1 <= wanted <= most:
        raise UserError(
            f"--max-seq-len must be 1 to {most}, the model's longest context (max_position_embeddings, or what YaRN makes of "
            f"it), got {wanted}"
        )
    return wanted
