"""One run of the demo: prompts to text."""

import argparse
import time
from typing import Optional

from models.common.command import quiet_libraries
from models.common.errors import UserError
from models.common.mesh import check_tp, machine
from models.common.terminal import say
from models.demos.qwen25_7b.config import QwenConfig
from models.demos.qwen25_7b.demo.options import CONTEXT
from models.demos.qwen25_7b.demo.prompts import read_prompts
from models.demos.qwen25_7b.demo.report import Bar, Report, shortened, show_table
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT


def answer(args: argparse.Namespace) -> None:
    """Prompts from the options, answers to stdout. UserError for what cannot be, before anything is loaded."""
    if not args.verbose:
        quiet_libraries()
    # These take seconds to import.
    from models.demos.qwen25_7b.config.sampling import Sampling
    from models.demos.qwen25_7b.loading.opened import open_checkpoint
    from models.demos.qwen25_7b.serving.open_model import open_model
    from models.demos.qwen25_7b.serving.request import check_request
    from models.demos.qwen25_7b.serving.text import Text

    kind = machine(args.mesh)
    tp = kind.chips if args.tp is None else args.tp
    check_tp(kind.name, tp)
    dp = kind.chips // tp
    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.seed)
    prompts = read_prompts(args.prompt, args.prompt_file, args.prompts, args.batch_size)
    name = SMALL_CHECKPOINT if args.model is None else args.model
    checkpoint = open_checkpoint(name, cache=args.cache, use_cache=not args.no_cache, say=say)
    if args.model is None:
        say("model: the small checkpoint of this repository (--model for another)")
    max_seq_len = _context(args.max_seq_len, checkpoint.config)
    text = Text(checkpoint.directory, instruct=args.instruct)
    text.check_lengths(prompts, max_seq_len)
    tokens = [text.encode(prompt) for prompt in prompts]
    check_request(tokens, args.max_new_tokens, max_seq_len, vocab_size=checkpoint.config.vocab_size)
    opened = open_model(
        checkpoint,
        mesh=kind.name,
        tp=tp,
        backend=args.backend,
        recipe=args.recipe,
        users=min(len(prompts), 32 * dp),
        max_seq_len=max_seq_len,
        text=text,
        on_host=args.sample_on == "host",
        verify_cache=args.verify_cache,
        progress=lambda name: Bar(name, "bytes"),
    )
    with opened as model:
        report = Report(len(prompts), model.backend)
        streams = [text.stream() for _ in prompts]
        if len(prompts) == 1:
            say(f"\n> {shortened(prompts[0])}")
        report.start(time.perf_counter())
        with Bar("prompts", "tokens") as bar:
            for token in model.generator.generate(
                tokens, args.max_new_tokens, stop_ids=model.stop_ids, sampling=sampling, progress=bar
            ):
                report.token(token.user, time.perf_counter())
                piece = streams[token.user].add(token.id, last=token.last)
                if len(prompts) == 1:
                    bar.close()
                    say(piece, end="")
        if len(prompts) == 1:
            say("\n")
        else:
            show_table(prompts, [stream.text for stream in streams], report.tokens)
        say(report.summary(f"{kind.name}, tp {tp} x dp {dp}", args.recipe))


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
