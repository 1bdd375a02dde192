"""What a demo run shows beside its text."""

import os
import shutil
import sys
from typing import Optional

from tqdm import tqdm

from models.common.terminal import printable, say


class WeightsBar:
    """A progress bar for placing weights, where stderr is a terminal: bytes, and the time that is left.

    Called as load_model calls its `progress`.
    """

    def __init__(self, name: str):
        self.name = name
        self.bar: Optional[tqdm] = (
            None  # none until the first bytes are placed: only then is it known how many there are
        )

    def __enter__(self) -> "WeightsBar":
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        if self.bar is None:
            # 0 x 0 is a terminal that does not know its size: tqdm would show nothing
            columns, rows = os.get_terminal_size(sys.stderr.fileno())
            size = dict(ncols=columns or 80, nrows=rows or 24)
            self.bar = tqdm(desc=self.name, unit="B", unit_scale=True, total=total, leave=False, **size)
        self.bar.update(done - self.bar.n)
        if done == total:
            self.bar.refresh()  # tqdm leaves out what comes within a tenth of a second of the last
            self.bar.close()  # what is said next has the line to itself


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

    def summary(self, where: str, recipe: str) -> str:
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
