"""How many steps a text would have taken with guesses verified: its tokens are known, so no model is needed. Pure functions."""

from dataclasses import dataclass
from typing import Sequence

from models.demos.qwen25_7b.serving.proposals import Repeats
from models.demos.qwen25_7b.serving.speculation import Draft


@dataclass(frozen=True)
class Replay:
    """Of one or several answers, but for the first token of each, which is its prompt's."""

    tokens: int = 0
    plain: int = 0  # steps in which nothing was guessed
    verifying: int = 0  # the others
    guessed: int = 0

    @property
    def steps(self) -> int:
        return self.plain + self.verifying

    @property
    def right(self) -> int:
        return self.tokens - self.steps

    def __add__(self, other: "Replay") -> "Replay":
        return Replay(
            self.tokens + other.tokens,
            self.plain + other.plain,
            self.verifying + other.verifying,
            self.guessed + other.guessed,
        )

    def seconds(self, plain: float, verifying: float) -> float:
        """A token, where a step of each kind takes so long."""
        return (self.plain * plain + self.verifying * verifying) / self.tokens


def replay(prompt: Sequence[int], answer: Sequence[int], most: int) -> Replay:
    """most: tokens of a step, as in --speculate. The choices that a model would make are those that the text shows."""
    whole, at, repeats, total = [*prompt, *answer], len(prompt) + 1, Repeats(), Replay()
    while at < len(whole):
        guesses = repeats.following(whole[:at], min(most, len(whole) - at) - 1)
        draft = Draft(None, tuple(range(len(guesses) + 1)), (whole[at - 1], *guesses))
        kept = len(draft.accepted(whole[at:]))
        total += Replay(kept, plain=not guesses, verifying=bool(guesses), guessed=len(guesses))
        at += kept
    return total
