"""What scripts/serve.py decides before vLLM starts: checkpoint, commit, name; one line for what cannot be served."""

import json
import shutil

import pytest

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.vllm.options import checked_options, option_value
from models.demos.qwen25_7b.weights import checkpoint

COMMIT = "3" * 40


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A fake hub with the small checkpoint at COMMIT. The fixture is the list of requested revisions."""
    snapshot = tmp_path / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    shutil.copy(SMALL_CHECKPOINT / "config.json", snapshot)
    requested = []

    def snapshot_download(name, revision, allow_patterns):
        requested.append(revision)
        return f"{snapshot}"

    monkeypatch.setattr(checkpoint, "snapshot_download", snapshot_download)
    return requested


@pytest.mark.parametrize("given", [None, "v1"])
def test_a_hub_id_is_pinned_to_a_commit(hub, given):
    """vLLM reads config, tokenizer and weights at different times. The branch may move between them."""
    options = [] if given is None else [f"--revision={given}"]
    checked = checked_options("org/small", options, "N300")
    assert hub == [given]
    assert option_value(checked, "--revision") == COMMIT


def test_a_model_has_a_short_name_unless_the_user_names_it(hub):
    named = checked_options("org/small", [], "N300")
    assert named[-3:] == ["--served-model-name", "small", "org/small"]
    local = checked_options(f"{SMALL_CHECKPOINT}/", [], "N300")
    assert local[:2] == ["--served-model-name", SMALL_CHECKPOINT.name]
    users = ["--served_model_name", "mine"]
    assert checked_options(str(SMALL_CHECKPOINT), users, "N300") == users


def test_a_checkpoint_of_another_architecture_is_refused_before_vllm_starts(tmp_path):
    config = json.loads((SMALL_CHECKPOINT / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "qwen3"}))
    with pytest.raises(UserError, match="architectures of model_type 'qwen3' must be"):
        checked_options(str(tmp_path), [], "N300")


@pytest.mark.parametrize(
    "options, value",
    [([], None), (["--a-b", "1"], "1"), (["--a_b=2", "x"], "2"), (["--a-b", "1", "--a-b=3"], "3"), (["-s", "4"], "4")],
)  # fmt: skip
def test_the_last_value_of_an_option_counts(options, value):
    assert option_value(options, "--a-b", "-s") == value
