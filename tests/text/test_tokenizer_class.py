"""Text is divided as a checkpoint's own file says, whatever class its configs name. A damaged one is told so.

The judges are tokenizers.Tokenizer.from_file and SentencePieceProcessor.
"""

import json
import random
import shutil

import pytest
import transformers
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.text.tokenizer_file import load_tokenizer, replaced_rules
from tests.text.conftest import DATA, V3, edit, mistral, small, tekken

OF_5 = transformers.__version__ >= "5"
PARTS = (
    "Count from 16 to 30.|12345 + 678 = 9|The capital's 2nd  city\n\nisn't  Paris|a  b\t c| 東京 é e\u0301 ﬁ Å|x   y|"
    "Hello.  World|def f():\n    return [1, 22, 333]\n|if a:\n        b = '' # x|  two|trailing |\n\n|I'LL we'Ve DON'T|"
    "3.14159 1,000,000|€100 ½ ² ①|ＡＢＣ　全角|你好,世界!|안녕하세요|Здравствуй|مرحبا|नमस्ते|🙂👍🏽|a\u00a0b|"
    "foo_bar fooBar|<tag a='1'>|http://a.b/c?d=e&f=1|a\r\nb|▁x ▁|{\"a\": 1}|x^2 + y_1|000000"
).split("|")
ROWS = random.Random(0)
TEXTS = PARTS + [ROWS.choice(["", " ", "\n", "  "]).join(ROWS.choices(PARTS, k=ROWS.randint(2, 4))) for _ in range(250)]
CLASSES = (
    "Qwen2Tokenizer Qwen2TokenizerFast GPT2Tokenizer LlamaTokenizer LlamaTokenizerFast CodeLlamaTokenizer "
    "PreTrainedTokenizerFast TokenizersBackend"
).split()
DIGITS = pre_tokenizers.Digits(individual_digits=True)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
OF_CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
# What people put into tokenizer.json, beside Qwen's own rules.
RULES = {
    "the small checkpoint's": {},
    "SmolLM2's": dict(pre_tokenizer=pre_tokenizers.Sequence([DIGITS, BYTES])),
    "three digits": dict(
        pre_tokenizer=pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(OF_CL100K), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    ),
    "NFKC": dict(normalizer=normalizers.NFKC(), pre_tokenizer=BYTES),
    "small letters": dict(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])),
    "a space before": dict(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
}


@pytest.fixture
def model(tmp_path):
    """The small checkpoint without its weights."""
    small(tmp_path)
    return tmp_path


def with_rules(model, rules: str) -> None:
    tokenizer = Tokenizer.from_file(f"{model / 'tokenizer.json'}")
    for rule, value in RULES[rules].items():
        setattr(tokenizer, rule, value)
    tokenizer.save(f"{model / 'tokenizer.json'}")


def assert_ids_of(file, hf) -> None:
    own = Tokenizer.from_file(f"{file}")
    for special in (True, False):
        ids = [encoding.ids for encoding in own.encode_batch(TEXTS, add_special_tokens=special)]
        for text, theirs, ours in zip(TEXTS, ids, hf(TEXTS, add_special_tokens=special)["input_ids"], strict=True):
            assert ours == theirs, text
    assert hf.backend_tokenizer.decode_batch(ids) == own.decode_batch(ids)


FORMS = {("SmolLM2's", name, kind) for name in (None, *CLASSES) for kind in ("qwen2", "qwen3", "llama", "mistral")}
FORMS |= {(rules, name, kind) for rules in RULES for name in (None, CLASSES[0]) for kind in ("qwen2", "llama")}


@pytest.mark.parametrize("rules, name, model_type", sorted(FORMS, key=str))
def test_no_class_replaces_the_rules_of_tokenizer_json(model, name, model_type, rules):
    with_rules(model, rules)
    (model / "config.json").write_text(json.dumps(dict(model_type=model_type)))
    edit(model, tokenizer_class=name)
    hf = load_tokenizer(model)
    hf.save_pretrained(model / "for vLLM")
    for tokenizer in [hf, *([AutoTokenizer.from_pretrained(model / "for vLLM")] if OF_5 else [])]:  # vLLM has 5
        assert_ids_of(model / "tokenizer.json", tokenizer)
        assert tokenizer.eos_token == "<|im_end|>"


def test_a_real_vocabulary_of_byte_level(tmp_path):
    tekken(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(dict(model_type="mistral")))
    shutil.copy(DATA / "tekken_240911.json", tmp_path / "tekken.json")  # which transformers 5 would read instead
    assert_ids_of(tmp_path / "tokenizer.json", load_tokenizer(tmp_path))


def test_llama_2s_older_form_keeps_a_first_space(tmp_path):
    """It has a normalizer and no pre-tokenizer, and transformers 5 replaces both."""
    backend = mistral(tmp_path, model_type="llama").hf.backend_tokenizer
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = None
    backend.save(f"{tmp_path / 'tokenizer.json'}")
    assert_ids_of(tmp_path / "tokenizer.json", load_tokenizer(tmp_path))


