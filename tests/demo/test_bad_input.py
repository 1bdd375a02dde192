"""Whatever is wrong with what a user gives the demo: status 2, one line that names it, and nothing loaded."""

import json
import math
import resource
import shutil
import struct
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.common.terminal import printable
from models.demos.qwen25_7b.demo import demo
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.text import Text

WEIGHTS, INDEX, SHARD = "model.safetensors", "model.safetensors.index.json", "model-00002-of-00002.safetensors"
GATE = "model.layers.1.mlp.gate_proj.weight"


@pytest.fixture
def model(tmp_path):
    """A checkpoint to spoil."""
    return Path(shutil.copytree(SMALL_CHECKPOINT, tmp_path / "model"))


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """Runs the demo, which must refuse; the line it says."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/caches")

    def run(*argv) -> str:
        status = demo.main([f"{arg}" for arg in argv])
        said = capsys.readouterr().err
        assert status == 2, said
        lines = said.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: ") and printable(said) == said, said
        return lines[0]

    return run


def change(tensors: dict, name: str, tensor) -> dict:
    return {n: t for n, t in tensors.items() if n != name} | ({} if tensor is None else {name: tensor})


def rewrite(model: Path, name: str, tensor) -> None:
    """The weights with one tensor replaced, added, or (None) left out."""
    save_file(change(load_file(model / WEIGHTS), name, tensor), model / WEIGHTS)


def split(model: Path) -> None:
    """The weights as two files and an index."""
    tensors = load_file(model / WEIGHTS)
    names = sorted(tensors)
    files = {n: "model-00001-of-00002.safetensors" if i < len(names) // 2 else SHARD for i, n in enumerate(names)}
    for file in set(files.values()):
        save_file({n: tensors[n] for n in names if files[n] == file}, model / file)
    (model / INDEX).write_text(json.dumps({"weight_map": files}))
    (model / WEIGHTS).unlink()


def edit(file: Path, **fields) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def nest(file: Path) -> None:
    """Deeper than any parser follows."""
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
    "no chat template": (lambda m: edit(m / "tokenizer_config.json", chat_template=None), ["--no-instruct"]),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_checkpoint(refused, model, what):
    spoil, named = SPOILT[what]
    spoil(model)
    said = refused("--model", model)
    assert f"{model}" in said and all(name in said for name in named), said


@pytest.mark.parametrize(
    "field, value",
    [("num_hidden_layers", 5), ("num_hidden_layers", 10**9), ("num_hidden_layers", 10**18), ("vocab_size", 10**18),
     ("hidden_size", 10**15), ("num_attention_heads", 10**9), ("num_key_value_heads", 28 * 10**8), ("head_dim", 10**9),
     ("intermediate_size", 2**31 - 1), ("max_position_embeddings", 10**4000)],
)  # fmt: skip
def test_sizes_that_no_weights_have(refused, model, field, value):
    """Found by comparing with the weights, before a name is made for each layer of a billion."""
    edit(model / "config.json", **{field: value})
    begin = time.monotonic()
    said = refused("--model", model)
    assert "config.json" in said and (field in said or "layers" in said or "must be [" in said), said
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("contents", ["[]", "3", '"text"', "null", "true", "{", "\xff"])
def test_a_generation_config_that_is_no_object(refused, model, contents):
    (model / "generation_config.json").write_bytes(contents.encode("latin-1"))
    assert "generation_config.json" in refused("--model", model)


@pytest.mark.parametrize("eos", ["151645", 1.5, True, {}, [1, "2"], [[1]], [None], math.inf])
def test_end_tokens_that_are_none(refused, model, eos):
    edit(model / "generation_config.json", eos_token_id=eos)
    said = refused("--model", model)
    assert "generation_config.json" in said and "eos_token_id" in said


TEMPLATES = {
    "syntax": ("{% for message in %}", "TemplateSyntaxError"),
    "raises": ("{{ raise_exception('not \x1b[31m today') }}", "not \\x1b[31m today"),
    "unknown name": ("{{ messages[0].nothing.at_all }}", "UndefinedError"),
    "divides by zero": ("{{ 1 // 0 }}", "ZeroDivisionError"),
    "never ends": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "TimeoutError"),
    "more than its memory": ("{{ 'word ' * 10**9 }}", "MemoryError"),
    "a book": ("{% for a in range(99999) %}{{ messages[0].content }}{% endfor %}", "2999970 characters"),
    "itself": ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError"),
}


@pytest.mark.parametrize("what", TEMPLATES)
def test_a_chat_template_that_is_broken(refused, model, what):
    template, named = TEMPLATES[what]
    edit(model / "tokenizer_config.json", chat_template=template)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    said = refused("--model", model)
    assert "chat template" in said and f"{model}" in said and "--no-instruct" in said and named in said
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_no_such_model(refused, tmp_path):
    assert "nothing/here" in refused("--model", tmp_path / "nothing/here")
    assert "nnnnn" in refused("--model", "n" * 5000)
    assert "--model is empty" in refused("--model", "")


def test_no_such_file_of_prompts(refused, tmp_path):
    assert "absent.json" in refused("--prompts", tmp_path / "absent.json")
    assert "nnnnn" in refused("--prompts", "n" * 5000)
    assert "Is a directory" in refused("--prompts", tmp_path)


def test_a_file_of_prompts_that_never_ends(refused):
    assert "/dev/zero" in refused("--prompts", "/dev/zero")


def test_a_file_of_prompts_nested_deeply(refused, tmp_path):
    nest(tmp_path / "prompts.json")
    assert "prompts.json" in refused("--prompts", tmp_path / "prompts.json")


def test_a_prompt_of_50_mb_is_refused_before_it_is_tokenized(refused, tmp_path, monkeypatch):
    (tmp_path / "prompts.json").write_text(json.dumps(["short", "many words " * 5_000_000]))
    monkeypatch.setattr(Text, "encode", lambda *_: pytest.fail("tokenized"))
    said = refused("--prompts", tmp_path / "prompts.json", "--max-seq-len", "4096")
    assert "prompt 1" in said and "55000000 bytes" in said and "4096" in said


@pytest.mark.parametrize("prompt", ["a\udcff", "\ud83d", "\udc00\ud800"])
def test_a_prompt_that_is_no_text(refused, tmp_path, prompt):
    """Bytes that are not UTF-8, as Python gives them on the command line, and halves of characters, as JSON can hold them."""
    assert "--prompt" in refused("--prompt", prompt)
    (tmp_path / "prompts.json").write_text(json.dumps(["text", prompt]))
    assert "prompt 1" in refused("--prompts", tmp_path / "prompts.json")


@pytest.mark.parametrize(
    "contents, named",
    [("[", "prompts.json"), ("\xff", "prompts.json"), ("{}", "prompts.json"), ("[]", "holds no prompts"),
     ('["a", 3]', "item 1"), ('["a", {"text": "b"}]', "item 1"), ('["a", "  "]', "prompt 1"),
    ],
)  # fmt: skip
def test_a_file_of_prompts_that_is_none(refused, tmp_path, contents, named):
    file = tmp_path / "prompts.json"
    file.write_bytes(contents.encode("latin-1"))
    assert named in refused("--prompts", file)


@pytest.mark.parametrize(
    "argv, named",
    [
        (["--prompt", ""], ["prompt 0"]),
        (["--prompt", " \n"], ["prompt 0"]),
        (["--batch-size", "0"], ["--batch-size", "0"]),
        (["--max-new-tokens", "0"], ["max_new_tokens", "0"]),
        (["--max-new-tokens", "1020"], ["1020", "1024"]),
        (["--max-new-tokens", "5000", "--max-seq-len", "4096"], ["5000", "4096"]),
        (["--max-seq-len", "-1"], ["--max-seq-len", "-1"]),
        (["--max-seq-len", "0"], ["--max-seq-len", "0"]),
        (["--max-seq-len", "4097"], ["--max-seq-len", "4097", "4096", "max_position_embeddings"]),
        (["--max-seq-len", "9" * 4000], ["--max-seq-len", "4096"]),
        (["--prompt", "word " * 3000], ["1024"]),
        (["--mesh", "N200"], ["N200", "N150, N300, T3K"]),
        (["--mesh", "\x1b[2J\u202e"], ["\\x1b[2J", "N150, N300, T3K"]),
        (["--mesh\x1b[2J"], ["--mesh\\x1b[2J"]),
        (["--recipe", "int3"], ["--recipe", "int3", "bfp8-kv8"]),
        (["--max-new-tokens", "many"], ["--max-new-tokens", "many"]),
        (["--max-new-tokens", "9" * 5000], ["--max-new-tokens"]),
        (["--prompt", "a", "--prompts", "b"], ["--prompt", "--prompts"]),
        (["--banana"], ["--banana"]),
        (["--tp", "3"], ["N300", "3"]),
        (["--tp", "0"], ["N300", "0"]),
        (["--mesh", "N150", "--tp", "2"], ["N150", "2"]),
        (["--temperature", "-1"], ["temperature", "-1"]),
        (["--temperature", "nan"], ["temperature", "nan"]),
        (["--top-k", "-1"], ["top_k", "-1"]),
        (["--temperature", "1e-9"], ["temperature", "0.001", "1e-09"]),
        (["--top-p", "0"], ["top_p", "0"]),
        (["--top-p", "1.5"], ["top_p", "1.5"]),
        (["--temperature", "1", "--seed", "9" * 30], ["seed", "9" * 30]),
        (["--temperature", "1", "--seed", "-1"], ["seed", "-1"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_options_that_cannot_be(refused, argv, named):
    said = refused(*argv)
    assert all(name in said for name in named), said
