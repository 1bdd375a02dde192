"""A calibration text as token ids: the texts whose inputs the rounding is made for."""

from pathlib import Path

import torch

from models.common.errors import UserError
from models.demos.qwen25_7b.config import QwenConfig
from models.demos.qwen25_7b.serving.text import Text

SEQUENCE = 512  # tokens that see each other
MOST_BYTES = 4 << 20  # of a text, which takes some seconds to tokenize; what is used of it has some tens of kilobytes


def read_text(file: Path) -> str:
    """UserError for what is not there or is no text."""
    advice = "give a file of UTF-8 text such as the model will be used for"
    try:
        with open(file, "rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UserError(f"{file}: longer than {MOST_BYTES >> 20} MiB, and some tens of kilobytes do: shorten it")
        return content.decode("utf-8")
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}): {advice}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: byte {error.start} is not UTF-8: {advice}") from error


def sequences(text: str, name: str, directory: Path, config: QwenConfig, most: int) -> torch.Tensor:
    """[sequences, SEQUENCE] token ids from the beginning of `text`, at most `most`. UserError if it is too short.

    name: of the text, for the error. directory: the tokenizer's.
    """
    length = min(SEQUENCE, config.context)
    ids = Text(directory, instruct=False).tokenizer.encode(text, add_special_tokens=False)
    count = min(len(ids), most) // length
    if count * length < config.hidden_size:
        raise UserError(
            f"{name}: gives {count} sequences of {length} tokens ({len(ids)} tokens in all, {most} to be used), and "
            f"{-(-config.hidden_size // length)} are needed: with fewer tokens than the {config.hidden_size} inputs of "
            "a weight there are inputs that the text never shows, and rounding would push its errors there; give a longer "
            "text"
        )
    wrong = max(ids[: count * length])
    if wrong >= config.vocab_size:
        raise UserError(
            f"{directory}: its tokenizer gives token {wrong}, and the model has {config.vocab_size}: use its own"
        )
    return torch.tensor(ids[: count * length]).view(count, length)
