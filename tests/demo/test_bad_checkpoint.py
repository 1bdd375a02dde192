"""A bad checkpoint gives status 2 and one line that names the file. Nothing is loaded."""

import json
import math
import os
import resource
import shutil
import struct
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

WEIGHTS, INDEX, SHARD = (
    "model.safetensors",
    "model.safetensors.index.json",
    "model-00002-of-00002.safetensors",
)
GATE = "model.layers.1.mlp.gate_proj.weight"


@pytest.fixture
def model(tmp_path):
    """A checkpoint that a test may damage."""
    return Path(shutil.copytree(SMALL_CHECKPOINT, tmp_path / "model"))


def change(tensors: dict, name: str, tensor) -> dict:
    return {n: t for n, t in tensors.items() if n != name} | (
        {} if tensor is None else {name: tensor}
    )


def rewrite(model: Path, name: str, tensor) -> None:
    """Rewrite the weights with one tensor replaced, added, or removed (None)."""
    save_file(change(load_file(model / WEIGHTS), name, tensor), model / WEIGHTS)


def split(model: Path) -> None:
    """Split the weights into two files and an index."""
    tensors = load_file(model / WEIGHTS)
    names = sorted(tensors)
    files = {
        n: "model-00001-of-00002.safetensors" if i < len(names) // 2 else SHARD
        for i, n in enumerate(names)
    }
    for file in set(files.values()):
        save_file({n: tensors[n] for n in names if files[n] == file}, model / file)
    (model / INDEX).write_text(json.dumps({"weight_map": files}))
    (model / WEIGHTS).unlink()


def edit(file: Path, **fields) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def replace(file: Path, make) -> None:
    file.unlink()
    make(file)


def nest(file: Path) -> None:
    """Write JSON that is nested deeper than any parser allows."""
    file.write_text('{"a":' * 200_000 + "1" + "}" * 200_000)


def nest_header(model: Path) -> None:
    header = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
    (model / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def point_index_at(model: Path, file: str) -> None:
    split(model)
    files = json.loads((model / INDEX).read_text())["weight_map"]
    edit(model / INDEX, weight_map=files | {GATE: file})


def split_then(spoil):
    return lambda model: (split(model), spoil(model))


SPOILT = {
    "no config": (lambda m: (m / "config.json").unlink(), ["config.json"]),
    "config is not JSON": (lambda m: (m / "config.json").write_text("{"), ["config.json"]),
    "another architecture": (lambda m: edit(m / "config.json", model_type="llama"), ["model_type", "llama"]),
    "sliding window": (lambda m: edit(m / "config.json", use_sliding_window=True), ["use_sliding_window"]),
    "rope scaling": (lambda m: edit(m / "config.json", rope_scaling={"type": "linear"}), ["rope_type", "linear"]),
    "other heads": (lambda m: edit(m / "config.json", num_attention_heads=16), ["q_proj", "config.json"]),
    "no weights": (lambda m: (m / WEIGHTS).unlink(), [WEIGHTS]),
    "truncated weights": (lambda m: cut(m / WEIGHTS), [WEIGHTS]),
    "empty weights": (lambda m: (m / WEIGHTS).write_bytes(b""), [WEIGHTS]),
    "missing shard": (split_then(lambda m: (m / SHARD).unlink()), [SHARD]),
    "truncated shard": (split_then(lambda m: cut(m / SHARD)), [SHARD]),
    "absent file in the index": (lambda m: point_index_at(m, "model-9.safetensors"), ["model-9.safetensors"]),
    "path outside in the index": (lambda m: point_index_at(m, "../other.safetensors"), ["../other.safetensors"]),
    "index is not JSON": (split_then(lambda m: (m / INDEX).write_text("[")), [INDEX]),
    "missing tensor": (lambda m: rewrite(m, GATE, None), [GATE]),
    "surplus tensor": (lambda m: rewrite(m, "model.layers.9.extra", torch.ones(2)), ["model.layers.9.extra"]),
    "wrong shape": (lambda m: rewrite(m, GATE, torch.ones(3, 5).bfloat16()), [GATE, "[3, 5]"]),
    "wrong dtype": (lambda m: rewrite(m, GATE, torch.ones(1184, 256, dtype=torch.int8)), [GATE, "I8"]),
    "no tokenizer": (lambda m: (m / "tokenizer.json").unlink(), ["tokenizer"]),
    "tokenizer is not JSON": (lambda m: (m / "tokenizer.json").write_text("{"), ["tokenizer"]),
    "tokenizer of nothing": (lambda m: (m / "tokenizer.json").write_text("{}"), ["tokenizer"]),
    "generation config is not JSON": (
        lambda m: (m / "generation_config.json").write_text("{"), ["generation_config.json"]
    ),
    "config nested deeply": (lambda m: nest(m / "config.json"), ["config.json", "deep"]),
    "index nested deeply": (split_then(lambda m: nest(m / INDEX)), [INDEX, "deep"]),
    "header nested deeply": (nest_header, [WEIGHTS]),
    "tokenizer nested deeply": (lambda m: nest(m / "tokenizer.json"), ["tokenizer"]),
    "tokenizer config nested deeply": (lambda m: nest(m / "tokenizer_config.json"), ["tokenizer"]),
    "generation config nested deeply": (
        lambda m: nest(m / "generation_config.json"), ["generation_config.json", "deep"]
    ),
    "a name of 5,000 characters in the index": (lambda m: point_index_at(m, "n" * 5000), ["nnnnn", "missing"]),
    "a name with a zero in the index": (lambda m: point_index_at(m, "a\0b"), ["a\\x00b", "missing"]),
    "half a character in the index": (lambda m: point_index_at(m, "a\udc80"), ["a\\udc80", "missing"]),
    "a terminal's commands in the index": (lambda m: point_index_at(m, "\x1b[2J\x9b\u202e"), ["\\x1b[2J", "missing"]),
    "code of its own": (
        lambda m: edit(m / "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", None]}),
        ["tokenizer"],
    ),
    "an integer of 4001 digits": (
        lambda m: edit(m / "config.json", vocab_size=10**4000), ["config.json", "4001 digits"]
    ),
    "config is a FIFO": (lambda m: replace(m / "config.json", os.mkfifo), ["config.json", "FIFO"]),
    "config is a directory": (lambda m: replace(m / "config.json", os.mkdir), ["config.json", "directory"]),
    "generation config is a FIFO": (
        lambda m: replace(m / "generation_config.json", os.mkfifo), ["generation_config.json", "FIFO"]
    ),
    "generation config is a directory": (
        lambda m: replace(m / "generation_config.json", os.mkdir), ["generation_config.json", "directory"]
    ),
    "tokenizer is a FIFO": (lambda m: replace(m / "tokenizer.json", os.mkfifo), ["tokenizer"]),
    "tokenizer is a directory": (lambda m: replace(m / "tokenizer.json", os.mkdir), ["tokenizer"]),
    "tokenizer config is a FIFO": (lambda m: replace(m / "tokenizer_config.json", os.mkfifo), ["tokenizer"]),
    "weights are a FIFO": (lambda m: replace(m / WEIGHTS, os.mkfifo), [WEIGHTS]),
    "weights are a directory": (lambda m: replace(m / WEIGHTS, os.mkdir), [WEIGHTS]),
    "no chat template": (lambda m: edit(m / "tokenizer_config.json", chat_template=None), ["--no-instruct"]),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
