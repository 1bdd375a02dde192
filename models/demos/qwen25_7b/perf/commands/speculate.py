"""What several tokens a step should save, for prose, code and quotes: steps counted, times modelled, not measured.

A checkpoint's greedy answers (Hugging Face in float32) say how many guesses are right; steps are modelled at the 7B's dims.
"""

import argparse
from pathlib import Path

from models.common.mesh import describe_backend, machine, open_replicas, select_backend
from models.common.terminal import complain
from models.demos.qwen25_7b.config import QWEN25_7B, ParallelPlan
from models.demos.qwen25_7b.perf.options import add_split, check_split

TOKENS = (2, 4, 6, 8)  # of a step
NEW_TOKENS = 256
HERE = Path(__file__).resolve()
TEXT = HERE.parents[2] / "evaluation" / "held_out.txt"
CODE = HERE.parents[4] / "common" / "json_file.py"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_split(parser)
    parser.set_defaults(batch=1)
    parser.add_argument("--position", type=int, default=1024, help="tokens behind the text's next one (default: 1024)")
    parser.add_argument("--model", default="smollm2", help="whose answers: a directory, or smollm2 (default)")


def prompts() -> dict[str, list[str]]:
    """By kind. Quotes: the answer is in the prompt; the second of code is in between."""
    text, code = TEXT.read_text()[:900], CODE.read_text()
    return {
        "prose": [
            "Write a story about a lighthouse keeper and a storm.",
            "Explain how bread is made, and why it rises.",
            "Describe the history of the bicycle.",
        ],
        "code": [
            "Write a Python class for a stack with push, pop and peek, with tests.",
            "Write a Python function that parses a line of CSV, and examples of its use.",
            f"Rename the functions of this program, and write all of it again:\n\n```python\n{code}```",
        ],
        "quotes": [
            f"Correct the spelling of this text, and write all of it again:\n\n{text}",
            f"Repeat this program word for word:\n\n```python\n{code}```",
        ],
    }


def table(args: argparse.Namespace) -> str:
    check_split(args)
    kind = machine(args.mesh)
    backend = select_backend(args.backend, kind.name)
    with open_replicas(kind.name, args.tp, worker_dispatch=args.worker_dispatch) as devices:
        seconds = {tokens: modelled_step(args, devices[0], tokens) for tokens in (1, *TOKENS)}
    where = f"{kind.name}, tp {args.tp} x dp {kind.chips // args.tp}"
    below = describe_backend(backend).split(" (")[0]
    title = (
        f"Qwen2.5-7B decode, {where}, {args.batch} user(s) a replica at position {args.position}, recipe {args.recipe}; operations "
        f"captured, below ttnn: {below}; answers of {args.model}. Modelled, not measured."
    )
    return "\n\n".join([title, steps_table(seconds), answers_table(answers(args.model), seconds)])


def modelled_step(args: argparse.Namespace, device, tokens: int) -> float:
    """Seconds of a step that computes so many tokens of each user."""
    # These import ttnn, which must see the backend that was just chosen.
    from models.demos.qwen25_7b.perf.calibration import calibrate
    from models.demos.qwen25_7b.perf.capture import capture_step
    from models.demos.qwen25_7b.perf.step_model import model_step
    from models.demos.qwen25_7b.plans.grids import worker_grid
    from models.demos.qwen25_7b.plans.step_bytes import step_bytes
    from models.demos.qwen25_7b.tt.collectives import links_between

    recipe, plan = args.recipe, ParallelPlan.make(QWEN25_7B, args.tp)
    users = dict(users=args.batch, position=args.position)
    return model_step(
        capture_step(device, QWEN25_7B, recipe, args.batch, tokens),
        calibrate().rates,
        weights=step_bytes(QWEN25_7B, plan, recipe, **users).weights,
        chips=args.tp,
        grid_cores=worker_grid(device).cores,
        links=links_between(device),
        tokens=tokens,
        **users,
    ).seconds


def steps_table(seconds: dict[int, float]) -> str:
    from models.demos.qwen25_7b.perf.table import markdown

    header = ("tokens a step (modelled, not measured)", "a step", "beyond a plain one", "pays from, tokens a step")
    rows = [
        (f"{tokens}", f"{1e3 * s:.2f} ms", f"{1e3 * (s - seconds[1]):.2f} ms", f"{s / seconds[1]:.2f}")
        for tokens, s in seconds.items()
    ]
    return markdown(header, rows)


def answers(model: str) -> dict[str, list[tuple[list[int], list[int]]]]:
    """By kind: (prompt, greedy answer) of each prompt."""
    import torch
    from transformers import AutoModelForCausalLM

    from models.demos.qwen25_7b.evaluation.smollm2 import SMOLLM2, cached_smollm2
    from models.demos.qwen25_7b.serving.text import Text

    directory = cached_smollm2() if model == SMOLLM2 else Path(model)
    text = Text(directory, instruct=True)
    hf = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    made: dict[str, list] = {}
    for kind, questions in prompts().items():
        for question in questions:
            ids = text.encode(question)
            how = dict(do_sample=False, repetition_penalty=1.0, max_new_tokens=NEW_TOKENS)
            ones = torch.ones(1, len(ids), dtype=torch.long)
            whole = hf.generate(torch.tensor([ids]), attention_mask=ones, **how)[0].tolist()
            made.setdefault(kind, []).append((ids, whole[len(ids) :]))
            complain(f"{kind}: {len(whole) - len(ids)} tokens written")
    return made


def answers_table(made: dict[str, list[tuple[list[int], list[int]]]], seconds: dict[int, float]) -> str:
    from models.demos.qwen25_7b.perf.replayed import Replay, replay
    from models.demos.qwen25_7b.perf.table import markdown

    header = (
        "answers", "tokens a step at most", "tokens", "steps, of them verifying", "guesses right", "tokens a step",
        "a token (modelled, not measured)", "plain / that",
    )  # fmt: skip
    rows = []
    for kind, texts in made.items():
        for most in TOKENS:
            total = sum((replay(prompt, answer, most) for prompt, answer in texts), Replay())
            token = total.seconds(seconds[1], seconds[most])
            rows.append(
                (
                    kind,
                    f"{most}",
                    f"{total.tokens}",
                    f"{total.steps}, {total.verifying}",
                    f"{total.right} of {total.guessed}",
                    f"{total.tokens / total.steps:.2f}",
                    f"{1e3 * token:.2f} ms",
                    f"{seconds[1] / token:.2f}",
                )  # fmt: skip
            )
    return markdown(header, rows)
