"""What scripts/serve.py decides before vLLM starts: checkpoint, commit, name; one line for what cannot be served."""

import json
import shutil

import pytest
from huggingface_hub import constants
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.vllm.options import checked_options, option_value

JSON = SMALL_CHECKPOINT / "tokenizer.json"
COMMITS = {"main": "3" * 40, "v1": "4" * 40}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cache of the hub, which cannot be reached, with two revisions of the small checkpoint."""
    folder = tmp_path / "models--org--small"
    for name, commit in COMMITS.items():
        snapshot = folder / "snapshots" / commit
        shutil.copytree(SMALL_CHECKPOINT, snapshot, ignore=shutil.ignore_patterns("*.safetensors"))
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / name).write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", f"{tmp_path}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def checked(tmp_path):
    """checked(model, options)"""
    return lambda model, options: checked_options(f"{model}", options, "N300", f"{tmp_path / 'tokenizer'}")


@pytest.mark.parametrize("given, name", [([], "main"), (["--revision=v1"], "v1"), (["--revision", "main"], "main")])
def test_a_hub_id_is_pinned_to_a_commit(hub, checked, given, name):
    """vLLM reads config, tokenizer and weights at different times. The branch may move between them."""
    assert option_value(checked("org/small", given), "--revision") == COMMITS[name]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--block-size", "16"], "--block-size must be 32, 64 or 128 tokens, got 16"),
        (["--max_num_seqs=256"], "--max-num-seqs must be an integer, 1 to 32; got 256"),
    ],
)
def test_options_that_are_refused_before_vllm_starts(checked, options, message):
    """tests/server/check_starts.py sees all refusals."""
    with pytest.raises(UserError, match=message):
        checked(SMALL_CHECKPOINT, options)


def test_a_model_has_a_short_name_unless_the_user_names_it(hub, checked):
    named = checked("org/small", [])
    assert named[-3:] == ["--served-model-name", "small", "org/small"]
    local = checked(f"{SMALL_CHECKPOINT}/", [])
    assert local[-3:-1] == ["--served-model-name", SMALL_CHECKPOINT.name]
    users = ["--served_model_name", "mine"]
    assert checked(SMALL_CHECKPOINT, users)[:2] == users and "--served-model-name" not in checked(
        SMALL_CHECKPOINT, users
    )


def test_vllm_reads_the_tokenizer_by_the_rules_of_its_file(tmp_path, checked):
    folder = option_value(checked(SMALL_CHECKPOINT, []), "--tokenizer")
    text = "Count down from 11 to 0."
    assert AutoTokenizer.from_pretrained(folder).encode(text) == Tokenizer.from_file(f"{JSON}").encode(text).ids
    users = ["--tokenizer", "mine"]
    assert checked(SMALL_CHECKPOINT, users)[:3] == [*users, "--served-model-name"]


def test_a_checkpoint_of_another_architecture_is_refused_before_vllm_starts(tmp_path, checked):
    config = json.loads((SMALL_CHECKPOINT / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "qwen3"}))
    with pytest.raises(UserError, match="architectures of model_type 'qwen3' must be"):
        checked(tmp_path, [])


@pytest.mark.parametrize(
    "options, value",
    [([], None), (["--a-b", "1"], "1"), (["--a_b=2", "x"], "2"), (["--a-b", "1", "--a-b=3"], "3"), (["-s", "4"], "4")],
)  # fmt: skip
def test_the_last_value_of_an_option_counts(options, value):
    assert option_value(options, "--a-b", "-s") == value
