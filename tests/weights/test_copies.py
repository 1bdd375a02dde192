"""A stranger's checkpoint brings no other file of this machine into the cache, or into a checkpoint made from it."""

import json

import pytest
from qwen25_7b_lab.quantize.__main__ import main as quantize

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.weights.cache import open_checkpoint
from models.demos.qwen25_7b.weights.checkpoint import INDEX_FILE, Checkpoint
from tests.weights.support import assert_same, load

KNOWN, UNKNOWN, SECRET = "generation_config.json", "notes.json", b'{"token": "a secret"}'


def test_links_are_not_copied(model, cache, right, tmp_path):
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "text").write_text("The capital of France is Paris. " * 400)
    (model / KNOWN).unlink()
    for name in (KNOWN, UNKNOWN):
        (model / name).symlink_to(tmp_path / "secret")
    out = tmp_path / "out"
    argv = f"--model {model} --calibration {tmp_path}/text --out {out} --steps 0 --tokens 512".split()
    with pytest.raises(UserError, match=f"{model / KNOWN}: a link to {tmp_path / 'secret'}"):
        quantize(argv)
    assert not out.exists()
    for _ in range(2):
        assert_same(load(model, cache), right)
    (model / KNOWN).unlink()
    quantize(argv)
    small = {file.name for file in model.iterdir()} - {"model.safetensors", UNKNOWN} | {INDEX_FILE}
    assert small == {file.name for file in out.iterdir() if file.suffix != ".safetensors"}
    assert not [f for at in (cache, out) for f in at.rglob("*") if f.is_file() and SECRET in f.read_bytes()]


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/hostname", ""])
@pytest.mark.parametrize("read", [Checkpoint.open, open_checkpoint])
def test_an_index_names_files_beside_it(model, name, read):
    (model / "model.safetensors").unlink()
    (model / INDEX_FILE).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(UserError, match="weights lie beside their index") as refused:
        read(model)
    assert repr(name) in str(refused.value)
