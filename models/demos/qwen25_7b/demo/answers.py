"""Answers to prompts: generated, shown, written as JSON lines; then their speed."""

import json
import time
from argparse import Namespace
from dataclasses import asdict, dataclass
from typing import Optional, Sequence

from tqdm import tqdm

from ..cli.terminal import complain, say
from ..config.sampling import SamplingParams
from ..engine.open_model import OpenModel, TextDelta
from ..files import write_text
from ..text.degenerate import degenerate_answers


@dataclass
class Answer:
    """A prompt and its answer. finish_reason: "stop", or "length" where --max-new-tokens cut it."""

    prompt: str
    prompt_tokens: int
    answer: str = ""
    new_tokens: int = 0
    finish_reason: Optional[str] = None

    def add(self, delta: TextDelta) -> None:
        self.answer += delta.text
        self.new_tokens += 1
        self.finish_reason = delta.finish_reason


class Speed:
    """Times of a run, in seconds.

    The time before a token counts as prefill where the token is a user's first, else as decode.
    users: in all. at_once: of them, in a step.
    """

    def __init__(self, users: int, at_once: int, clock=time.perf_counter):
        self.tokens = [0] * users
        self.prefill = self.decode = 0.0
        self._at_once = at_once
        self._clock = clock
        self._last = clock()

    def add(self, user: int) -> None:
        """A user got a token."""
        now = self._clock()
        if self.tokens[user]:
            self.decode += now - self._last
        else:
            self.prefill += now - self._last
        self.tokens[user] += 1
        self._last = now

    def __str__(self) -> str:
        users = len(self.tokens)
        decoded = sum(self.tokens) - users
        rate = decoded / self.decode if self.decode else 0.0
        per_user = f"{rate:.2f} tokens/s, {rate / self._at_once:.2f} tokens/s/user"
        return (
            f"  time to first token  {1e3 * self.prefill / users:.0f} ms (mean; compiling included)\n"
            f"  decode               {per_user if decoded else '-'}"
        )


def answer(
    model: OpenModel,
    prompts: Sequence[str],
    token_ids: Sequence[Sequence[int]],
    params: SamplingParams,
    args: Namespace,
) -> None:
    """Show an answer to each prompt: one as it comes, several when all are complete. Then show the speed."""
    answers = [Answer(prompt, len(ids)) for prompt, ids in zip(prompts, token_ids)]
    single = len(answers) == 1
    if single:
        say(f"\n> {prompts[0]}")
    speed = Speed(len(answers), min(len(answers), model.generator.users))
    with tqdm(total=len(answers), desc="answers", leave=False, disable=single or None) as bar:
        for delta in model.generate(token_ids, args.max_new_tokens, params, stop=args.stop):
            speed.add(delta.user)
            answers[delta.user].add(delta)
            bar.update(delta.finish_reason is not None)
            if single:
                say(delta.text, end="")
    show(answers)
    if found := degenerate_answers([each.answer for each in answers]):
        complain(f"answers: {found}")
    if args.out is not None:
        records = ({"user": user, **asdict(answer)} for user, answer in enumerate(answers))
        write_text(args.out, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    say(f"{len(answers)} user(s), the speed of {model.backend}:\n{speed}")
    if args.speculate > 1:
        stats = model.generator.stats
        say(
            f"  speculation          {stats['tokens']} tokens in {stats['steps']} steps; "
            f"{stats['tokens'] - stats['steps']} of {stats['drafted']} draft tokens were accepted"
        )


def show(answers: Sequence[Answer]) -> None:
    """Show the answers of several users, and whether a single one is complete."""
    if len(answers) == 1:
        cut = f"\n(cut after {answers[0].new_tokens} tokens: --max-new-tokens)"
        say(f"{cut if answers[0].finish_reason == 'length' else ''}\n")
    else:
        for answer in answers:
            cut = " [cut: --max-new-tokens]" if answer.finish_reason == "length" else ""
            say(f"\n> {answer.prompt}\n{answer.answer}{cut}")
        say()
