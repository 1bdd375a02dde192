"""Text to token ids and back: the checkpoint's tokenizer and chat template."""

from pathlib import Path
from typing import Sequence

from models.common.bounded import bounded
from models.common.errors import UserError
from models.common.json_file import read_json
from models.demos.qwen25_7b.serving.generation_config import stop_ids
from models.demos.qwen25_7b.serving.stream import Stream

TEMPLATE_SECONDS = 1.0  # of processor time; Qwen2.5's template takes some milliseconds
TEMPLATE_BYTES = 1 << 30  # of memory
TEMPLATE_ADDS = 1 << 20  # characters at most; Qwen2.5's template adds some 150
NFC_SHRINKS = (
    3  # times at most, in UTF-8 (a Hangul syllable of three letters): Qwen's tokenizers compose characters first
)
QUICK_BYTES = 1 << 16  # a prompt of this length is tokenized in milliseconds


def tokenizer_class(directory: Path) -> type:
    """What AutoTokenizer would choose, from transformers itself.

    It is asked only where tokenizer_config.json names no fast tokenizer: its import brings torch's compiler, scikit-learn and
    pandas, and takes longer than torch's own.
    """
    import transformers

    file = directory / "tokenizer_config.json"
    fields = read_json(file) if file.exists() else None
    named = fields.get("tokenizer_class") if isinstance(fields, dict) else None
    found = getattr(transformers, f"{named}".removesuffix("Fast") + "Fast", None)
    known = isinstance(found, type) and issubclass(found, transformers.PreTrainedTokenizerFast)
    return found if known else transformers.AutoTokenizer


class Text:
    """instruct: wrap a prompt in the chat template as a user's turn, so that an instruct model answers it."""

    def __init__(self, directory: Path, *, instruct: bool):
        self.directory = directory
        try:
            kind = tokenizer_class(directory)
            self.tokenizer = kind.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # what is missing or damaged decides which: OSError, ImportError, a bare Exception
            raise UserError(
                f"{directory} has no tokenizer that transformers can load ({type(error).__name__}): "
                "download the checkpoint again"
            ) from error
        if instruct and not self.tokenizer.chat_template:
            raise UserError(f"the tokenizer of {directory} has no chat template: run with --no-instruct")
        self.instruct = instruct
        self.stop_ids = ({self.tokenizer.eos_token_id} - {None}) | stop_ids(directory)

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
        return self.encode_chat(self.chat([{"role": "user", "content": prompt}]))

    def encode_chat(self, chat: str) -> list[int]:
        """A chat as the template writes it, or a part of one between two special tokens."""
        return self.tokenizer.encode(chat, add_special_tokens=False)

    def stream(self, stop: Sequence[str] = ()) -> Stream:
        return Stream(self.tokenizer, stop)

    def chat(self, turns: Sequence[dict[str, str]]) -> str:
        """The turns, each a role and its content, in the template, with the beginning of the answer that is to come."""
        content = sum(len(turn["content"]) for turn in turns)
        try:
            with bounded(TEMPLATE_SECONDS, TEMPLATE_BYTES):
                chat = self.tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is a program: it can raise anything
            raise UserError(
                f"the chat template of {self.directory} fails ({type(error).__name__}: {error}): download the checkpoint "
                f"again, or run with --no-instruct"
            ) from error
        if len(chat) > content + TEMPLATE_ADDS:
            raise UserError(
                f"the chat template of {self.directory} makes {len(chat)} characters of a prompt of {content}: "
                f"download the checkpoint again, or run with --no-instruct"
            )
        return chat

    def _longest_token(self) -> int:
        """Bytes."""
        return max(len(name.encode()) for name in self.tokenizer.get_vocab())
