"""What a demo run shows beside its text."""

import shutil
from typing import Optional

from tqdm import tqdm


class WeightsBar:
    """A progress bar for placing weights; called as TtTransformer calls its `progress`."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> "WeightsBar":
        self.bar = tqdm(desc=self.name, unit="part", leave=False)
        return self

    def __exit__(self, *_) -> None:
        self.bar.close()

    def __call__(self, done: int, total: int) -> None:
        self.bar.total = total
        self.bar.update(done - self.bar.n)


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
    asked = min(max(map(len, prompts)), width // 3)
    answered = width - asked - 14
    print(f"\n{'user':>4}  {'prompt':<{asked}}  {'new':>3}  answer")
    for user, (prompt, answer, count) in enumerate(zip(prompts, answers, tokens)):
        print(f"{user:>4}  {_cut(prompt, asked):<{asked}}  {count:>3}  {_cut(answer, answered)}")
    print()


def _cut(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
