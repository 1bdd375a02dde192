"""Tokenizers of published models, from what packages bring: mistral-common's files, and the small checkpoint."""

import base64
import functools
import json
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer

DATA = Path(str(files("mistral_common") / "data"))
V3 = DATA / "mistral_instruct_tokenizer_240323.model.v3"
OF_MISTRAL = dict(tokenizer_class="LlamaTokenizer", bos_token="<s>", eos_token="</s>", unk_token="<unk>", legacy=False)
OF_MISTRAL |= dict(add_bos_token=True, add_eos_token=False)


def edit(place: Path, **fields) -> None:
    """Change fields of tokenizer_config.json."""
    file = place / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def small(place: Path, **fields) -> ChatTokenizer:
    for file in SMALL_CHECKPOINT.glob("*.json"):
        shutil.copy(file, place)
    edit(place, **fields)
    return ChatTokenizer(place, instruct=False)


def mistral(place: Path, model: Path = V3, model_type: str = "mistral", **fields) -> ChatTokenizer:
    """As Mistral-7B-v0.3, with tokenizer.model alone."""
    shutil.copy(model, place / "tokenizer.model")
    (place / "config.json").write_text(json.dumps(dict(model_type=model_type)))
    (place / "tokenizer_config.json").write_text(json.dumps(OF_MISTRAL | fields))
    return ChatTokenizer(place, instruct=False)


def tekken(place: Path) -> ChatTokenizer:
    """Mistral Nemo's vocabulary, with a merge for a token of two bytes only."""
    contents = json.loads((DATA / "tekken_240911.json").read_text())
    special = contents["config"]["default_num_special_tokens"]
    tokens = [base64.b64decode(token["token_bytes"]) for token in contents["vocab"][: 2**17 - special]]
    letters = bytes_to_unicode()
    names = ["".join(map(letters.get, token)) for token in tokens]
    vocab = {f"<SPECIAL_{i}>": i for i in range(special)} | {name: i for i, name in enumerate(names, special)}
    bpe = Tokenizer(models.BPE(vocab, [tuple(name) for name in names if len(name) == 2]))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(f"<SPECIAL_{i}>") for i in range(special)])
    PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<SPECIAL_2>").save_pretrained(place)
    return ChatTokenizer(place, instruct=False)


VOCABULARIES = {
    "byte level": small,
    "with clean-up": functools.partial(
        small, clean_up_tokenization_spaces=True, tokenizer_class="PreTrainedTokenizerFast"
    ),
    "SentencePiece": mistral,
    "tekken": tekken,
}


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    """vocabulary(name) -> ChatTokenizer"""
    return functools.lru_cache(lambda name: VOCABULARIES[name](tmp_path_factory.mktemp("tokenizer")))
