"""Text that grows token by token, up to the first stop string."""

from typing import Optional, Sequence

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer makes of a character's first bytes


class Stream:
    """stop: strings that end the text before the first of them: the one that is complete first, wherever tokens begin and
    end. What may be the beginning of one is held back until it is known. Special tokens are no text, so they stop nothing.
    """

    def __init__(self, tokenizer, stop: Sequence[str] = ()):
        self.tokenizer, self._stop = tokenizer, stop
        self.ids: list[int] = []
        self.text = ""  # what has been given out
        self.stopped = False  # by a stop string; whoever generates is told by `Generator.cancel`

    def add(self, token: int, *, last: bool) -> str:
        """The text that `token` adds: none while a character's bytes are incomplete, and for special tokens.

        last: no other token follows, so nothing is held back.
        """
        if self.stopped:
            return ""
        self.ids.append(token)
        whole = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        known = whole if last else whole.rstrip(INCOMPLETE)
        end = self._stopped_at(known)
        self.stopped = end is not None
        if end is None:
            end = len(known) if last else len(known) - self._held_back(known)
        new = known[len(self.text) : end]
        self.text += new
        return new

    def _stopped_at(self, text: str) -> Optional[int]:
        """Where the stop string begins that ends first; nothing before self.text's end can be in one."""
        found = [(text.find(stop, len(self.text)), len(stop)) for stop in self._stop]
        ends = [(at + length, at) for at, length in found if at >= 0]
        return min(ends)[1] if ends else None

    def _held_back(self, text: str) -> int:
        """Characters at the text's end that a stop string may begin with."""
        return max((_overlap(text, stop) for stop in self._stop), default=0)


def _overlap(text: str, stop: str) -> int:
    """Characters of the longest end of `text` that `stop` begins with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
