"""What a demo run shows beside its text."""

import os
import shutil
import sys
from typing import TYPE_CHECKING, Optional

from tqdm import tqdm

from models.common.terminal import printable, say

if TYPE_CHECKING:
    from models.demos.qwen25_7b.config import Recipe
    from models.demos.qwen25_7b.config.sampling import Sampling
    from models.demos.qwen25_7b.serving.speculation import Tally


class Bar:
    """A progress bar where stderr is a terminal; called with (done, total)."""

    def __init__(self, name: str, unit: str):
        self.name, self.unit = name, unit
        self.bar: Optional[tqdm] = None  # none until the first call: only then is it known how much there is

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        if self.bar is None:
            # 0 x 0 is a terminal that does not know its size: tqdm would show nothing
            columns, rows = os.get_terminal_size(sys.stderr.fileno())
            size = dict(ncols=columns or 80, nrows=rows or 24)
            unit = dict(unit="B", unit_scale=True) if self.unit == "bytes" else dict(unit=f" {self.unit}")
            self.bar = tqdm(desc=self.name, total=total, leave=False, **unit, **size)
        self.bar.update(done - self.bar.n)
        if done == total:
            self.bar.refresh()  # tqdm leaves out what comes within a tenth of a second of the last
            self.bar.close()  # what is said next has the line to itself


def described(sampling: "Sampling") -> str:
    """In words, without what is off."""
    how = "greedy"
    if not sampling.greedy:
        how = f"temperature {sampling.temperature}, top-k {sampling.top_k or 'off'}, top-p {sampling.top_p}"
    return how + (f", repetition penalty {sampling.repetition_penalty}" if sampling.penalised else "")


def shortened(prompt: str, most: int = 2000) -> str:
    """A long prompt's two ends."""
    if len(prompt) <= most:
        return prompt
    return f"{prompt[: most // 2]}\n[... {len(prompt) - most} characters ...]\n{prompt[-most // 2 :]}"


class Report:
    """Times of a run: the first token of each user, and the steps after all of them had theirs."""

    def __init__(self, users: int, below: str):
        self.users, self.below = users, below
        self.tokens = [0] * users
        self.first: list[Optional[float]] = [None] * users
        self.begin = self.end = 0.0

    def start(self, now: float) -> None:
        self.begin = now

    def token(self, user: int, now: float) -> None:
        if self.first[user] is None:
            self.first[user] = now
        self.tokens[user] += 1
        self.end = now

    def summary(self, where: str, recipe: "Recipe") -> str:
        """Prefills run one after the other, so a user's time to first token is the step from the one before."""
        marks = [self.begin, *self.first]
        prefills = [after - before for before, after in zip(marks, marks[1:])]
        decoded = sum(self.tokens) - self.users
        seconds = self.end - marks[-1]
        rate = (
            f"{decoded / seconds:.2f} tokens/s, {decoded / seconds / self.users:.2f} tokens/s/user" if decoded else "-"
        )
        return (
            f"{where}, {self.users} user(s), recipe {recipe}\n"
            f"  time to first token  {1e3 * sum(prefills) / self.users:.0f} ms (mean; compiling included)\n"
            f"  decode               {rate}\n"
            f"  below ttnn           {self.below}"
        )


def speculated(tally: "Tally") -> str:
    """The summary's line of several tokens a step."""
    rate = f" ({tally.tokens / tally.steps:.2f} a step)" if tally.steps else ""
    return (
        f"  speculation          {tally.tokens} tokens in {tally.steps} steps{rate}; {tally.right} of {tally.guessed} guesses "
        f"were right, a step saved by each"
    )


def show_table(prompts: list[str], answers: list[str], tokens: list[int]) -> None:
    """One line a user, cut to the terminal's width."""
    width = max(60, shutil.get_terminal_size((120, 24)).columns)
    prompts, answers = [_line(text) for text in prompts], [_line(text) for text in answers]
    asked = min(max(map(len, prompts)), width // 3)
    answered = width - asked - 14
    say(f"\n{'user':>4}  {'prompt':<{asked}}  {'new':>3}  answer")
    for user, (prompt, answer, count) in enumerate(zip(prompts, answers, tokens)):
        say(f"{user:>4}  {_cut(prompt, asked):<{asked}}  {count:>3}  {_cut(answer, answered)}")
    say()


def _line(text: str) -> str:
    return printable(" ".join(text.split()))


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"
