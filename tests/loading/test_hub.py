"""A model named by a hub id: small files come first, weights only if the cache lacks them."""

from pathlib import Path

import pytest

from models.common.errors import UserError
from models.demos.qwen25_7b.weights import checkpoint
from tests.loading.support import assert_same, load

NAME = "Qwen/Qwen2.5-7B-Instruct"


@pytest.fixture
def hub(model, monkeypatch):
    """A fake hub with the model. The fixture is the list of requests to the hub."""
    requested = []

    def snapshot_download(name, allow_patterns):
        assert name == NAME
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
