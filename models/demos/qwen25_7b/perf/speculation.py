"""The gain of several tokens a step.

Steps are counted on a checkpoint's greedy answers. Their times are modeled for the 7B.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

import torch
import ttnn
from transformers import AutoModelForCausalLM

from models.common.markdown import markdown
from models.common.terminal import Progress
from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.evaluation.smollm2 import SMOLLM2, cached_smollm2
from models.demos.qwen25_7b.perf.step_model import model_decode
from models.demos.qwen25_7b.serving.speculation import Draft, NgramProposer
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer

TOKENS = (2, 4, 6, 8)  # of a step
NEW_TOKENS = 256
HERE = Path(__file__).resolve()
TEXT = HERE.parents[1] / "evaluation" / "held_out.txt"
CODE = HERE.parent / "program.txt"  # no file of this repository's code: docs/sampling.md has figures of its answers

Answer = tuple[list[int], list[int]]  # tokens of the prompt, tokens of the answer


@dataclass(frozen=True)
class Replay:
    """Steps of answers with known tokens. The first token of an answer is its prompt's, and counts nowhere."""

    tokens: int = 0
    plain: int = 0  # steps without draft tokens
    verifying: int = 0  # steps with draft tokens
    drafted: int = 0

    @property
    def steps(self) -> int:
        return self.plain + self.verifying

    @property
    def accepted(self) -> int:
        return self.tokens - self.steps

    def __add__(self, other: "Replay") -> "Replay":
        return Replay(
            self.tokens + other.tokens,
            self.plain + other.plain,
            self.verifying + other.verifying,
            self.drafted + other.drafted,
        )

    def token_seconds(self, plain: float, verifying: float) -> float:
        """Seconds a token, from the seconds of a step of each kind."""
        return (self.plain * plain + self.verifying * verifying) / self.tokens


def replay(prompt: Sequence[int], answer: Sequence[int], most: int) -> Replay:
    """Count the steps of an answer with the n-gram proposer, `most` tokens a step. No model is needed."""
    whole, at, proposer, total = [*prompt, *answer], len(prompt) + 1, NgramProposer(), Replay()
    while at < len(whole):
        drafted = proposer.propose(whole[:at], min(most, len(whole) - at) - 1)
        draft = Draft(None, tuple(range(len(drafted) + 1)), (whole[at - 1], *drafted))
        accepted = len(draft.accept(whole[at:]))
        total += Replay(accepted, not drafted, bool(drafted), len(drafted))
        at += accepted
    return total


def step_seconds(
    device: ttnn.MeshDevice, recipe: Recipe, users: int, position: int, links: int
) -> dict[int, float]:
    """Modeled seconds of a step of the 7B, by tokens of each user."""
    how = dict(users=users, position=position, links=links)
    return {
        tokens: model_decode(device, recipe, tokens=tokens, **how)[0].seconds
        for tokens in (1, *TOKENS)
    }


def tables(seconds: dict[int, float], model: str) -> str:
    """model: the checkpoint of the answers, a directory or smollm2."""
    return "\n\n".join([steps_table(seconds), answers_table(answers(model), seconds)])


def steps_table(seconds: dict[int, float]) -> str:
    header = (
        "tokens a step (modeled, not measured)",
        "a step",
        "more than a plain step",
        "break-even, tokens a step",
    )
    rows = [
        (
            f"{tokens}",
            f"{1e3 * s:.2f} ms",
            f"{1e3 * (s - seconds[1]):.2f} ms",
            f"{s / seconds[1]:.2f}",
        )
        for tokens, s in seconds.items()
    ]
    return markdown(header, rows)


def questions() -> dict[str, list[str]]:
    """Prompts by kind. The answer to a quote is in its prompt; most of the last program's answer is, too."""
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


def answers(model: str) -> dict[str, list[Answer]]:
    """Greedy answers of Hugging Face in float32, by kind of question."""
    directory = cached_smollm2() if model == SMOLLM2 else Path(model)
    tokenizer = ChatTokenizer(directory, instruct=True)
    hf = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    how = dict(do_sample=False, repetition_penalty=1.0, max_new_tokens=NEW_TOKENS)
    asked = [(kind, q) for kind, group in questions().items() for q in group]
    made: dict[str, list[Answer]] = {}
    with Progress("answers of the checkpoint", "answers") as progress:
        for done, (kind, question) in enumerate(asked):
            progress(done, len(asked))
            ids = tokenizer.encode(question)
            mask = torch.ones(1, len(ids), dtype=torch.long)
            whole = hf.generate(torch.tensor([ids]), attention_mask=mask, **how)[0].tolist()
            made.setdefault(kind, []).append((ids, whole[len(ids) :]))
    return made


def answers_table(made: dict[str, list[Answer]], seconds: dict[int, float]) -> str:
    header = (
        "answers",
        "tokens a step at most",
        "tokens",
        "steps, with draft tokens",
        "draft tokens accepted",
        "tokens a step",
        "a token (modeled, not measured)",
        "speed-up",
    )
    rows = [
        _answers_row(kind, pairs, most, seconds) for kind, pairs in made.items() for most in TOKENS
    ]
    return markdown(header, rows)


def _answers_row(
    kind: str, pairs: list[Answer], most: int, seconds: dict[int, float]
) -> tuple[str, ...]:
    total = sum((replay(prompt, answer, most) for prompt, answer in pairs), Replay())
    token = total.token_seconds(seconds[1], seconds[most])
    return (
        kind,
        f"{most}",
        f"{total.tokens}",
        f"{total.steps}, {total.verifying}",
        f"{total.accepted} of {total.drafted}",
        f"{total.tokens / total.steps:.2f}",
        f"{1e3 * token:.2f} ms",
        f"{seconds[1] / token:.2f}",
    )
