"""Text from Qwen2.5 on an N150, N300 or T3K.

    python models/demos/qwen25_7b/demo/demo.py --mesh N300 --model Qwen/Qwen2.5-7B-Instruct --prompt "Hello"

Without --model the small checkpoint of this repository answers, so nothing is downloaded.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))  # so that the file runs from a plain checkout

from models.common.command import status_of  # noqa: E402
from models.common.mesh import (  # noqa: E402
    MACHINES,
    check_tp,
    command_queues,
    describe_backend,
    machine,
    open_replicas,
    select_backend,
    traces_available,
)
from models.demos.qwen25_7b.config import RECIPES  # noqa: E402
from models.demos.qwen25_7b.demo.prompts import read_prompts  # noqa: E402
from models.demos.qwen25_7b.demo.report import Report, WeightsBar, show_table  # noqa: E402
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT  # noqa: E402
from models.demos.qwen25_7b.serving.text import Text  # noqa: E402
from models.demos.qwen25_7b.weights import Checkpoint  # noqa: E402


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--mesh", default="N300", help=f"{', '.join(MACHINES)}")
    parser.add_argument("--tp", type=int, help="chips that share a replica of the model; default: all of the mesh")
    parser.add_argument("--backend", default="auto", choices=("auto", "device", "golden"), help="what is below ttnn")
    parser.add_argument("--model", help="directory or hub id of a checkpoint; default: the small one")
    parser.add_argument("--recipe", default="bfp8", choices=sorted(RECIPES), help="number formats of weights and cache")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", help="one user's prompt")
    what.add_argument("--prompts", type=Path, help="JSON file: a list of up to 32 prompts")
    parser.add_argument("--batch-size", type=int, help="users in all; the prompts are repeated or cut to this number")
    parser.add_argument("--instruct", action=argparse.BooleanOptionalAction, default=True, help="use the chat template")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="tokens to generate for each user")
    parser.add_argument(
        "--max-seq-len", type=int, default=1024, help="context for which cache is allocated, tokens a user"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--top-k", type=int, default=32, help="0 keeps all tokens; more than 32 only on the host")
    parser.add_argument("--top-p", type=float, default=1.0, help="1 keeps all tokens")
    parser.add_argument("--seed", type=int, help="makes sampled text repeatable")
    parser.add_argument("--sample-on", default="device", choices=("device", "host"), help="where tokens are chosen")
    parser.add_argument("--verbose", action="store_true", help="let the libraries log")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> None:
    kind = machine(args.mesh)
    tp = kind.chips if args.tp is None else args.tp
    check_tp(kind.name, tp)
    dp = kind.chips // tp
    prompts = read_prompts(args.prompt, args.prompts, args.batch_size, 32 * dp)
    checkpoint = Checkpoint.open(args.model or SMALL_CHECKPOINT)
    if not args.model:
        print("model: the small checkpoint of this repository (--model for another)")
    text = Text(checkpoint.directory, instruct=args.instruct)
    tokens = [text.encode(prompt) for prompt in prompts]
    backend = select_backend(args.backend, kind.name)

    # These import ttnn, which must see the backend that was just chosen.
    from models.demos.qwen25_7b.config.sampling import Sampling
    from models.demos.qwen25_7b.serving.generator import Generator
    from models.demos.qwen25_7b.serving.replica import Replica
    from models.demos.qwen25_7b.serving.request import check_request

    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.seed)
    max_seq_len = min(args.max_seq_len, checkpoint.config.context)
    check_request(tokens, args.max_new_tokens, max_seq_len, vocab_size=checkpoint.config.vocab_size)
    report = Report(len(prompts), describe_backend(backend))
    queues = command_queues()
    with open_replicas(kind.name, tp, queues=queues) as devices:
        replicas = []
        for i, device in enumerate(devices[: len(prompts)]):
            with WeightsBar(f"weights {i + 1}/{dp}" if dp > 1 else "weights") as bar:
                replica = Replica.load(
                    device,
                    checkpoint,
                    checkpoint.config,
                    RECIPES[args.recipe],
                    users=min(32, len(range(i, len(prompts), dp))),
                    max_seq_len=max_seq_len,
                    traced=traces_available(),
                    queues=queues,
                    progress=bar,
                )
            replicas.append(replica)
        generator = Generator(replicas, on_host=args.sample_on == "host")
        streams = [text.stream() for _ in prompts]
        if len(prompts) == 1:
            print(f"\n> {prompts[0]}")
        report.start(time.perf_counter())
        for token in generator.generate(
            tokens,
            args.max_new_tokens,
            stop_ids=text.stop_ids | set(checkpoint.config.eos_token_ids),
            sampling=sampling,
        ):
            report.token(token.user, time.perf_counter())
            piece = streams[token.user].add(token.id, last=token.last)
            if len(prompts) == 1:
                print(piece, end="", flush=True)
        if len(prompts) == 1:
            print("\n")
        else:
            show_table(prompts, [stream.text for stream in streams], report.tokens)
        print(report.summary(f"{kind.name}, tp {tp} x dp {dp}", args.recipe))
        generator.close()


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    return status_of(lambda: run(args), verbose=args.verbose)


if __name__ == "__main__":
    sys.exit(main())
