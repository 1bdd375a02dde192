"""What may follow a text, guessed from the text itself: where its last tokens stood before, other tokens followed them."""

from typing import Sequence

LENGTHS = (4, 3, 2)  # of the runs that are looked up, the longest first


class Repeats:
    """Where each short run of a text's tokens ended last, kept up as the text grows."""

    def __init__(self):
        self._after: dict[tuple[int, ...], int] = {}  # run -> the place behind the last time it came
        self._read = 0  # runs that end before this place are known

    def following(self, tokens: Sequence[int], count: int) -> list[int]:
        """`count` tokens that may follow `tokens`, which begin with those of all earlier calls; none if its end is new.

        They are copied from behind the last place where the longest known run that ends the text stood before, and go on
        through the copy itself: after "1 2 1 2 1" come "2 1 2 1".
        """
        self._learn(tokens)
        for length in LENGTHS:
            at = self._after.get(tuple(tokens[-length:])) if length <= len(tokens) else None
            if at is not None:
                copied = list(tokens[at : at + count])
                while len(copied) < count:
                    copied.append(copied[at + len(copied) - len(tokens)])
                return copied
        return []

    def _learn(self, tokens: Sequence[int]) -> None:
        """All runs that something follows: the one that ends the text is what is asked for."""
        for end in range(self._read + 1, len(tokens)):
            for length in LENGTHS:
                if length <= end:
                    self._after[tuple(tokens[end - length : end])] = end
        self._read = max(self._read, len(tokens) - 1)
