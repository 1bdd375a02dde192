"""A model named by a hub id: small files come first, weights only if the cache lacks them.

A stranger's checkpoint brings no other file of this machine into the cache, or into a checkpoint made from it.
"""

import hashlib
import json
import shutil
from fnmatch import fnmatch

import pytest
from qwen25_7b_lab.quantize.__main__ import main as quantize
from safetensors import safe_open

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.weights import checkpoint
from models.demos.qwen25_7b.weights.cache import open_checkpoint
from models.demos.qwen25_7b.weights.checkpoint import INDEX_FILE, Checkpoint
from tests.weights.support import assert_same, load

NAME = "Qwen/Qwen2.5-7B-Instruct"
OLD, NEW = "1" * 40, "2" * 40  # commits


class Hub:
    """A hub whose branch main is at OLD until the first request, and at NEW after it. Only OLD has weights."""

    def __init__(self, model, snapshots):
        self.snapshots = snapshots
        self.requested = []
        self.blobs = snapshots.parent / "blobs"
        self.blobs.mkdir(parents=True)
        self.files = {}
        for file in model.iterdir():
            self.put(file.name, file.read_bytes())

    def put(self, name, content):
        self.files[name] = hashlib.sha256(content).hexdigest()
        (self.blobs / self.files[name]).write_bytes(content)

    def download(self, name, revision, allow_patterns):
        assert name == NAME
        main = NEW if self.requested else OLD
        commit = {None: main, "main": main}.get(revision, revision)
        wanted = [file for file in self.files if any(fnmatch(file, pattern) for pattern in allow_patterns)]
        weights = [file for file in wanted if file.endswith(".safetensors")]
        self.requested.append((",".join(weights) or "small files", revision))
        (self.snapshots / commit).mkdir(parents=True, exist_ok=True)
        for file in wanted if commit == OLD else set(wanted) - set(weights):
            link = self.snapshots / commit / file
            link.is_symlink() or link.symlink_to(f"../../blobs/{self.files[file]}")
        return f"{self.snapshots / commit}"


@pytest.fixture
def hub(model, tmp_path, monkeypatch):
    hub = Hub(model, tmp_path / "models--Qwen--Qwen2.5-7B-Instruct" / "snapshots")
    monkeypatch.setattr(checkpoint, "snapshot_download", hub.download)
    return hub


@pytest.mark.parametrize("revision", [None, "main", OLD])
def test_weights_are_downloaded_once_and_of_the_configs_commit(hub, cache, right, revision):
    """The branch moves between the request for the config and the request for the weights."""
    assert_same(load(NAME, cache, revision=revision), right)
    assert hub.requested == [("small files", revision), ("model.safetensors", OLD)]
    hub.requested.clear()
    assert_same(load(NAME, cache, revision=revision), right)
    assert hub.requested == [("small files", revision)]
    (folder,) = cache.glob("*/*/")
    assert folder.name.startswith("Qwen2.5-7B-Instruct-")


@pytest.mark.parametrize("has_index", [True, False])
def test_only_weights_that_are_read_are_downloaded(hub, cache, right, has_index):
    part, single = "model-00001-of-00001.safetensors", "model.safetensors"
    blob = (hub.blobs / hub.files[single]).read_bytes()
    hub.put("consolidated.safetensors", b"of the publisher")
    if has_index:
        with safe_open(hub.blobs / hub.files.pop(single), "pt") as tensors:
            names = list(tensors.keys())
        hub.put(part, blob)
        hub.put("model.safetensors.index.json", json.dumps({"weight_map": dict.fromkeys(names, part)}).encode())
    assert_same(load(NAME, cache), right)
    downloaded = [what for what, _ in hub.requested if what != "small files"]
    assert downloaded == [part if has_index else single]


def unreachable(*_, **__):
    raise ConnectionError("no route to host\nand more")


def test_without_the_hub_a_start_from_the_cache_alone(hub, cache, right, monkeypatch):
    load(NAME, cache)
    shutil.rmtree(hub.snapshots)
    monkeypatch.setattr(checkpoint, "snapshot_download", unreachable)
    for revision in (None, OLD):
        assert_same(load(NAME, cache, revision=revision), right)
    with pytest.raises(UserError, match=f"{NAME} at revision v2: no directory here"):
        open_checkpoint(NAME, cache=cache, revision="v2")


@pytest.mark.parametrize("how", ["no route", "a proxy that is down"])
def test_a_hub_that_cannot_be_reached_is_one_line(cache, monkeypatch, how):
    if how == "no route":
        monkeypatch.setattr(checkpoint, "snapshot_download", unreachable)
    else:
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    with pytest.raises(UserError, match="nowhere/at-all: no directory here, and the hub cannot be reached") as refused:
        load("nowhere/at-all", cache)
    assert "\n" not in str(refused.value)


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
