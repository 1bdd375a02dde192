"""A bad option, prompt or checkpoint gives status 2 and one line that names it. Nothing is loaded."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

OPTIONS = [
    (["--banana"], ["--banana"]),
    (["more"], ["more"]),
    (["--mesh", "N200"], ["N200", "N150, N300, T3K"]),
    (["--mesh", "\x1b[2J"], ["\\x1b[2J", "N150, N300, T3K"]),
    (["--backend", "cuda"], ["--backend", "cuda", "golden"]),
    (["--recipe", "int3"], ["--recipe", "int3", "bfp8-kv8"]),
    (["--recipe", "nothing.json"], ["nothing.json", "not found"]),
    (["--tp", "3"], ["N300", "3"]),
    (["--mesh", "N150", "--tp", "2"], ["N150", "2"]),
    (["--model", "no/such/directory"], ["no/such/directory"]),
    (["--model", "."], ["config.json", "not found"]),
    (["--prompt"], ["--prompt", "one argument"]),
    (["--prompt", " \n"], ["prompt 0"]),
    (["--prompt", "word " * 5000], ["4096"]),
    (["--prompt", "word " * 1200, "--max-seq-len", "1024"], ["1024"]),
    (["--prompt", "a", "--prompts", "b"], ["--prompt", "--prompts"]),
    (["--prompt-file", "nothing"], ["--prompt-file nothing", "not found"]),
    (["--prompts", "nothing"], ["--prompts nothing", "not found"]),
    (["--prompts", "/"], ["--prompts /", "directory"]),
    (["--batch-size", "0"], ["--batch-size", "0"]),
    (["--max-new-tokens", "0"], ["--max-new-tokens", "0"]),
    (["--max-new-tokens", "many"], ["--max-new-tokens", "many"]),
    (["--max-new-tokens", "4090"], ["4090", "4096"]),
    (["--max-new-tokens", "1020", "--max-seq-len", "1024"], ["1020", "1024"]),
    (["--max-seq-len", "-1"], ["--max-seq-len", "-1"]),
    (["--max-seq-len", "4097"], ["max_seq_len", "4097", "4096"]),
    (["--temperature", "-1"], ["temperature", "-1"]),
    (["--temperature", "hot"], ["--temperature", "hot"]),
    (["--top-k", "-1"], ["top_k", "-1"]),
    (["--top-p", "1.5"], ["top_p", "1.5"]),
    (["--repetition-penalty", "0"], ["repetition_penalty", "0"]),
    (["--temperature", "1", "--seed", "-1"], ["seed", "-1"]),
    (["--stop", ""], ["--stop", "one character"]),
    (["--speculate", "9"], ["speculate", "1 to 8"]),
    (["--speculate", "2", "--sample-on", "host"], ["speculate", "host"]),
    (["--out", "/"], ["--out /", "no regular file"]),
    (["--out", "prompts.json"], ["--out prompts.json", "exists"]),
    (["--out", "/proc/answers"], ["--out /proc"]),
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
    [("[", "not JSON"), ("{}", "list of prompts"), ("[]", "list of prompts"), ('["a", {"text": "b"}]', "item 1"),
     ('["a", "  "]', "prompt 1"), ("\xff", "not UTF-8")],
)  # fmt: skip
def test_a_file_of_prompts_that_is_none(refused, tmp_path, contents, named):
    file = tmp_path / "prompts.json"
    file.write_bytes(contents.encode("latin-1"))
    assert named in refused("--prompts", file)


def edit(file: Path, **fields) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def lose_a_shard(model: Path) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    weights = (model / "model.safetensors").rename(model / first)
    names = list(load_file(weights))
    index = {"weight_map": dict.fromkeys(names, first) | {names[0]: second}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def drop_a_tensor(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    del tensors["model.layers.1.mlp.gate_proj.weight"]
    save_file(tensors, model / "model.safetensors")


DAMAGES = {
    "no config": (lambda m: (m / "config.json").unlink(), ["config.json"]),
    "truncated config": (lambda m: (m / "config.json").write_text("{"), ["config.json"]),
    "another architecture": (lambda m: edit(m / "config.json", model_type="llama"), ["model_type", "llama"]),
    "another model's config": (lambda m: edit(m / "config.json", num_attention_heads=16), ["q_proj", "config.json"]),
    "no weights": (lambda m: (m / "model.safetensors").unlink(), ["model.safetensors"]),
    "truncated weights": (lambda m: truncate(m / "model.safetensors"), ["model.safetensors"]),
    "missing shard": (lose_a_shard, ["model-00002-of-00002.safetensors"]),
    "missing tensor": (drop_a_tensor, ["model.layers.1.mlp.gate_proj.weight"]),
    "no tokenizer": (lambda m: (m / "tokenizer.json").unlink(), ["no tokenizer.json"]),
    "truncated tokenizer": (lambda m: truncate(m / "tokenizer.json"), ["tokenizer"]),
    "truncated generation config": (lambda m: (m / "generation_config.json").write_text("{"), ["generation_config.json"]),
    "no chat template": (lambda m: edit(m / "tokenizer_config.json", chat_template=None), ["--no-instruct"]),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint(refused, tmp_path, damage):
    spoil, named = DAMAGES[damage]
    model = Path(shutil.copytree(SMALL_CHECKPOINT, tmp_path / "model"))
    spoil(model)
    message = refused("--model", model)
    assert f"{model}" in message and all(name in message for name in named), message
