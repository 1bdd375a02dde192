"""A bad option, prompt or checkpoint gives status 2 and one line that names it. Nothing is loaded."""

import json
import os
import shutil
from pathlib import Path

import pytest

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

OPTIONS = [
    (["--banana"], ["--banana"]),
    (["--mesh", "N200"], ["N200", "N150, N300, N150x4, T3K"]),
    (["--mesh", "\x1b[2J"], ["\\x1b[2J", "N150, N300, N150x4, T3K"]),
    (["--backend", "cuda"], ["--backend", "cuda", "golden"]),
    (["--recipe", "int3"], ["--recipe", "int3", "bfp8-kv8"]),
    (["--tp", "3"], ["N300", "3"]),
    (["--model", "no/such/directory"], ["no/such/directory"]),
    (["--model", "."], ["config.json", "No such file"]),
    (["--prompt"], ["--prompt", "one argument"]),
    (["--prompt", " \n"], ["prompt 0"]),
    (["--prompt", "word " * 5000], ["4096"]),
    (["--prompt", "a", "--prompts", "b"], ["--prompt", "--prompts"]),
    (["--prompt-file", "nothing"], ["--prompt-file nothing", "No such file"]),
    (["--prompts", "nothing"], ["--prompts nothing", "No such file"]),
    (["--batch-size", "0"], ["--batch-size", "0"]),
    (["--max-new-tokens", "0"], ["--max-new-tokens", "0"]),
    (["--max-new-tokens", "4090"], ["4090", "4096"]),
    (["--max-seq-len", "4097"], ["max_seq_len", "4097", "4096"]),
    (["--temperature", "-1"], ["temperature", "-1"]),
    (["--top-k", "-1"], ["top_k", "-1"]),
    (["--top-p", "1.5"], ["top_p", "1.5"]),
    (["--repetition-penalty", "0"], ["repetition_penalty", "0"]),
    (["--temperature", "1", "--seed", "-1"], ["seed", "-1"]),
    (["--stop", ""], ["--stop", "one character"]),
    (["--speculate", "9"], ["speculate", "1 to 8"]),
    (["--speculate", "2", "--sample-on", "host"], ["speculate", "host"]),
    (["--out", "/"], ["--out /", "not a regular file"]),
    (["--out", "prompts.json"], ["--out prompts.json", "exists"]),
    (["--cache", "x", "--no-cache"], ["--cache", "--no-cache"]),
    (["--chat", "--no-instruct"], ["--chat needs the chat template"]),
    (["--chat", "--batch-size", "2"], ["--chat", "--batch-size"]),
    (["--chat", "--out", "x"], ["--chat", "--out"]),
    (["--chat", "--prompt", "Hi"], ["--chat", "not allowed with"]),
]


@pytest.mark.parametrize("argv, named", OPTIONS, ids=lambda value: ascii(" ".join(value))[1:40])
def test_an_option_that_cannot_be(refused, argv, named):
    message = refused(*argv)
    assert all(name in message for name in named), message


@pytest.mark.parametrize(
    "contents, named",
    [("[", "not JSON"), ("{}", "item 0"), ("[]", "JSON list or JSON lines"), ("\n", "JSON list or JSON lines"),
        ('["a", {"text": "b"}]', "item 1"),
     ('{"prompt": "a"}\n\n{"prompt": ', "line 3: not JSON"),
     ('{"question": "a"}\n{"question": "b"}', 'an object with a "prompt"'),
     ('{"messages": [{"role": "user", "content": "a"}]}', 'an object with a "prompt"'),
     ("What is 2 + 3?", "line 1: not JSON"),
     ('["a", "  "]', "prompt 1"), ("\xff", "not UTF-8"),
     ('["a", "half \\ud83d"]', "half \\ud83d")],
)  # fmt: skip
def test_a_file_of_prompts_that_is_none(refused, tmp_path, contents, named):
    file = tmp_path / "prompts.json"
    file.write_bytes(contents.encode("latin-1"))
    assert named in refused("--prompts", file)


def edit(file: Path, **fields) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


DAMAGES = {
    "another architecture": (lambda m: edit(m / "config.json", model_type="llama"), ["model_type", "llama"]),
    "truncated weights": (lambda m: os.truncate(m / "model.safetensors", 1000), ["model.safetensors"]),
    "no tokenizer": (lambda m: (m / "tokenizer.json").unlink(), ["no tokenizer.json"]),
    "truncated generation config": (lambda m: (m / "generation_config.json").write_text("{"),
        ["generation_config.json"]),
    "no chat template": (lambda m: edit(m / "tokenizer_config.json", chat_template=None), ["--no-instruct"]),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint(refused, tmp_path, damage):
    spoil, named = DAMAGES[damage]
    model = Path(shutil.copytree(SMALL_CHECKPOINT, tmp_path / "model"))
    spoil(model)
    message = refused("--model", model)
    assert f"{model}" in message and all(name in message for name in named), message
