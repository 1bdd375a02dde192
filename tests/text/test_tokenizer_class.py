"""A checkpoint's tokenizer equals the one that AutoTokenizer loads. A damaged one is told so."""

import json
import shutil

import pytest
from sentencepiece import SentencePieceProcessor
from transformers import AutoTokenizer

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer
from tests.text.conftest import V3, mistral


@pytest.fixture
def model(tmp_path):
    """The small checkpoint without its weights."""
    for file in SMALL_CHECKPOINT.glob("*.json"):
        shutil.copy(file, tmp_path)
    return tmp_path


def edit(model, **fields):
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    "name", ["Qwen2Tokenizer", "Qwen2TokenizerFast", "LlamaTokenizerFast", "PreTrainedTokenizerFast"]
)
def test_the_tokenizer_is_auto_tokenizers(model, name):
    edit(model, tokenizer_class=name)
    expected, got = AutoTokenizer.from_pretrained(model), ChatTokenizer(model, instruct=True).hf
    assert type(got) is type(expected)
    assert got.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
    assert got.chat_template == expected.chat_template
    assert got.special_tokens_map == expected.special_tokens_map


def test_a_checkpoint_without_a_tokenizer_config(model):
    (model / "tokenizer_config.json").unlink()
    text = "The capital of France"
    expected = AutoTokenizer.from_pretrained(model).encode(text)
    assert ChatTokenizer(model, instruct=False).encode(text) == expected


@pytest.mark.parametrize("fields", [{}, dict(add_prefix_space=True)], ids=["tokenizer.model", "as Mistral v0.3"])
def test_a_tokenizer_in_sentencepieces_file(tmp_path, fields):
    """Mistral-7B-v0.3 has tokenizer.json, too, and a field that makes transformers 4.57 read tokenizer.model."""
    if fields:
        mistral(tmp_path).hf.backend_tokenizer.save(f"{tmp_path / 'tokenizer.json'}")
    text = "def f(x):\n    return '你好' 😀"
    assert mistral(tmp_path, **fields).encode(text) == [1, *SentencePieceProcessor(model_file=f"{V3}").encode(text)]


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1000])


def replace_by(model, name, content):
    (model / "tokenizer.json").unlink()
    (model / name).write_bytes(content)


DAMAGES = {
    "no tokenizer": (
        lambda m: (m / "tokenizer.json").unlink(), "has no tokenizer.json, tokenizer.model, nor .*: download"
    ),
    "Mistral's own": (lambda m: replace_by(m, "tekken.json", b"{}"), "holds tekken.json .*Hugging Face's format"),
    "truncated tokenizer.model": (
        lambda m: replace_by(m, "tokenizer.model", V3.read_bytes()[:9000]),
        "cannot be loaded .*or another that has tokenizer.json",
    ),
    "truncated tokenizer": (lambda m: truncate(m / "tokenizer.json"), "cannot be loaded .*download"),
    "truncated config": (lambda m: truncate(m / "tokenizer_config.json"), "cannot be loaded"),
    "no chat template": (lambda m: edit(m, chat_template=None), "no chat template.*--no-instruct"),
    "template with an error": (
        lambda m: edit(m, chat_template="{{ messages[0].nothing.at_all }}"), "UndefinedError.*--no-instruct",
    ),
    "truncated generation config": (
        lambda m: truncate(m / "generation_config.json"), "generation_config.json cannot be read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_tokenizer_is_a_user_error(model, damage):
    spoil, message = DAMAGES[damage]
    spoil(model)
    with pytest.raises(UserError, match=message) as error:
        ChatTokenizer(model, instruct=True).encode("a")
    assert ("download" in str(error.value)) == ("truncated" in damage or damage == "no tokenizer")
