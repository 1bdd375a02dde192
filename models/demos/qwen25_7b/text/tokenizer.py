"""Text to token ids and back: the chat template, stop strings, and the token ids of a conversation."""

from pathlib import Path
from typing import Collection, Optional, Sequence

from tokenizers.decoders import DecodeStream

from ..errors import UserError, warn_once
from ..files import other_format
from .generation_config import read_generation_config, stop_ids
from .tokenizer_file import load_tokenizer, replaced_rules


class ChatTokenizer:
    """A checkpoint's tokenizer, hf, and its chat template, which `encode` wraps a prompt in if `instruct`."""

    def __init__(self, directory: Path, *, instruct: bool):
        self.directory = Path(directory)
        files = {file.name for file in self.directory.glob("*")}
        if not files & {"tokenizer.json", "tokenizer.model"} and not {"vocab.json", "merges.txt"} <= files:
            missing = f"{directory} has no tokenizer.json, tokenizer.model, nor vocab.json and merges.txt"
            raise UserError(other_format(self.directory) or f"{missing}: download the checkpoint again")
        try:
            self.hf = load_tokenizer(self.directory)
            line = replaced_rules(self.directory, self.hf)
        except Exception as error:  # tokenizers raises a bare Exception for a truncated file
            cause = error
            while cause.__context__:  # transformers tries another way, and reports that one's failure
                cause = cause.__context__
            raise UserError(
                f"the tokenizer of {directory} cannot be loaded ({type(cause).__name__}: {cause}): download the "
                "checkpoint again, or another that has tokenizer.json"
            ) from error
        if line:
            warn_once(line)
        if instruct and not self.hf.chat_template:
            raise UserError(f"the tokenizer of {directory} has no chat template: run with --no-instruct")
        self.instruct = instruct
        self.stop_ids = ({self.hf.eos_token_id} - {None}) | stop_ids(read_generation_config(self.directory))

    def encode(self, prompt: str) -> list[int]:
        """Return a prompt's token ids, in the chat template if `instruct`."""
        if not self.instruct:
            return self._ids(prompt)
        return self.encode_chat(self.apply_chat_template([{"role": "user", "content": prompt}]))

    def encode_chat(self, chat: str) -> list[int]:
        """Return the token ids of text that the template wrote, or of a part between two special tokens."""
        return self._ids(chat, add_special_tokens=False)

    def _ids(self, text: str, **options) -> list[int]:
        """UserError: half of a surrogate pair, as of an emoji that was cut in two, or a byte that is not UTF-8."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            near = ascii(text[max(0, error.start - 20) : error.end])
            raise UserError(f"{near} in a prompt is no text: UTF-8 cannot hold its last character") from error
        return self.hf.encode(text, **options)

    def detokenizer(self, stop: Sequence[str] = ()) -> "Detokenizer":
        return Detokenizer(self.hf, stop)

    def apply_chat_template(self, turns: Sequence[dict[str, str]]) -> str:
        """Return the turns (role and content) in the template, up to where the answer begins."""
        try:
            return self.hf.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program: it can raise anything
            raise UserError(
                f"the chat template of {self.directory} fails ({type(error).__name__}: {error}): run with --no-instruct"
            ) from error


class Detokenizer:
    """Turns token ids into text one by one, up to the first stop string.

    The texts together are the decoded text of all ids, without Hugging Face's clean-up of spaces, which drops letters.
    stop: strings that end the text before them. The first complete one wins, wherever tokens begin
    and end. Text that may begin a stop string is held back until the next tokens decide. Special
    tokens give no text, so they match no stop string.
    """

    def __init__(self, tokenizer, stop: Sequence[str] = ()):
        """tokenizer: Hugging Face's."""
        self._tokenizer = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._waiting: list[int] = []  # tokens that the stream has not got
        self._decoded = ""
        self.ids: list[int] = []
        self.text = ""  # returned so far
        self.stopped = False  # by a stop string; the caller then calls `Generator.cancel`

    def add(self, token: int, *, last: bool) -> str:
        """The text that `token` adds: "" for half a character or a special token. last: hold nothing back."""
        if self.stopped:
            return ""
        self.ids.append(token)
        self._waiting.append(token)
        if last:
            self._decoded = self._tokenizer.decode(self.ids)
        elif not self._is_open(token):
            self._decoded += self._stream.step(self._tokenizer, self._waiting) or ""
            self._waiting.clear()
        end = self._find_stop(self._decoded)
        self.stopped = end is not None
        if end is None:
            end = len(self._decoded) - (0 if last else self._held_back(self._decoded))
        new = self._decoded[len(self.text) : end]
        self.text += new
        return new

    def _is_open(self, token: int) -> bool:
        """Return whether the next token may change this one's text.

        Byte tokens that stand together are text as a whole or not at all, also with a special token between them.
        """
        return not self._tokenizer.decode([token]) or self._tokenizer.id_to_token(token).startswith("<0x")

    def _find_stop(self, text: str) -> Optional[int]:
        """Return the start of the first complete stop string. None begins before self.text's end."""
        found = [(text.find(stop, len(self.text)), len(stop)) for stop in self._stop]
        ends = [(at + length, at) for at, length in found if at >= 0]
        return min(ends)[1] if ends else None

    def _held_back(self, text: str) -> int:
        """Return the number of characters at the text's end that may begin a stop string."""
        begun = (stop[:n] for stop in self._stop for n in range(1, len(stop)))
        return max((len(begin) for begin in begun if text.endswith(begin)), default=0)


class Conversation:
    """The turns of a chat as token ids.

    The cache finds a prefix by its token ids, and a tokenizer may cut an answer's text into other tokens than the
    model wrote. So answers keep their ids where the template writes a special token after them. Elsewhere a token may
    cross an answer's end, so the whole chat is tokenized.
    """

    def __init__(self, tokenizer: ChatTokenizer, stop_ids: Collection[int]):
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self.turns: list[dict[str, str]] = []
        self._chat = ""  # the turns in the template, up to the end of the last answer's text
        self._ids: list[int] = []  # of _chat

    def prompt(self, message: str) -> list[int]:
        """Return the token ids of the conversation and the next turn, up to where the answer begins.

        `add_answer` makes the turn part of the conversation. UserError where the template fails.
        """
        turn = {"role": "user", "content": message}
        chat = self._tokenizer.apply_chat_template([*self.turns, turn])
        added = tuple(self._tokenizer.hf.get_added_vocab())
        new = chat[len(self._chat) :]
        if chat.startswith(self._chat) and new.startswith(added):
            ids = self._ids + self._tokenizer.encode_chat(new)
        else:  # also where a template writes earlier turns in another way than the newest
            ids = self._tokenizer.encode_chat(chat)
        self._asked = turn, chat, ids
        return ids

    def add_answer(self, answer: str, ids: Sequence[int]) -> None:
        """Add the last prompt's turn. answer: the text that was shown. ids: all tokens, also after a stop string."""
        turn, chat, prompt_ids = self._asked
        self.turns += [turn, {"role": "assistant", "content": answer}]
        # The template writes the token that ends a turn.
        kept = list(ids[:-1] if ids and ids[-1] in self._stop_ids else ids)
        whole = self._tokenizer.hf.backend_tokenizer.decode(kept) == answer
        self._chat, self._ids = (chat + answer, prompt_ids + kept) if whole else ("", [])
