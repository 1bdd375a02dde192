"""A model named by a hub id: small files come first, weights only if the cache lacks them."""

import hashlib
import shutil

import pytest

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.weights import checkpoint
from models.demos.qwen25_7b.weights.cache import open_checkpoint
from tests.weights.support import assert_same, load

NAME = "Qwen/Qwen2.5-7B-Instruct"
OLD, NEW = "1" * 40, "2" * 40  # commits


class Hub:
    """A hub whose branch main is at OLD until the first request, and at NEW after it. Only OLD has weights."""

    def __init__(self, model, snapshots):
        self.snapshots = snapshots
        self.requested = []
        blobs = snapshots.parent / "blobs"
        blobs.mkdir(parents=True)
        for file in model.iterdir():
            blob = blobs / hashlib.sha256(file.read_bytes()).hexdigest()
            shutil.copy(file, blob)
            for commit in [OLD, NEW][: 1 if file.suffix == ".safetensors" else 2]:
                (snapshots / commit).mkdir(parents=True, exist_ok=True)
                (snapshots / commit / file.name).symlink_to(f"../../blobs/{blob.name}")

    def download(self, name, revision, allow_patterns):
        assert name == NAME
        main = NEW if self.requested else OLD
        what = "weights" if "*.safetensors" in allow_patterns else "small files"
        self.requested.append((what, revision))
        return f"{self.snapshots / {None: main, 'main': main}.get(revision, revision)}"


@pytest.fixture
def hub(model, tmp_path, monkeypatch):
    hub = Hub(model, tmp_path / "models--Qwen--Qwen2.5-7B-Instruct" / "snapshots")
    monkeypatch.setattr(checkpoint, "snapshot_download", hub.download)
    return hub


@pytest.mark.parametrize("revision", [None, "main", OLD])
def test_weights_are_downloaded_once_and_of_the_configs_commit(hub, cache, right, revision):
    """The branch moves between the request for the config and the request for the weights."""
    assert_same(load(NAME, cache, revision=revision), right)
    assert hub.requested == [("small files", revision), ("weights", OLD)]
    hub.requested.clear()
    assert_same(load(NAME, cache, revision=revision), right)
    assert hub.requested == [("small files", revision)]
    (folder,) = cache.glob("*/*/")
    assert folder.name.startswith("Qwen2.5-7B-Instruct-")


def test_weights_removed_from_the_hubs_cache_are_not_fetched_again(hub, cache, right):
    load(NAME, cache)
    (hub.snapshots / OLD / "model.safetensors").unlink()
    hub.requested.clear()
    assert_same(load(NAME, cache), right)
    assert hub.requested == [("small files", None)]


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