PIECES = ["Mistral v0.1's", "Mistral v0.3's", "OpenLLaMA's", "no space before", "whole pieces"]


@pytest.fixture(scope="module")
def sentencepiece_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "text").write_text("\n".join(text.replace("\r", "") for text in TEXTS * 5))
    plain = dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
    kinds = {"OpenLLaMA's": {}, "no space before": plain | dict(add_dummy_prefix=False)}
    kinds["whole pieces"] = plain | dict(user_defined_symbols=["<|im_end|>", "foo_bar"])
    for name, options in kinds.items():
        SentencePieceTrainer.train(
            input=f"{folder / 'text'}", model_prefix=f"{folder / name}", model_type="bpe", vocab_size=500,
            byte_fallback=True, hard_vocab_limit=False, minloglevel=2, **options,
        )  # fmt: skip
    of_mistral = {"Mistral v0.1's": DATA / "tokenizer.model.v1", "Mistral v0.3's": V3}
    return of_mistral | {name: folder / f"{name}.model" for name in kinds}


@pytest.mark.parametrize("model_type, legacy", [("llama", True), ("llama", False), ("llama", None), ("mistral", False)])
@pytest.mark.parametrize("name", PIECES)
def test_a_tokenizer_in_sentencepieces_file(tmp_path, sentencepiece_models, name, model_type, legacy):
    """tokenizer.model alone: spaces, indentation and ids are SentencePiece's."""
    file = sentencepiece_models[name]
    mistral(tmp_path, file, model_type, **({} if legacy is None else dict(legacy=legacy)))
    own, hf = SentencePieceProcessor(model_file=f"{file}"), load_tokenizer(tmp_path)
    hf.save_pretrained(tmp_path / "for vLLM")
    assert AutoTokenizer.from_pretrained(tmp_path / "for vLLM")(TEXTS)["input_ids"] == hf(TEXTS)["input_ids"]
    ids = own.encode(TEXTS)
    for text, theirs, ours in zip(TEXTS, ids, hf(TEXTS)["input_ids"]):
        assert ours == [own.bos_id(), *theirs], text
    assert hf.backend_tokenizer.decode_batch(ids) == own.decode(ids)


@pytest.mark.parametrize(
    "fields, begins",
    [({}, False), (dict(add_bos_token=True, add_eos_token=False), True), (dict(add_bos_token=False), False)],
)
def test_what_begins_a_text(model, fields, begins):
    """tokenizer_config.json says it, or else tokenizer.json, which says nothing here."""
    edit(model, tokenizer_class="LlamaTokenizerFast", bos_token="<|endoftext|>", **fields)
    hf = load_tokenizer(model)
    assert (hf.encode("a")[0] == hf.bos_token_id) is begins


def test_tokenizer_json_begins_a_text(model):
    tokenizer = Tokenizer.from_file(f"{model / 'tokenizer.json'}")
    tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))]
    )
    tokenizer.save(f"{model / 'tokenizer.json'}")
    assert_ids_of(model / "tokenizer.json", load_tokenizer(model))


@pytest.mark.parametrize("name", [None, "Qwen2Tokenizer", "PreTrainedTokenizerFast", "GPT2Tokenizer"])
@pytest.mark.parametrize("rules", ["the small checkpoint's", "a space before"])
def test_a_line_where_a_class_would_replace_the_rules(model, name, rules):
    """The judge is what that class makes of the texts."""
    with_rules(model, rules)
    edit(model, tokenizer_class=name)
    theirs, tokenizer = AutoTokenizer.from_pretrained(model), Tokenizer.from_file(f"{model / 'tokenizer.json'}")
    same = all(theirs.encode(text) == tokenizer.encode(text).ids for text in TEXTS)
    line = replaced_rules(model, load_tokenizer(model))
    assert (line is None) == same
    assert same or f"{type(theirs).__name__} of transformers would" in line


@pytest.mark.parametrize("legacy", [True, False])
def test_a_line_where_a_class_would_replace_sentencepieces_rules(tmp_path, legacy):
    mistral(tmp_path, model_type="llama", legacy=legacy)
    own, theirs = SentencePieceProcessor(model_file=f"{V3}"), AutoTokenizer.from_pretrained(tmp_path)
    same = all(theirs.encode(text, add_special_tokens=False) == own.encode(text) for text in TEXTS)
    line = replaced_rules(tmp_path, load_tokenizer(tmp_path))
    assert (line is None) == same
    assert same or f"tokenizer.model's rules are used; {type(theirs).__name__} of transformers" in line


def test_a_checkpoint_without_a_tokenizer_config(model):
    """config.json has the token that ends a text."""
    (model / "tokenizer_config.json").unlink()
    hf = load_tokenizer(model)
    assert_ids_of(model / "tokenizer.json", hf)
    assert hf.eos_token_id == json.loads((model / "config.json").read_text())["eos_token_id"]


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