def test_a_damaged_checkpoint(refused, model, what):
    spoil, named = SPOILT[what]
    spoil(model)
    message = refused("--model", model)
    assert f"{model}" in message and all(name in message for name in named), message


@pytest.mark.parametrize(
    "field, value",
    [("num_hidden_layers", 5), ("num_hidden_layers", 10**9), ("num_hidden_layers", 10**18), ("vocab_size", 10**18),
     ("hidden_size", 10**15), ("num_attention_heads", 10**9), ("num_key_value_heads", 28 * 10**8), ("head_dim", 10**9),
     ("intermediate_size", 2**31 - 1), ("max_position_embeddings", 10**300)],
)  # fmt: skip
def test_impossible_tensor_sizes(refused, model, field, value):
    """The weights' shapes show the error, before names are built for a billion layers."""
    edit(model / "config.json", **{field: value})
    begin = time.monotonic()
    message = refused("--model", model)
    assert "config.json" in message and (
        field in message or "layers" in message or "must be [" in message
    ), message
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("contents", ["[]", "3", '"text"', "null", "true", "{", "\xff"])
def test_a_generation_config_that_is_no_object(refused, model, contents):
    (model / "generation_config.json").write_bytes(contents.encode("latin-1"))
    assert "generation_config.json" in refused("--model", model)


@pytest.mark.parametrize("eos", ["151645", 1.5, True, {}, [1, "2"], [[1]], [None], math.inf])
def test_invalid_end_tokens_are_refused(refused, model, eos):
    edit(model / "generation_config.json", eos_token_id=eos)
    message = refused("--model", model)
    assert "generation_config.json" in message and "eos_token_id" in message


TEMPLATES = {
    "syntax": ("{% for message in %}", "TemplateSyntaxError"),
    "raises": ("{{ raise_exception('not \x1b[31m today') }}", "not \\x1b[31m today"),
    "unknown name": ("{{ messages[0].nothing.at_all }}", "UndefinedError"),
    "divides by zero": ("{{ 1 // 0 }}", "ZeroDivisionError"),
    "never ends": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "TimeoutError",
    ),
    "more than its memory": ("{{ 'word ' * 10**9 }}", "MemoryError"),
    "a book": (
        "{% for a in range(99999) %}{{ messages[0].content }}{% endfor %}",
        "2999970 characters",
    ),
    "itself": ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError"),
}


@pytest.mark.parametrize("what", TEMPLATES)
def test_a_broken_chat_template(refused, model, what):
    template, named = TEMPLATES[what]
    edit(model / "tokenizer_config.json", chat_template=template)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    message = refused("--model", model)
    assert (
        "chat template" in message
        and f"{model}" in message
        and "--no-instruct" in message
        and named in message
    )
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_a_missing_model(refused, tmp_path):
    assert "nothing/here" in refused("--model", tmp_path / "nothing/here")
    assert "nnnnn" in refused("--model", "n" * 5000)
    assert "--model is empty" in refused("--model", "")
