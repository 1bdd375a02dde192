"""A conversation at a terminal or through a pipe."""

import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Optional, Sequence

from ..cli.command import ctrl_c_calls, is_interrupted
from ..cli.terminal import say
from ..config.sampling import SamplingParams
from ..engine.open_model import OpenModel
from ..errors import UserError
from ..text.tokenizer import Conversation

PROMPT = "> "
HELP = "/reset begins a new conversation; /exit or Ctrl-D leaves; Ctrl-C stops an answer"


@dataclass
class Chat:
    """Reads messages and answers them, in one conversation until /reset."""

    model: OpenModel
    sampling: SamplingParams
    stop: Sequence[str]
    context: int  # tokens of the longest conversation
    max_new_tokens: Optional[int]  # of an answer; None: the rest of the context
    _reading: bool = False  # whether the program waits for a line
    _interrupted: bool = False  # whether Ctrl-C was pressed while an answer was written

    def __post_init__(self):
        self._at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        sys.stdin.reconfigure(errors="surrogateescape")  # a byte that is no UTF-8 is one message's, not the chat's end

    def run(self) -> None:
        if self._at_terminal:
            with suppress(ImportError):  # without it, the terminal itself knows backspace
                import readline  # noqa: F401 - input() edits with it from now on
        say(f"{HELP}\n")
        with ctrl_c_calls(self._press):
            conversation = self._new_conversation()
            while (line := self._read()) is not None and line != "/exit":
                if line == "/reset":
                    conversation = self._new_conversation()
                    say("(a new conversation)\n")
                elif line.startswith("/") and " " not in line:
                    say(f"({'' if line == '/help' else f'unknown command {line}: '}{HELP})\n")
                elif line:
                    self._take_turn(conversation, line)

    def _new_conversation(self) -> Conversation:
        return Conversation(self.model.tokenizer, self.model.stop_ids)

    def _press(self) -> None:
        """Ctrl-C. An answer ends between two tokens, so that the contents of the caches are known."""
        if not self._reading:
            self._interrupted = True
            return
        self._reading = False
        raise KeyboardInterrupt

    def _read(self) -> Optional[str]:
        """The next line, stripped; None after the last, empty after Ctrl-C."""
        self._reading = True
        try:
            if self._at_terminal:
                return input(PROMPT).strip()
            line = sys.stdin.readline()
            say(f"{PROMPT}{line}", end="")  # as if typed
            return line.strip() if line else None
        except EOFError:
            say()
            return None
        except KeyboardInterrupt:
            if not self._at_terminal or is_interrupted():
                raise
            say(f"\n({HELP})")
            return ""
        finally:
            self._reading = False

    def _take_turn(self, conversation: Conversation, message: str) -> None:
        try:
            prompt = conversation.prompt(message)
        except UserError as error:
            say(f"({error}: the message was not taken.)\n")
            return
        if len(prompt) >= self.context:
            say(f"({self._full_context()} The message, with {len(prompt)} tokens in all, was not taken.)\n")
            return
        text, ids, end = self._answer(prompt)
        conversation.add_answer(text, ids)
        say(f"{end}\n")

    def _answer(self, prompt: Sequence[int]) -> tuple[str, list[int], str]:
        """Show the answer; return its text, its token ids, and a line that says why it was cut."""
        self._interrupted = False
        room = self.context - len(prompt)
        new_tokens = min(room, self.max_new_tokens or room)
        text, ids = "", []
        deltas = self.model.generate([prompt], new_tokens, self.sampling, stop=self.stop)
        with closing(deltas):
            for delta in deltas:
                say(delta.text, end="")
                text += delta.text
                ids.append(delta.token)
                if self._interrupted:
                    break
        if delta.finish_reason == "stop":
            return text, ids, ""
        if len(ids) == room:
            return text, ids, f"\n({self._full_context()})"
        if self._interrupted:
            return text, ids, "\n(stopped)"
        return text, ids, f"\n(cut after {new_tokens} tokens: --max-new-tokens)"

    def _full_context(self) -> str:
        longest = self.model.checkpoint.config.context
        longer = f"; --max-seq-len gives up to {longest} tokens" if self.context < longest else ""
        return f"the context of {self.context} tokens is full: /reset begins a new conversation{longer}."
