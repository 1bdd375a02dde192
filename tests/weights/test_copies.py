"""A checkpoint of somebody else's brings no file of this machine into the cache, or into a checkpoint that is made from
it.
"""

import json
from pathlib import Path

import pytest
from qwen25_7b_lab.quantize.__main__ import main as quantize

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.weights.cache import open_checkpoint
from models.demos.qwen25_7b.weights.checkpoint import INDEX_FILE, Checkpoint
from tests.weights.support import assert_same, load

SECRET = b'{"token": "a secret"}'
UNKNOWN = "notes.json", "id_rsa", "x.jinja"
KNOWN = "generation_config.json", "chat_template.jinja", "added_tokens.json"


@pytest.fixture
def secret(tmp_path) -> Path:
    (tmp_path / "secret").write_bytes(SECRET)
    return tmp_path / "secret"


def assert_absent(place: Path) -> None:
    assert not [file for file in place.rglob("*") if file.is_file() and SECRET in file.read_bytes()]


def link(model: Path, name: str, secret: Path) -> None:
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(secret)


@pytest.mark.parametrize("name", UNKNOWN + KNOWN[:1])
def test_the_cache_copies_no_link(model, cache, secret, right, name):
    link(model, name, secret)
    for _ in range(2):
        assert_same(load(model, cache), right)
    assert_absent(cache)


def test_quantize_copies_known_files_and_refuses_their_links(model, secret, tmp_path):
    (tmp_path / "text").write_text("The capital of France is Paris. " * 400)
    out = tmp_path / "out"
    argv = f"--model {model} --calibration {tmp_path}/text --out {out} --steps 0 --tokens 512".split()
    link(model, KNOWN[0], secret)
    with pytest.raises(UserError, match=f"{model / KNOWN[0]}: a link to {secret}"):
        quantize(argv)
    assert not out.exists()
    (model / KNOWN[0]).unlink()
    for name in UNKNOWN:
        link(model, name, secret)
    quantize(argv)
    assert_absent(out)
    small = {file.name for file in out.iterdir() if file.suffix != ".safetensors"}
    assert small == {file.name for file in model.iterdir() if not file.is_symlink()} - {"model.safetensors"} | {
        INDEX_FILE
    }


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/hostname", ""])
@pytest.mark.parametrize("read", [Checkpoint.open, open_checkpoint])
def test_an_index_names_files_beside_it(model, name, read):
    (model / "model.safetensors").unlink()
    (model / INDEX_FILE).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(UserError, match="weights lie beside their index") as refused:
        read(model)
    assert repr(name) in str(refused.value)
