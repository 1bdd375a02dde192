"""Conversation: turns of a chat as token ids, each prompt beginning with all the ids that were there before."""

from dataclasses import dataclass
from typing import Collection, Sequence

from models.demos.qwen25_7b.serving.text import Text


@dataclass(frozen=True)
class Prompt:
    """What the model reads for one turn: the whole conversation up to where its answer begins."""

    message: str
    written: str  # in the chat template
    ids: list[int]


class Conversation:
    """The cache knows a text by its token ids, and a tokenizer does not always find again what a model has written (it may
    write a word in other pieces). So ids of answers are kept as they came, and of a new turn only what is new is tokenized.
    """

    def __init__(self, text: Text, stop_ids: Collection[int]):
        self._text, self._stop_ids = text, stop_ids
        self.turns: list[dict[str, str]] = []
        self._written = ""  # the turns in the template, up to the end of the last answer's text
        self._ids: list[int] = []  # of _written

    def prompt(self, message: str) -> Prompt:
        """The next turn's. Nothing has happened until it is `answered`. UserError where the template fails."""
        written = self._text.chat([*self.turns, {"role": "user", "content": message}])
        if self._written and written.startswith(self._written):
            ids = self._ids + self._text.encode_chat(written[len(self._written) :])
        else:  # the first turn, or a template that writes old turns in another way than the newest
            ids = self._text.encode_chat(written)
        return Prompt(message, written, ids)

    def answered(self, prompt: Prompt, answer: str, ids: Sequence[int]) -> None:
        """answer: the text that was shown; ids: what the model wrote, which may go on past it (a stop string)."""
        self.turns += [{"role": "user", "content": prompt.message}, {"role": "assistant", "content": answer}]
        # The template writes the token that ends a turn.
        own = list(ids[:-1] if ids and ids[-1] in self._stop_ids else ids)
        if self._text.tokenizer.decode(own, skip_special_tokens=True) != answer:
            own = self._text.encode_chat(answer)
        self._written, self._ids = prompt.written + answer, prompt.ids + own
