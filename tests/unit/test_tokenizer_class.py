"""A checkpoint's tokenizer is the one that AutoTokenizer would load, though it is seldom asked."""

import json
import shutil

import pytest
from transformers import AutoTokenizer

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.text import Text, tokenizer_class


@pytest.fixture
def model(tmp_path):
    """The small checkpoint but for its weights."""
    for file in SMALL_CHECKPOINT.glob("*.json"):
        shutil.copy(file, tmp_path)
    return tmp_path


def name(model, **fields):
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    "named", ["Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizer", "PreTrainedTokenizerFast"]
)
def test_a_name_of_transformers_needs_no_auto_tokenizer(model, named):
    name(model, tokenizer_class=named)
    expected = AutoTokenizer.from_pretrained(model)
    assert tokenizer_class(model) is type(expected)
    got = Text(model, instruct=True).tokenizer
    assert got.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
    assert got.chat_template == expected.chat_template and got.special_tokens_map == expected.special_tokens_map


@pytest.mark.parametrize("named", [None, "Own", "BaseImageProcessor", "", "AutoTokenizer", 7, ["Qwen2Tokenizer"]])
def test_any_other_is_left_to_it(model, named):
    name(model, tokenizer_class=named)
    assert tokenizer_class(model) is AutoTokenizer


def test_so_is_a_checkpoint_without_a_tokenizer_config(model):
    (model / "tokenizer_config.json").unlink()
    assert tokenizer_class(model) is AutoTokenizer
    assert Text(model, instruct=False).encode("The capital of France") == AutoTokenizer.from_pretrained(model).encode(
        "The capital of France"
    )
