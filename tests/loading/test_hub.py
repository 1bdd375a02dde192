"""A model named by a hub id: small files come first, weights only if the cache lacks them."""

import shutil
from pathlib import Path

import pytest

from models.common.errors import UserError
from models.demos.qwen25_7b.loading.opened import open_checkpoint
from models.demos.qwen25_7b.weights import checkpoint
from tests.loading.support import assert_same, load, load_opened

NAME = "Qwen/Qwen2.5-7B-Instruct"


@pytest.fixture
def hub(model, monkeypatch):
    """A fake hub with the model. The fixture is the list of requests to the hub."""
    requested = []

    def snapshot_download(name, revision, allow_patterns):
        assert (name, revision) == (NAME, None)
        requested.append("weights" if "*.safetensors" in allow_patterns else "small files")
        return f"{model}"

    monkeypatch.setattr(checkpoint, "snapshot_download", snapshot_download)
    return requested


def test_weights_are_downloaded_once(hub, cache, right):
    assert_same(load(Path(NAME), cache), right)
    assert hub == ["small files", "weights"]
    hub.clear()
    assert_same(load(Path(NAME), cache), right)
    assert hub == ["small files"]


def test_weights_removed_from_the_hubs_cache_are_not_fetched_again(hub, model, cache, right):
    load(Path(NAME), cache)
    (model / "model.safetensors").unlink()
    hub.clear()
    assert_same(load(Path(NAME), cache), right)
    assert hub == ["small files"]


def test_an_unknown_name_is_one_line(cache, monkeypatch):
    monkeypatch.setattr(checkpoint, "snapshot_download", lambda *_, **__: 1 / 0)
    with pytest.raises(
        UserError, match="nowhere/at-all: neither a directory here nor a Hugging Face repository"
    ):
        load(Path("nowhere/at-all"), cache)


OLD, NEW = "1" * 40, "2" * 40  # commits


@pytest.fixture
def moving_hub(model, tmp_path, monkeypatch):
    """A fake hub whose branch main is at OLD at the first request and at NEW after it. Only OLD has weights."""
    snapshots = tmp_path / "models--org--name" / "snapshots"
    shutil.copytree(model, snapshots / OLD)
    shutil.copytree(model, snapshots / NEW, ignore=shutil.ignore_patterns("*.safetensors"))
    refs = tmp_path / "models--org--name" / "refs"
    refs.mkdir()
    requested = []

    def snapshot_download(name, revision, allow_patterns):
        commit = {None: NEW if requested else OLD, "main": NEW if requested else OLD}
        requested.append(revision)
        (refs / "main").write_text(commit["main"])
        return f"{snapshots / commit.get(revision, revision)}"

    monkeypatch.setattr(checkpoint, "snapshot_download", snapshot_download)
    return requested, snapshots


@pytest.mark.parametrize("revision", [None, "main", OLD])
def test_config_and_weights_are_of_one_commit(moving_hub, cache, right, revision):
    """The branch moves between the request for the config and the request for the weights."""
    requested, snapshots = moving_hub
    opened = open_checkpoint("org/name", cache=cache, revision=revision, say=[].append)
    assert_same(load_opened(opened), right)
    assert requested == [revision, OLD]
    assert opened.home == snapshots / OLD


def test_a_directory_with_a_revision_is_refused_unless_the_hub_put_it_there(model, moving_hub):
    """Offline, vLLM replaces a hub id by a directory of the hub's cache, and keeps the revision."""
    with pytest.raises(UserError, match="--revision v1: .* is a directory, which has no revisions"):
        open_checkpoint(model, revision="v1", use_cache=False)
    _, snapshots = moving_hub
    (snapshots.parent / "refs/v1").write_text(OLD)
    for revision in ("v1", OLD):
        open_checkpoint(snapshots / OLD, revision=revision, use_cache=False)
    with pytest.raises(UserError, match="no revisions"):
        open_checkpoint(snapshots / OLD, revision=NEW, use_cache=False)
