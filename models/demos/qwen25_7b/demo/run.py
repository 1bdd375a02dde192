"""One run of the demo: prompts to text."""

import argparse
import time
from typing import Optional

from models.common.command import quiet_libraries
from models.common.errors import UserError
from models.common.mesh import (
    check_tp,
    command_queues,
    describe_backend,
    machine,
    open_replicas,
    select_backend,
    traces_available,
)
from models.common.terminal import say
from models.demos.qwen25_7b.config import RECIPES, ParallelPlan, QwenConfig
from models.demos.qwen25_7b.demo.options import CONTEXT
from models.demos.qwen25_7b.demo.prompts import read_prompts
from models.demos.qwen25_7b.demo.report import Report, WeightsBar, show_table
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT


def answer(args: argparse.Namespace) -> None:
    """Prompts from the options, answers to stdout. UserError for what cannot be, before anything is loaded."""
    if not args.verbose:
        quiet_libraries()
    # These take seconds to import, or import ttnn, which must see the backend that select_backend chooses.
    from models.demos.qwen25_7b.config.sampling import Sampling
    from models.demos.qwen25_7b.loading.opened import open_model
    from models.demos.qwen25_7b.serving.text import Text

    kind = machine(args.mesh)
    tp = kind.chips if args.tp is None else args.tp
    check_tp(kind.name, tp)
    dp = kind.chips // tp
    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.seed)
    if args.sample_on == "device":
        sampling.check_on_device()
    prompts = read_prompts(args.prompt, args.prompts, args.batch_size, 32 * dp)
    name = SMALL_CHECKPOINT if args.model is None else args.model
    opened = open_model(name, cache=args.cache, use_cache=not args.no_cache)
    config = opened.config
    if args.model is None:
        say("model: the small checkpoint of this repository (--model for another)")
    max_seq_len = _context(args.max_seq_len, config)
    text = Text(opened.directory, instruct=args.instruct)
    text.check_lengths(prompts, max_seq_len)
    tokens = [text.encode(prompt) for prompt in prompts]
    backend = select_backend(args.backend, kind.name)

    from models.demos.qwen25_7b.loading.load import load_model, verify
    from models.demos.qwen25_7b.serving.generator import Generator
    from models.demos.qwen25_7b.serving.replica import Replica
    from models.demos.qwen25_7b.serving.request import check_request

    check_request(tokens, args.max_new_tokens, max_seq_len, 32 * dp, vocab_size=config.vocab_size)
    if args.verify_cache:
        verify(opened, ParallelPlan.make(config, tp), RECIPES[args.recipe])
    report = Report(len(prompts), describe_backend(backend))
    queues = command_queues()
    with open_replicas(kind.name, tp, queues=queues) as devices:
        replicas = []
        for i, device in enumerate(devices[: len(prompts)]):
            with WeightsBar(f"weights {i + 1}/{dp}" if dp > 1 else "weights") as bar:
                model = load_model(
                    opened,
                    device,
                    RECIPES[args.recipe],
                    batch=len(range(i, len(prompts), dp)),
                    max_seq_len=max_seq_len,
                    progress=bar,
                )
            replicas.append(
                Replica(
                    model,
                    traced=traces_available(),
                    queues=queues,
                    host_logits=args.sample_on == "host",
                )
            )
        generator = Generator(replicas)
        streams = [text.stream() for _ in prompts]
        if len(prompts) == 1:
            say(f"\n> {prompts[0]}")
        report.start(time.perf_counter())
        for token in generator.generate(
            tokens,
            args.max_new_tokens,
            stop_ids=text.stop_ids | set(config.eos_token_ids),
            sampling=sampling,
        ):
            report.token(token.user, time.perf_counter())
            piece = streams[token.user].add(token.id, last=token.last)
            if len(prompts) == 1:
                say(piece, end="")
        if len(prompts) == 1:
            say("\n")
        else:
            show_table(prompts, [stream.text for stream in streams], report.tokens)
        say(report.summary(f"{kind.name}, tp {tp} x dp {dp}", args.recipe))
        generator.close()


def _context(wanted: Optional[int], config: QwenConfig) -> int:
    """Tokens a user, from --max-seq-len."""
    most = config.max_position_embeddings
    if wanted is None:
        return min(CONTEXT, most)
    if not 1 <= wanted <= most:
        raise UserError(
            f"--max-seq-len must be 1 to {most}, the model's max_position_embeddings, got {wanted}: the model was made "
            f"for no longer context"
        )
    return wanted
