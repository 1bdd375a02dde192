"""A checkpoint's tokenizer equals the one that AutoTokenizer loads."""

import json
import shutil

import pytest
from transformers import AutoTokenizer

from models.common.errors import UserError
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer, tokenizer_class


@pytest.fixture
def model(tmp_path):
    """The small checkpoint without its weights."""
    for file in SMALL_CHECKPOINT.glob("*.json"):
        shutil.copy(file, tmp_path)
    return tmp_path


def name(model, **fields):
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    "named",
    ["Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizer", "PreTrainedTokenizerFast"],
)
def test_a_class_name_of_transformers_needs_no_auto_tokenizer(model, named):
    name(model, tokenizer_class=named)
    expected = AutoTokenizer.from_pretrained(model)
    assert tokenizer_class(model) is type(expected)
    got = ChatTokenizer(model, instruct=True).hf
    assert got.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
    assert (
        got.chat_template == expected.chat_template
        and got.special_tokens_map == expected.special_tokens_map
    )


@pytest.mark.parametrize(
    "named", [None, "Own", "BaseImageProcessor", "", "AutoTokenizer", 7, ["Qwen2Tokenizer"]]
)
def test_other_tokenizers_use_auto_tokenizer(model, named):
    name(model, tokenizer_class=named)
    assert tokenizer_class(model) is AutoTokenizer


def test_a_checkpoint_without_a_tokenizer_config_uses_auto_tokenizer(model):
    (model / "tokenizer_config.json").unlink()
    assert tokenizer_class(model) is AutoTokenizer
    assert ChatTokenizer(model, instruct=False).encode(
        "The capital of France"
    ) == AutoTokenizer.from_pretrained(model).encode("The capital of France")


@pytest.mark.parametrize(
    "field, value",
    [("model_max_length", "4096"), ("model_max_length", -1), ("model_max_length", True),
     ("model_input_names", 3), ("eos_token", 3), ("pad_token", []), ("unk_token", {"content": 3}),
     ("chat_template", 3), ("chat_template", ["a"]), ("added_tokens_decoder", {"1": 3}),
     ("added_tokens_decoder", {"a": {"content": "b"}}), ("additional_special_tokens", "x"),
     ("extra_special_tokens", []), ("tokenizer_class", 7), ("padding_side", "middle"),
     ("clean_up_tokenization_spaces", "no")],
)  # fmt: skip
def test_a_field_of_a_wrong_kind_is_named(model, field, value):
    name(model, **{field: value})
    with pytest.raises(UserError) as refused:
        ChatTokenizer(model, instruct=True)
    assert f"{model / 'tokenizer_config.json'}: {field} must be" in str(refused.value)


@pytest.mark.parametrize("value", [None, 131072, 1e30])
def test_the_published_checkpoints_maximum_lengths_are_used(model, value):
    name(model, model_max_length=value)
    assert ChatTokenizer(model, instruct=True).encode("a")


def test_a_tokenizer_config_that_is_no_object_is_named(model):
    (model / "tokenizer_config.json").write_text("[]")
    with pytest.raises(UserError, match="tokenizer_config.json must hold a JSON object"):
        ChatTokenizer(model, instruct=True)
