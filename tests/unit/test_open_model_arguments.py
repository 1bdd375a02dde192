"""A wrong argument from Python is a UserError before anything is loaded. The error names the argument."""

import pytest

from models.demos.qwen25_7b.engine.open_model import open_model
from models.demos.qwen25_7b.errors import UserError, shown
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.text.request import check_request, check_strings

OPENED = [
    ("model", "no/such/directory"), ("mesh", "N200"), ("mesh", None), ("tp", 3), ("backend", "x"),
    ("recipe", "int3"), ("users", 0), ("users", 33), ("max_seq_len", 0), ("max_seq_len", 4097),
    ("speculate", 0), ("speculate", 9),
]  # fmt: skip


@pytest.mark.parametrize("name, value", OPENED, ids=lambda value: shown(value)[:20])
def test_open_model(name, value, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = dict(model=f"{SMALL_CHECKPOINT}", backend="golden") | {name: value}
    with pytest.raises(UserError, match=value if name == "model" else name):
        open_model(**arguments)


@pytest.mark.parametrize("value", ["Hello", ["a", ""], ["a", 7]])
def test_a_list_of_strings(value):
    with pytest.raises(UserError, match="prompts must be a list of strings"):
        check_strings("prompts", value)


def test_a_request_that_just_fits():
    check_request([[7]], 1, 2)
    check_request([[7] * 100] * 32, 28, 128, vocab_size=8)


@pytest.mark.parametrize(
    "prompts, new_tokens, message",
    [
        ([], 1, "prompts must hold at least one prompt"),
        ([[7], [7], [], [7]], 1, "prompt 2 is empty"),
        ([[7], [7] * 101], 28, "prompt 1 has 101 tokens; with 28 new ones .* context of 128"),
        ([[7]], 0, "max_new_tokens .*0"),
        ([[7], [8]], 1, "prompt 1 has token ids 8 to 8, the model's are 0 to 7"),
    ],
)
def test_a_request_that_cannot_be_served(prompts, new_tokens, message):
    with pytest.raises(UserError, match=message):
        check_request(prompts, new_tokens, 128, vocab_size=8)
