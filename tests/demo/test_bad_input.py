"""Whatever is wrong with what a user gives the demo: status 2, one line that names it, and nothing loaded."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.demos.qwen25_7b.demo import demo
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

WEIGHTS, INDEX, SHARD = "model.safetensors", "model.safetensors.index.json", "model-00002-of-00002.safetensors"
GATE = "model.layers.1.mlp.gate_proj.weight"


@pytest.fixture
def model(tmp_path):
    """A checkpoint to spoil."""
    return Path(shutil.copytree(SMALL_CHECKPOINT, tmp_path / "model"))


@pytest.fixture
def refused(capsys):
    """Runs the demo, which must refuse; the line it says."""

    def run(*argv) -> str:
        status = demo.main([f"{arg}" for arg in argv])
        said = capsys.readouterr().err
        assert status == 2, said
        lines = said.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), said
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
    "no chat template": (lambda m: edit(m / "tokenizer_config.json", chat_template=None), ["--no-instruct"]),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_checkpoint(refused, model, what):
    spoil, named = SPOILT[what]
    spoil(model)
    said = refused("--model", model)
    assert f"{model}" in said and all(name in said for name in named), said


def test_no_such_model(refused, tmp_path):
    assert "nothing/here" in refused("--model", tmp_path / "nothing/here")


def test_no_such_file_of_prompts(refused, tmp_path):
    assert "absent.json" in refused("--prompts", tmp_path / "absent.json")


@pytest.mark.parametrize(
    "contents, named",
    [("[", "prompts.json"), ("\xff", "prompts.json"), ("{}", "prompts.json"), ("[]", "prompts.json"),
     ('["a", 3]', "item 1"), ('["a", {"text": "b"}]', "item 1"), ('["a", "  "]', "prompt 1"),
     (json.dumps(["a"] * 33), "33")],
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
        (["--batch-size", "33"], ["--batch-size", "33"]),
        (["--batch-size", "0"], ["--batch-size", "0"]),
        (["--max-new-tokens", "0"], ["max_new_tokens", "0"]),
        (["--max-new-tokens", "1020"], ["1020", "1024"]),
        (["--max-new-tokens", "5000", "--max-seq-len", "100000"], ["5000", "4096"]),
        (["--max-seq-len", "-1"], ["-1"]),
        (["--prompt", "word " * 3000], ["1024"]),
        (["--mesh", "N200"], ["N200", "N150, N300, T3K"]),
        (["--tp", "3"], ["N300", "3"]),
        (["--tp", "0"], ["N300", "0"]),
        (["--mesh", "N150", "--tp", "2"], ["N150", "2"]),
        (["--temperature", "-1"], ["temperature", "-1"]),
        (["--temperature", "nan"], ["temperature", "nan"]),
        (["--top-k", "-1"], ["top_k", "-1"]),
        (["--temperature", "1", "--top-k", "0"], ["top_k", "1 to 32", "--sample-on host"]),
        (["--temperature", "1", "--top-k", "33"], ["top_k", "33", "--sample-on host"]),
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


@pytest.mark.parametrize(
    "argv", [["--recipe", "int3"], ["--max-new-tokens", "many"], ["--prompt", "a", "--prompts", "b"], ["--banana"]]
)
def test_options_that_argparse_refuses(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        demo.main(argv)
    assert stopped.value.code == 2 and argv[0] in capsys.readouterr().err
