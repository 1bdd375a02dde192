"""Text to token ids and back: the checkpoint's tokenizer and chat template."""

from pathlib import Path
from typing import Sequence

from models.common.bounded import bounded
from models.common.errors import UserError
from models.common.json_file import read_json
from models.demos.qwen25_7b.serving.stream import Stream

TEMPLATE_SECONDS = 1.0  # of processor time; Qwen2.5's template takes some milliseconds
TEMPLATE_BYTES = 1 << 30  # of memory
TEMPLATE_ADDS = 1 << 20  # characters at most; Qwen2.5's template adds some 150
NFC_SHRINKS = (
    3  # times at most, in UTF-8 (a Hangul syllable of three letters): Qwen's tokenizers compose characters first
)
QUICK_BYTES = 1 << 16  # a prompt of this length is tokenized in milliseconds


class Text:
    """instruct: wrap a prompt in the chat template as a user's turn, so that an instruct model answers it."""

    def __init__(self, directory: Path, *, instruct: bool):
        from transformers import AutoTokenizer

        self.directory = directory
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # what is missing or damaged decides which: OSError, ImportError, a bare Exception
            raise UserError(
                f"{directory} has no tokenizer that transformers can load ({type(error).__name__}): "
                "download the checkpoint again"
            ) from error
        if instruct and not self.tokenizer.chat_template:
            raise UserError(f"the tokenizer of {directory} has no chat template: run with --no-instruct")
        self.instruct = instruct
        self.stop_ids = ({self.tokenizer.eos_token_id} - {None}) | _stop_ids(Path(directory) / "generation_config.json")

    def check_lengths(self, prompts: Sequence[str], context: int) -> None:
        """UserError for a prompt that is too long for `context` tokens, whatever the tokenizer makes of it.

        It is found by its bytes, since to tokenize 50 MB takes a minute. A token is no longer than its name in the vocabulary.
        """
        for i, prompt in enumerate(prompts):
            length = len(prompt.encode())
            if length > QUICK_BYTES and length > context * NFC_SHRINKS * self._longest_token():
                raise UserError(
                    f"prompt {i} has {length} bytes, too many for a context of {context} tokens: shorten it"
                )

    def encode(self, prompt: str) -> list[int]:
        if not self.instruct:
            return self.tokenizer.encode(prompt)
        return self.tokenizer.encode(self._in_template(prompt), add_special_tokens=False)

    def stream(self, stop: Sequence[str] = ()) -> Stream:
        return Stream(self.tokenizer, stop)

    def _in_template(self, prompt: str) -> str:
        turn = [{"role": "user", "content": prompt}]
        try:
            with bounded(TEMPLATE_SECONDS, TEMPLATE_BYTES):
                chat = self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program: it can raise anything
            raise UserError(
                f"the chat template of {self.directory} fails ({type(error).__name__}: {error}): download the checkpoint "
                f"again, or run with --no-instruct"
            ) from error
        if len(chat) > len(prompt) + TEMPLATE_ADDS:
            raise UserError(
                f"the chat template of {self.directory} makes {len(chat)} characters of a prompt of {len(prompt)}: "
                f"download the checkpoint again, or run with --no-instruct"
            )
        return chat

    def _longest_token(self) -> int:
        """Bytes."""
        return max(len(name.encode()) for name in self.tokenizer.get_vocab())


def _stop_ids(generation_config: Path) -> set[int]:
    """Where Qwen2.5 lists all tokens that end a text; a checkpoint may do without the file."""
    if not generation_config.exists():
        return set()
    again = "download the checkpoint again, or remove the file"
    try:
        fields = read_json(generation_config)
    except OSError as error:
        raise UserError(f"{generation_config} cannot be read ({error.strerror}): {again}") from error
    except ValueError as error:
        raise UserError(f"{generation_config} is not JSON ({error}): {again}") from error
    if not isinstance(fields, dict):
        raise UserError(f"{generation_config} must hold a JSON object, got {type(fields).__name__}: {again}")
    eos = fields.get("eos_token_id")
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(id) is int for id in ids):  # not isinstance: true is an int, too
        raise UserError(f"{generation_config}: eos_token_id must be a token id or a list of them, got {eos!r}: {again}")
    return set(ids)
