"""A checkpoint's tokenizer, with the rules of its own file: tokenizer.json, or SentencePiece's tokenizer.model.

A class of transformers can replace the file's rules: in version 5 the class of the model_type, or the one that
tokenizer_config.json names (transformers issue 45488); in 4.57 the space before a text. Here no class does.
tokenizer_config.json has the special tokens, the chat template, and which tokens begin and end a text.
"""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Mapping, Optional

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from ..files import read_json

CONFIGS = "config.json", "tokenizer_config.json"
RULES = "normalizer", "pre_tokenizer", "decoder"
USER_DEFINED = 4  # SentencePiece's type of a piece that is never divided
PROBE = "It's 2024:  DON'T, 12345\n\n\té e\u0301 ﬁ 東京 x_1 "
PROBES = PROBE, f" {PROBE}"  # text that rules divide in different ways


def load_tokenizer(directory: Path) -> Any:
    """Return Hugging Face's tokenizer of a checkpoint, of a class that keeps the file's rules."""
    import transformers

    fields = _fields(directory)
    plain = transformers.PreTrainedTokenizerFast
    if (directory / "tokenizer.json").exists():
        hf = plain.from_pretrained(directory, local_files_only=True, **_options(fields))
        rules = _without_vocabulary(directory)
        for rule in RULES:
            setattr(hf.backend_tokenizer, rule, getattr(rules, rule))
    elif (directory / "tokenizer.model").exists():
        kind = plain if _of_5() else transformers.LlamaTokenizerFast
        hf = kind.from_pretrained(directory, local_files_only=True, **_options(fields))
        # legacy: also a text after a special token begins with a space
        _set_sentencepiece_rules(hf, directory, legacy=fields.get("legacy") is not False)
        fields = {"add_bos_token": True} | fields
    else:  # vocab.json and merges.txt have no rules: the class has them
        return _of_class(directory, fields)
    ends = fields.get("eos_token_id")  # config.json's
    if hf.eos_token is None and ends is not None:
        hf.eos_token = hf.convert_ids_to_tokens(ends[0] if isinstance(ends, list) else ends)
    _set_begin_and_end(hf, fields)
    return hf


def replaced_rules(directory: Path, hf: Any) -> Optional[str]:
    """A line where the installed transformers would replace the rules of hf, which load_tokenizer gave; else None."""
    file = "tokenizer.json" if (directory / "tokenizer.json").exists() else "tokenizer.model"
    with suppress(Exception):  # that class cannot be loaded
        theirs = _of_class(directory, _fields(directory))
        if any(theirs.tokenize(text) != hf.tokenize(text) for text in PROBES):
            name = type(theirs).__name__
            return f"{directory}: {file}'s rules are used; {name} of transformers would divide text in another way"
    return None


def _of_5() -> bool:
    import transformers

    return int(transformers.__version__.partition(".")[0]) >= 5


def _fields(directory: Path) -> dict[str, Any]:
    fields = {}
    for name in CONFIGS:
        if (directory / name).exists():
            fields |= read_json(directory / name)
    return fields


def _options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What 4.57 needs beside the files: 5 writes a list of extra_special_tokens, which 4.57 refuses."""
    extra = fields.get("extra_special_tokens")
    if _of_5() or not isinstance(extra, list):
        return {}
    return dict(extra_special_tokens={}, additional_special_tokens=extra)


def _of_class(directory: Path, fields: Mapping[str, Any]) -> Any:
    """The tokenizer that AutoTokenizer chooses."""
    import transformers

    if _of_5():
        return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
    # AutoTokenizer of 4.57 returns the same class, but its import takes longer than torch's.
    of_model = "Llama" if fields.get("model_type") in ("llama", "mistral") else "Qwen2"
    name = f"{fields.get('tokenizer_class') or f'{of_model}Tokenizer'}".removesuffix("Fast") + "Fast"
    files = {file.name for file in directory.glob("tokenizer.*")}
    if not files & {"tokenizer.json", "tokenizer.model"} and name != "GPT2TokenizerFast":
        name = "Qwen2TokenizerFast"  # vocab.json and merges.txt, which no plain class reads
    kind = getattr(transformers, name, transformers.PreTrainedTokenizerFast)
    return kind.from_pretrained(directory, local_files_only=True, **_options(fields))


def _without_vocabulary(directory: Path) -> Tokenizer:
    """The rules of tokenizer.json. They need no vocabulary, but for a Unigram model."""
    contents = read_json(directory / "tokenizer.json")
    if "merges" in contents["model"]:
        contents |= {"added_tokens": [], "post_processor": None}
        contents["model"] |= {"vocab": {}, "merges": [], "unk_token": None}
    return Tokenizer.from_str(json.dumps(contents))


def _set_sentencepiece_rules(hf: Any, directory: Path, *, legacy: bool) -> None:
    """Set the rules of tokenizer.model, so that ids are SentencePiece's own."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString((directory / "tokenizer.model").read_bytes())
    spec = model.normalizer_spec
    whole = {piece.piece for piece in model.pieces if piece.type == USER_DEFINED}
    tokenizer = hf.backend_tokenizer
    if whole:  # as in 5: 4.57 makes added tokens of whole pieces, and text after one would begin anew
        contents = json.loads(tokenizer.to_str())
        contents["added_tokens"] = [t for t in contents["added_tokens"] if t["special"] or t["content"] not in whole]
        contents["model"] |= {"ignore_merges": True} if "merges" in contents["model"] else {}
        hf._tokenizer = tokenizer = Tokenizer.from_str(json.dumps(contents))
    steps = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        ends = r" +\z" if spec.add_dummy_prefix else r"\A +| +\z"  # a first space is the one that is put there
        steps += [normalizers.Replace(Regex(ends), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    parts, prefix = [], []
    if spec.add_dummy_prefix:
        prefix = [decoders.Strip(" ", 1, 0)]
        # Metaspace adds no sign to a text that begins with its own
        signs = "▁" if spec.remove_extra_whitespaces else " ▁"
        schemes = ("always" if legacy else "first"), "never"
        parts = [pre_tokenizers.Metaspace(sign, scheme, split=False) for sign, scheme in zip(signs, schemes)]
    if whole:
        longest_first = sorted(map(re.escape, whole), key=len, reverse=True)
        parts.append(pre_tokenizers.Split(Regex("|".join(longest_first)), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *prefix]
    )


def _set_begin_and_end(hf: Any, fields: Mapping[str, Any]) -> None:
    """Begin and end a text as tokenizer_config.json says, as 5 does. Where it says nothing, tokenizer.json does."""
    names = "add_bos_token", "add_eos_token"
    if not any(name in fields for name in names):
        return
    begin, end = (
        [token] if fields.get(name) and token else [] for name, token in zip(names, (hf.bos_token, hf.eos_token))
    )
    special = [(token, hf.convert_tokens_to_ids(token)) for token in begin + end]
    template = dict(single=[*begin, "$A", *end], pair=[*begin, "$A", *end, *begin, "$B", *end])
    hf.backend_tokenizer.post_processor = TemplateProcessing(**template, special_tokens=special)
