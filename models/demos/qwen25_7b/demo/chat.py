"""A conversation at a terminal or through a pipe."""

import sys
from contextlib import closing, suppress
from typing import Optional, Sequence

from models.common import interrupt
from models.common.errors import UserError
from models.common.terminal import Progress, complain, say
from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.serving.open_model import OpenModel
from models.demos.qwen25_7b.serving.tokenizer import ChatPrompt, Conversation

PROMPT = "> "
LONGEST_LINE = 16 << 20  # bytes; a line that never ends would fill the memory
HELP = "/reset begins a new conversation; /exit or Ctrl-D leaves; Ctrl-C stops an answer"


class Lines:
    """Lines of standard input. At a terminal they can be edited; those of a pipe are shown as if typed."""

    def __init__(self):
        if sys.stdin is None or sys.stdin.closed:
            raise UserError("--chat reads from standard input, which is closed")
        # Bytes that are not UTF-8 are kept in surrogates, which `_decoded` finds.
        sys.stdin.reconfigure(errors="surrogateescape")
        self.typed = sys.stdin.isatty() and sys.stdout.isatty()
        if self.typed:
            with suppress(ImportError):  # without it, the terminal itself knows backspace
                import readline  # noqa: F401 - input() edits with it from now on

    def read(self) -> Optional[str]:
        """The next line, None behind the last. UserError for a line that is not text."""
        if not self.typed:
            line = sys.stdin.readline(LONGEST_LINE)
            if not line:
                return None
            if len(line) == LONGEST_LINE and not line.endswith("\n"):
                raise EndlessLine(
                    f"a line of standard input is longer than {LONGEST_LINE >> 20} MiB; "
                    "give shorter messages"
                )
            text = _decoded(line.removesuffix("\n").removesuffix("\r"))
            say(f"{PROMPT}{text}")
            return text
        try:
            return _decoded(input(PROMPT))
        except EOFError:
            say()
            return None


class EndlessLine(UserError):
    """A line that is too long. The chat ends, because the rest of the line is not a message."""


def _decoded(line: str) -> str:
    try:
        return line.encode(sys.stdin.encoding, "surrogateescape").decode("utf-8")
    except UnicodeError as error:
        raise UserError(f"this line is not UTF-8: {error.reason} at place {error.start}") from error


class Chat:
    """Reads messages and answers them, in one conversation until /reset.

    context: tokens of the longest conversation. most: new tokens of an answer; None: the rest of the
    context.
    """

    def __init__(
        self,
        model: OpenModel,
        sampling: SamplingParams,
        stop: Sequence[str],
        *,
        context: int,
        most: Optional[int],
    ):
        self._model = model
        self._sampling = sampling
        self._stop = stop
        self._context = context
        self._most = most
        self._conversation = self._anew()
        self._reading = False  # whether the program waits for a line
        self._interrupted = False  # whether Ctrl-C came while an answer was written

    def run(self, lines: Lines) -> None:
        say(f"{HELP}\n")
        with interrupt.ctrl_c_calls(self._pressed):
            while (line := self._next(lines)) is not None and line != "/exit":
                if line == "/reset":
                    self._conversation = self._anew()
                    say("(a new conversation)\n")
                elif line.startswith("/") and " " not in line:
                    say(f"({'' if line == '/help' else f'{line} is no command: '}{HELP})\n")
                elif line:
                    self._turn(line)

    def _anew(self) -> Conversation:
        return Conversation(self._model.tokenizer, self._model.stop_ids)

    def _pressed(self) -> None:
        """Ctrl-C. An answer ends between two tokens, so that the caches stay as they are known."""
        if not self._reading:
            self._interrupted = True
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
        except EndlessLine:
            raise
        except UserError as error:
            complain(f"error: {error}")
            return ""
        finally:
            self._reading = False
        return line if line is None else line.strip()

    def _turn(self, message: str) -> None:
        try:
            self._model.tokenizer.check_lengths([message], self._context)
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

    def _answer(self, prompt: ChatPrompt) -> None:
        self._interrupted = False
        room = self._context - len(prompt.ids)
        new_tokens = room if self._most is None else min(room, self._most)
        detokenizer = self._model.tokenizer.detokenizer(self._stop)
        with Progress("prompt", "tokens") as bar:
            tokens = self._model.generator.generate(
                [prompt.ids],
                new_tokens,
                stop_ids=self._model.stop_ids,
                sampling=self._sampling,
                progress=bar,
            )
            with closing(tokens):
                for token in tokens:
                    text = detokenizer.add(token.id, last=token.last)
                    bar.close()
                    say(text, end="")
                    if detokenizer.stopped or self._interrupted:
                        break
        self._conversation.add_answer(prompt, detokenizer.text, detokenizer.ids)
        say(
            self._end(
                detokenizer.stopped or token.id in self._model.stop_ids,
                len(detokenizer.ids) == room,
                new_tokens,
            )
        )

    def _end(self, complete: bool, full: bool, new_tokens: int) -> str:
        """The text shown after an answer."""
        if complete:
            return "\n"
        if full:
            return f"\n({self._full()}, so the answer ends here. {self._ways()})\n"
        if self._interrupted:
            return "\n(stopped)\n"
        return f"\n(the answer ends after {new_tokens} tokens: --max-new-tokens)\n"

    def _full(self) -> str:
        return f"the context of {self._context} tokens is full"

    def _ways(self) -> str:
        most = self._model.checkpoint.config.context
        longer = f"; --max-seq-len gives a longer one, up to {most}" if self._context < most else ""
        return f"/reset begins a new conversation{longer}"
