"""A wrong argument from Python raises a UserError before loading. The error names the argument."""

import pytest

from models.common.errors import UserError, shown
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.open_model import OpenModel, open_model

OPENED = [
    ("model", 3), ("model", None), ("model", b"small"), ("model", ""),
    ("mesh", None), ("mesh", "N200"), ("mesh", 300), ("mesh", ["N300"]),
    ("tp", 3), ("tp", "2"), ("tp", 1.0), ("tp", True), ("tp", -2),
    ("backend", "x"), ("backend", None), ("backend", ["golden"]),
    ("recipe", 3), ("recipe", None), ("recipe", "int3"), ("recipe", b"bfp8"),
    ("users", 0), ("users", 33), ("users", None), ("users", 1.0), ("users", True), ("users", "2"),
    ("max_seq_len", 100.5), ("max_seq_len", 0), ("max_seq_len", None), ("max_seq_len", "1024"),
    ("max_seq_len", 4097), ("max_seq_len", 10**5000),
    ("instruct", "no"), ("on_host", 1), ("verify_cache", None), ("tokenizer", "Hello"),
    ("speculate", 0), ("speculate", 9), ("speculate", "2"), ("speculate", 2.0),
]  # fmt: skip


@pytest.mark.parametrize("name, value", OPENED, ids=lambda value: shown(value)[:20])
def test_open_model(name, value, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}")
    arguments = dict(model=f"{SMALL_CHECKPOINT}", backend="golden") | {name: value}
    with pytest.raises(UserError, match=name), open_model(**arguments):
        pass


ASKED = [
    ("prompts", "abc"), ("prompts", []), ("prompts", None), ("prompts", 3), ("prompts", {"a": 1}),
    (r"prompts\[0\]", [None]), (r"prompts\[1\]", ["a", b"b"]), (r"prompts\[1\]", ["a", " \n"]),
    (r"prompts\[0\]", ["a\ud83d"]), (r"prompts\[0\]", [["a"]]),
    ("max_new_tokens", None), ("max_new_tokens", 1.5), ("max_new_tokens", 0),
    ("max_new_tokens", True), ("max_new_tokens", "64"),
    ("sampling", "greedy"), ("sampling", 0.7), ("stop", "abc"), ("stop", [""]), ("stop", [3]),
]  # fmt: skip


@pytest.mark.parametrize("name, value", ASKED, ids=lambda value: ascii(value)[:20])
def test_generate(name, value):
    argument = name.split("\\")[0]
    with pytest.raises(UserError, match=name):
        OpenModel(None, None, None, "").generate(**dict(prompts=["a"]) | {argument: value})
