"""A conversation at a terminal or through a pipe."""

from contextlib import closing
from typing import Optional, Sequence

from models.common import interrupt
from models.common.errors import UserError
from models.common.terminal import complain, say
from models.demos.qwen25_7b.config.sampling import Sampling
from models.demos.qwen25_7b.demo.lines import Lines
from models.demos.qwen25_7b.demo.report import Bar
from models.demos.qwen25_7b.serving.conversation import Conversation, Prompt
from models.demos.qwen25_7b.serving.open_model import OpenModel

HELP = "/reset begins a new conversation; /exit or Ctrl-D leaves; Ctrl-C stops an answer"


class Chat:
    """context: tokens of the longest conversation. most: new tokens of an answer; None: as many as the context has room for."""

    def __init__(self, model: OpenModel, sampling: Sampling, stop: Sequence[str], *, context: int, most: Optional[int]):
        self._model, self._sampling, self._stop = model, sampling, stop
        self._context, self._most = context, most
        self._conversation = self._anew()
        self._reading = False  # whether the program waits for a line
        self._unwanted = False  # whether Ctrl-C came while an answer was written

    def run(self, lines: Lines) -> None:
        say(f"{HELP}\n")
        with interrupt.taken(self._pressed):
            while (line := self._next(lines)) is not None and line != "/exit":
                if line == "/reset":
                    self._conversation = self._anew()
                    say("(a new conversation)\n")
                elif line.startswith("/") and " " not in line:
                    say(f"({'' if line == '/help' else f'{line} is no command: '}{HELP})\n")
                elif line:
                    self._turn(line)

    def _anew(self) -> Conversation:
        return Conversation(self._model.text, self._model.stop_ids)

    def _pressed(self) -> None:
        """Ctrl-C. An answer ends between two tokens, so that the caches stay as they are known."""
        if not self._reading:
            self._unwanted = True
            return
        self._reading = False
        raise KeyboardInterrupt

    def _next(self, lines: Lines) -> Optional[str]:
        """The next line, stripped; empty where there is nothing to answer."""
        self._reading = True
        try:
            line = lines.read()
        except KeyboardInterrupt:
            if not lines.typed or interrupt.came():
                raise
            say(f"\n({HELP})")
            return ""
        except UserError as error:
            complain(f"error: {error}")
            return ""
        finally:
            self._reading = False
        return line if line is None else line.strip()

    def _turn(self, message: str) -> None:
        try:
            self._model.text.check_lengths([message], self._context)
            prompt = self._conversation.prompt(message)
        except UserError as error:
            complain(f"error: {error}")
            return
        if len(prompt.ids) >= self._context:
            say(
                f"({self._full()}: with this message it would be {len(prompt.ids)}, which was not taken. {self._ways()})\n"
            )
            return
        self._answer(prompt)

    def _answer(self, prompt: Prompt) -> None:
        self._unwanted = False
        room = self._context - len(prompt.ids)
        new_tokens = room if self._most is None else min(room, self._most)
        stream = self._model.text.stream(self._stop)
        with Bar("prompt", "tokens") as bar:
            tokens = self._model.generator.generate(
                [prompt.ids], new_tokens, stop_ids=self._model.stop_ids, sampling=self._sampling, progress=bar
            )
            with closing(tokens):
                for token in tokens:
                    piece = stream.add(token.id, last=token.last)
                    bar.close()
                    say(piece, end="")
                    if stream.stopped or self._unwanted:
                        break
        self._conversation.answered(prompt, stream.text, stream.ids)
        say(self._end(stream.stopped or token.id in self._model.stop_ids, len(stream.ids) == room, new_tokens))

    def _end(self, complete: bool, full: bool, new_tokens: int) -> str:
        """What is said behind an answer."""
        if complete:
            return "\n"
        if full:
            return f"\n({self._full()}, so the answer ends here. {self._ways()})\n"
        if self._unwanted:
            return "\n(stopped)\n"
        return f"\n(the answer ends after {new_tokens} tokens: --max-new-tokens)\n"

    def _full(self) -> str:
        return f"the context of {self._context} tokens is full"

    def _ways(self) -> str:
        most = self._model.checkpoint.config.context
        longer = f"; --max-seq-len gives a longer one, up to {most}" if self._context < most else ""
        return f"/reset begins a new conversation{longer}"
