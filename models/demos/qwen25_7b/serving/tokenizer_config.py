"""tokenizer_config.json: the fields that transformers reads, and the kind of each."""

from pathlib import Path
from typing import Any, Callable, NamedTuple

from models.common.errors import UserError, shown
from models.common.json_file import read_json


class Kind(NamedTuple):
    """What a field holds. expected: in words. fits: whether a value other than null is one."""

    expected: str
    fits: Callable[[Any], bool]


def _is_token(value: Any) -> bool:
    content = value.get("content") if isinstance(value, dict) else value
    return isinstance(content, str)


def _are(kind: type, values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


LENGTH = Kind("a number above 0", lambda value: type(value) in (int, float) and value > 0)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
SIDE = Kind('"left" or "right"', lambda value: value in ("left", "right"))
TEXT = Kind("a string", lambda value: isinstance(value, str))
TEXTS = Kind("a list of strings", lambda value: isinstance(value, list) and _are(str, value))
TOKEN = Kind("a string, or an object with content", _is_token)
TOKENS = Kind(
    "a list of strings, or of objects with content",
    lambda value: isinstance(value, list) and all(_is_token(item) for item in value),
)
NAMED_TOKENS = Kind(
    "an object of tokens by name",
    lambda value: isinstance(value, dict) and all(_is_token(item) for item in value.values()),
)
TOKENS_BY_ID = Kind(
    "an object of tokens by id",
    lambda value: (
        isinstance(value, dict)
        and all(id.isdecimal() for id in value)
        and _are(dict, value.values())
        and all(_is_token(token) for token in value.values())
    ),
)
TEMPLATE = Kind(
    "a string, or a list of objects with name and template",
    lambda value: (
        isinstance(value, str)
        or (
            isinstance(value, list)
            and _are(dict, value)
            and all(_are(str, (one.get("name"), one.get("template"))) for one in value)
        )
    ),
)

KINDS = {
    "add_bos_token": FLAG,
    "add_prefix_space": FLAG,
    "added_tokens_decoder": TOKENS_BY_ID,
    "additional_special_tokens": TOKENS,
    "bos_token": TOKEN,
    "chat_template": TEMPLATE,
    "clean_up_tokenization_spaces": FLAG,
    "eos_token": TOKEN,
    "errors": TEXT,
    "extra_special_tokens": NAMED_TOKENS,
    "model_input_names": TEXTS,
    "model_max_length": LENGTH,
    "pad_token": TOKEN,
    "padding_side": SIDE,
    "split_special_tokens": FLAG,
    "tokenizer_class": TEXT,
    "truncation_side": SIDE,
    "unk_token": TOKEN,
}


def check_tokenizer_config(directory: Path) -> None:
    """UserError for a field of the wrong kind. transformers does not say which field it is."""
    file = directory / "tokenizer_config.json"
    if not file.exists():
        return
    fields = read_json(file)
    if not isinstance(fields, dict):
        raise UserError(
            f"{file} must hold a JSON object, got {shown(fields)}: download the checkpoint again"
        )
    for name, kind in KINDS.items():
        value = fields.get(name)
        if value is not None and not kind.fits(value):
            raise UserError(
                f"{file}: {name} must be {kind.expected}, got {shown(value)}: "
                "download the checkpoint again"
            )
