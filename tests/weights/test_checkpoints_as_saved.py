"""Checkpoints as people have them: read as Hugging Face reads them, or refused in one line with the true reason.

A row is: the file, its change, and what Hugging Face is compared on, or words of the refusal. The checkpoint is the
small one. Hugging Face is the installed transformers; `make test` runs this with 4.57 and with 5.24.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.demos.qwen25_7b.config.decoder_config import QUANTIZED
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.reference.hf import hf_checkpoint
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.weights.cache import open_checkpoint
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint, tensor_shapes
from tests.families import hf_model
from tests.weights.support import ABSENT, CONFIG, WEIGHTS, assert_same, change, load, logged

OF_5 = transformers.__version__ >= "5"
TOKENIZER = "tokenizer_config.json"
TOKENS = torch.arange(20, 84)[None]
HEAD, Q_BIAS = "lm_head.weight", "model.layers.0.self_attn.q_proj.bias"
YARN = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=512)
SPECIAL = ["<|im_start|>", "<|im_end|>"]


def rope_parameters(**fields) -> dict:
    return dict(rope_theta=ABSENT, rope_scaling=ABSENT, rope_parameters=fields)


VALUE_HEAD = {"v_head.summary.weight": torch.ones(1, 256), "v_head.summary.bias": torch.ones(1)}
# id: file, change, words of the line that it gives ("" for none), what the change is for transformers 4.57 (None: the
# same)
READ = {
    "as it is": (CONFIG, {}, "", None),
    "no hidden_act": (CONFIG, dict(hidden_act=ABSENT), "", None),
    "swish": (CONFIG, dict(hidden_act="swish"), "", None),
    "no rms_norm_eps": (CONFIG, dict(rms_norm_eps=ABSENT), "", None),
    "another rms_norm_eps": (CONFIG, dict(rms_norm_eps=1e-3), "", None),
    "no rope_theta": (CONFIG, dict(rope_theta=ABSENT), "", None),
    "no max_position_embeddings": (CONFIG, dict(max_position_embeddings=ABSENT), "", None),
    "no tie_word_embeddings": (CONFIG, dict(tie_word_embeddings=ABSENT), "", None),
    "linear by 1": (CONFIG, dict(rope_scaling=dict(type="linear", factor=1.0)), "", None),
    "YaRN": (CONFIG, dict(rope_scaling=YARN), "", None),
    "YaRN, not truncated": (CONFIG, dict(rope_scaling=YARN | dict(truncate=False)), "", None),
    "YaRN, truncate null": (CONFIG, dict(rope_scaling=YARN | dict(truncate=None)), "", None),
    "YaRN, mscale": (CONFIG, dict(rope_scaling=YARN | dict(mscale=0.7, mscale_all_dim=0.3)), "", None),
    "YaRN, one mscale": (CONFIG, dict(rope_scaling=YARN | dict(mscale=0.7)), "", None),
    "YaRN of 5": (
        CONFIG, rope_parameters(rope_theta=5e5, truncate=False, attn_factor=None, **YARN), "",
        dict(rope_theta=5e5, rope_scaling=YARN | dict(truncate=False)),
    ),
    "theta in rope_parameters": (
        CONFIG, rope_parameters(rope_type="default", rope_theta=5e5), "", dict(rope_theta=5e5),
    ),
    "theta beside rope_parameters": (
        CONFIG, dict(rope_theta=5e5, rope_parameters=dict(rope_type="default")), "", dict(rope_theta=5e5),
    ),
    "sliding window of no layer": (
        CONFIG, dict(use_sliding_window=True, sliding_window=8, layer_types=ABSENT, max_window_layers=4), "", None,
    ),
    "sliding window null": (
        CONFIG, dict(use_sliding_window=True, layer_types=ABSENT, max_window_layers=0), "", None,
    ),
    "sliding window as Mistral has it": (
        CONFIG, dict(use_sliding_window=ABSENT, sliding_window=8, layer_types=ABSENT, max_window_layers=0),
        "", None,
    ),
    "code beside": (
        CONFIG, dict(auto_map={"AutoModelForCausalLM": "modeling.Mine"}), "auto_map names is not run", None,
    ),
    "tied, head differs": (CONFIG, dict(tie_word_embeddings=True), f"{HEAD} differs", {}),
    "value head": (WEIGHTS, VALUE_HEAD, "v_head.summary.bias (and 1 more) not read", None),
    "score": (WEIGHTS, {"score.weight": torch.ones(1, 256)}, "score.weight not read", None),
}  # fmt: skip


@pytest.mark.parametrize("row", READ)
def test_a_checkpoint_is_read_as_hugging_face_reads_it(model, tmp_path, row):
    file, fields, line, of_4 = READ[row]
    theirs = shutil.copytree(model, tmp_path / "theirs")
    change(model, file, fields)
    change(theirs, file, fields if OF_5 or of_4 is None else of_4)
    with logged() as lines:
        checkpoint = Checkpoint.open(model)
    assert [line in told for told in lines] == [True] * bool(line), lines
    weights = {name: checkpoint.tensor(name) for name in tensor_shapes(checkpoint.config)}
    if checkpoint.config.tie_word_embeddings:
        weights[HEAD] = checkpoint.tensor(HEAD)
    expected = AutoModelForCausalLM.from_pretrained(theirs, dtype=torch.float32).eval()
    with torch.no_grad():
        judge = hf_checkpoint(model)(TOKENS).logits  # what `evaluation` and `quantize` compare with
        assert (judge - expected(TOKENS).logits).abs().max() < 1e-4
        ours = hf_model(checkpoint.config, weights)(TOKENS).logits
        assert (ours - expected(TOKENS).logits).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["weights.safetensors", "model-00001-of-00001.safetensors"])
def test_one_safetensors_file_of_another_name(model, cache, right, name):
    (model / WEIGHTS).rename(model / name)
    assert_same(load(model, cache), right)


def renamed(prefix: str):
    return lambda tensors: {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def of_qwen3(tensors: dict) -> dict:
    norms = {name.replace("q_proj.bias", "q_norm.weight"): torch.ones(32) for name in tensors if "q_proj.bias" in name}
    return norms | {name: tensor for name, tensor in tensors.items() if not name.endswith(".bias")}


def ended(before: str, after: str):
    """Tensors that end in `before` end in `after`."""
    return lambda tensors: {
        name.removesuffix(before) + after if name.endswith(before) else name: tensor for name, tensor in tensors.items()
    }


GATE = "model.layers.0.mlp.gate_proj."
# id: file, change, words of the line
REFUSED = {
    "of Qwen3": (WEIGHTS, of_qwen3,
        "q_proj.bias (and 11 more) missing, model.layers.0.self_attn.q_norm.weight (and 3 more) found"),
    "without biases": (
        WEIGHTS, lambda t: {k: v for k, v in t.items() if not k.endswith("bias")}, "no layer has self_attn.q_proj.bias",
    ),
    "not whole": (WEIGHTS, {Q_BIAS: None}, f"{Q_BIAS} missing, which config.json asks for; download"),
    "not whole, with a value head": (WEIGHTS, {Q_BIAS: None} | VALUE_HEAD,
        f"{Q_BIAS} missing, which config.json asks for; download"),
    "of a reward": (WEIGHTS, {HEAD: None, "score.weight": torch.ones(1, 256)}, f"{HEAD} missing, score.weight found"),
    "tied, a head of another size": (
        WEIGHTS, {HEAD: torch.ones(1, 256)}, f"{HEAD} must be [1056, 256] by config.json, got [1, 256]",
    ),
    "unmerged": (WEIGHTS, ended("gate_proj.weight", "gate_proj.lora_A.weight"), "these are a LoRA adapter's: merge it"),
    "LoRA beside": (WEIGHTS, {f"{GATE}lora_A.weight": torch.ones(2, 256)},
        "unknown .*these are a LoRA adapter's: merge it"),
    "AWQ, GPTQ": (WEIGHTS, ended("proj.weight", "proj.qweight"), "qweight.* found; these are a quantized checkpoint's"),
    "fp8": (WEIGHTS, {f"{GATE}weight_scale_inv": torch.ones(2)}, "unknown .*these are a quantized checkpoint's"),
    "MLX": (WEIGHTS, {f"{GATE}scales": torch.ones(2)}, "unknown .*these are a quantized checkpoint's"),
    "bitsandbytes": (WEIGHTS, {f"{GATE}weight.absmax": torch.ones(2)}, "unknown .*these are a quantized checkpoint's"),
    "more layers": (CONFIG, dict(num_hidden_layers=1, layer_types=None), "model.layers.1.*and .* more.*1 layers"),
    **{f"of {name}": (WEIGHTS, {Q_BIAS: torch.zeros(896).to(dtype)}, f"must be one of .*, got {name}.*unquantized")
        for dtype, name in ((torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.float64, "F64"))},
    "compressed-tensors": (WEIGHTS, ended("proj.weight", "proj.weight_packed"), "these are a quantized checkpoint's"),
    **{field: (CONFIG, {field: dict(quant_method="awq")}, f"{field} is present; use the unquantized checkpoint")
        for field in QUANTIZED},
} | {
    f"begins with {prefix!r}": (WEIGHTS, renamed(prefix),
        f"model.embed_tokens.weight is named {prefix}embed_tokens.weight here")
    for prefix in (
        "", "base_model.model.model.", "model.language_model.", "language_model.model.", "_orig_mod.model.",
        "module.model.",
        "pretrained_model.model.", "transformer.",
    )
}  # fmt: skip


@pytest.mark.parametrize("row", REFUSED)
def test_a_checkpoint_is_refused_with_the_true_reason(model, row):
    file, fields, words = REFUSED[row]
    change(model, file, fields)
    with pytest.raises(UserError, match=words if ".*" in words else re.escape(words)) as caught:
        Checkpoint.open(model)
    assert str(model) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("weights", [True, False], ids=["beside weights", "alone"])
@pytest.mark.parametrize("read", [Checkpoint.open, open_checkpoint])
def test_a_lora_adapter_is_refused_as_one(model, weights, read):
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen2.5-7B"}')
    if not weights:
        (model / CONFIG).unlink()
        (model / WEIGHTS).rename(model / "adapter_model.safetensors")
    with pytest.raises(UserError, match="a LoRA adapter of Qwen/Qwen2.5-7B; merge it"):
        read(model)


def test_several_safetensors_files_without_an_index(model):
    for number in (1, 2):
        shutil.copy(model / WEIGHTS, model / f"model-0000{number}-of-00002.safetensors")
    (model / WEIGHTS).unlink()
    with pytest.raises(UserError, match="holds 2 safetensors files and no model.safetensors.index"):
        Checkpoint.open(model)


def without_tokenizer_json(model: Path) -> None:
    """As Qwen2's first checkpoints are: vocab.json and merges.txt."""
    bpe = json.loads((model / "tokenizer.json").read_text())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in bpe["merges"]]
    (model / "vocab.json").write_text(json.dumps(bpe["vocab"]))
    (model / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    (model / "tokenizer.json").unlink()


TOKENIZERS = {
    "as it is": {},
    "Qwen2's": dict(tokenizer_class="Qwen2Tokenizer"),
    "special tokens as a list": dict(extra_special_tokens=SPECIAL, additional_special_tokens=ABSENT),
    "more special tokens": dict(extra_special_tokens=[*SPECIAL, "<|more|>"], additional_special_tokens=ABSENT),
    "special tokens by name": dict(extra_special_tokens={"end_token": "<|im_end|>"}),
    "Qwen2's, saved by 5": dict(
        tokenizer_class="Qwen2Tokenizer", extra_special_tokens=SPECIAL, additional_special_tokens=ABSENT,
        backend="tokenizers",
        add_prefix_space=None, is_local=True, added_tokens_decoder=ABSENT,
    ),
    "TokenizersBackend": dict(tokenizer_class="TokenizersBackend", extra_special_tokens=SPECIAL, backend="tokenizers"),
}  # fmt: skip


@pytest.mark.parametrize("json_file", [True, False], ids=["tokenizer.json", "vocab.json"])
@pytest.mark.parametrize("row", TOKENIZERS)
def test_a_tokenizer_is_read_as_hugging_face_reads_it(model, tmp_path, row, json_file):
    """4.57 is given what it refuses in its own form: special tokens as additional ones, and a class that it knows."""
    fields = TOKENIZERS[row]
    if not json_file:
        without_tokenizer_json(model)
    theirs = shutil.copytree(model, tmp_path / "theirs")
    change(model, TOKENIZER, fields)
    if not OF_5:
        known = "PreTrainedTokenizerFast" if json_file else "Qwen2Tokenizer"
        if not json_file or fields.get("tokenizer_class") == "TokenizersBackend":
            fields = fields | dict(tokenizer_class=known)
        if isinstance(fields.get("extra_special_tokens"), list):
            fields = fields | dict(additional_special_tokens=fields["extra_special_tokens"], extra_special_tokens={})
    change(theirs, TOKENIZER, fields)
    ours, expected = ChatTokenizer(model, instruct=True), AutoTokenizer.from_pretrained(theirs)
    text = "<|im_start|>user\nIt's 1234  words, été<|more|><|im_end|>\n<|endoftext|>"
    ids = expected.encode(text)
    if json_file:  # its rules, which a class of 5 would replace
        own = Tokenizer.from_file(f"{model / 'tokenizer.json'}")
        own.add_special_tokens(["<|more|>"] if row == "more special tokens" else [])
        ids = own.encode(text).ids
    assert ours.hf.encode(text) == ids
    assert ours.hf.decode(ids, skip_special_tokens=True) == expected.decode(ids, skip_special_tokens=True)
    assert expected.eos_token_id in ours.stop_ids
    turns = [{"role": "user", "content": "Hello"}]
    assert ours.apply_chat_template(turns) == expected.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True
    )
