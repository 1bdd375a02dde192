"""A Hugging Face checkpoint in safetensors files: checked when it is opened, then read tensor by tensor.

Opening reads config.json, the index and the files' headers (some kilobytes each). They give every
tensor's place, shape and dtype. An incomplete download, or a checkpoint of another model, is therefore
refused in a second and not after minutes of loading.
"""

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Optional, Sequence

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError, safe_open

from ..config import QwenConfig
from ..errors import UserError
from ..files import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
DTYPES = "BF16", "F16", "F32"
SMALL_FILES = ("*.json", "merges.txt", "*.jinja")  # config, index, tokenizer, chat template
WEIGHT_FILES = ("*.safetensors",)
DOWNLOAD_AGAIN = "download the checkpoint again"


HUB_ERRORS = {  # the first that fits
    HFValidationError: "no hub id",
    GatedRepoError: "the hub gives it only to users that accepted its terms",
    RepositoryNotFoundError: "the hub has no such repository, or not for your token",
    RevisionNotFoundError: "the hub has no such revision",
    (LocalEntryNotFoundError, ConnectionError): "the hub cannot be reached",
}


class CheckpointError(UserError):
    """A checkpoint that is not whole, or is not the model that its config.json describes."""


@dataclass(frozen=True)
class TensorHeader:
    """A tensor's entry in the header of a safetensors file."""

    file: Path
    dtype: str  # safetensors' name, such as BF16
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by their Hugging Face names. Holds headers only: memory does not grow with the model."""

    directory: Path
    config: QwenConfig
    headers: Mapping[str, TensorHeader] = field(repr=False)
    _checked: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def open(cls, model: str | Path, revision: Optional[str] = None) -> "Checkpoint":
        """Open and check a checkpoint: a local directory, or a hub id such as Qwen/Qwen2.5-7B-Instruct.

        revision: a commit, branch or tag of the hub id; default: its main branch.
        """
        directory = local_directory(model, revision=revision)
        config = QwenConfig.from_json(directory / "config.json")
        headers = _read_headers(directory)
        _check_against_config(headers, config, directory)
        return cls(directory, config, headers)

    def tensor(self, name: str) -> torch.Tensor:
        """Map one tensor into memory; nothing is kept here. The first read checks that its values are numbers."""
        if name == LM_HEAD and self.config.tie_word_embeddings:
            name = EMBEDDING
        file = self.headers[name].file
        with safe_open(file, framework="pt") as tensors:
            tensor = tensors.get_tensor(name)
        if name not in self._checked:
            check_numbers(tensor, f"{file}: {name}")
            self._checked.add(name)
        return tensor


def check_numbers(tensor: torch.Tensor, name: str) -> None:
    """CheckpointError if a value is no number, or is none any more once it is bfloat16, as all that goes to a chip is.

    The least and the largest tell: a NaN becomes both, and rounding keeps the order. That takes 12 ms for 136 MB.
    """
    if torch.stack(torch.aminmax(tensor)).bfloat16().isfinite().all():
        return
    place = tuple((~tensor.bfloat16().isfinite()).nonzero()[0].tolist())
    value = tensor[place].item()
    why = "is not a number" if not math.isfinite(value) else "is more than bfloat16 holds (3.39e38)"
    raise CheckpointError(f"{name}{list(place)} is {value}, which {why}; {DOWNLOAD_AGAIN}")


def tensor_shapes(config: QwenConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this config has."""
    hidden, mlp, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    q_width = config.num_attention_heads * config.head_dim
    kv_width = config.num_key_value_heads * config.head_dim
    layer = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_width, hidden),
        "self_attn.q_proj.bias": (q_width,),
        "self_attn.k_proj.weight": (kv_width, hidden),
        "self_attn.k_proj.bias": (kv_width,),
        "self_attn.v_proj.weight": (kv_width, hidden),
        "self_attn.v_proj.bias": (kv_width,),
        "self_attn.o_proj.weight": (hidden, q_width),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (mlp, hidden),
        "mlp.up_proj.weight": (mlp, hidden),
        "mlp.down_proj.weight": (hidden, mlp),
    }
    shapes = {EMBEDDING: (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (vocab, hidden)
    for i in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def local_directory(
    model: str | Path,
    files: Sequence[str] = (*SMALL_FILES, *WEIGHT_FILES),
    revision: Optional[str] = None,
) -> Path:
    """The directory itself, or where those files of a hub id lie now. The hub's directories are named by commits."""
    if not str(model):
        raise CheckpointError("--model is empty; give the directory or the hub id of a checkpoint")
    if os.path.isdir(model):  # and not Path's, which fails for a name of 5,000 characters
        return Path(model)
    try:
        return Path(snapshot_download(str(model), revision=revision, allow_patterns=list(files)))
    except Exception as error:  # bad id, no such repository, no network, no token, full disk
        at = f" at revision {revision}" if revision else ""
        kinds = (why for kind, why in HUB_ERRORS.items() if isinstance(error, kind))
        reason = next(kinds, f"{error}".partition("\n")[0][:100])
        raise CheckpointError(
            f"{model}{at}: no directory here, and {reason}; check the name and the network, or give a directory"
        ) from error


def _read_headers(directory: Path) -> dict[str, TensorHeader]:
    """Headers of all tensors in a directory. Data is not read."""
    headers = {}
    for file in weight_files(directory):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():
                    entry = tensors.get_slice(name)
                    headers[name] = TensorHeader(file, entry.get_dtype(), tuple(entry.get_shape()))
        except SafetensorError as error:
            size = file.stat().st_size
            raise CheckpointError(
                f"{file}: truncated or no safetensors file, {size} bytes ({error}); {DOWNLOAD_AGAIN}"
            ) from error
        except OSError as error:
            raise CheckpointError(f"{file}: missing or unreadable; {DOWNLOAD_AGAIN}") from error
    return headers


def weight_files(directory: Path) -> list[Path]:
    """The single file, which Hugging Face prefers too, or those that the index names."""
    if (directory / SINGLE_FILE).exists():
        return [directory / SINGLE_FILE]
    index = directory / INDEX_FILE
    if not index.exists():
        if any(directory.glob("pytorch_model*.bin*")):
            raise CheckpointError(
                f"{directory}: holds pytorch_model.bin but no safetensors; load it with transformers and write it "
                "again with save_pretrained"
            )
        raise CheckpointError(
            f"{directory}: holds neither {SINGLE_FILE} nor {INDEX_FILE}; {DOWNLOAD_AGAIN}"
        )
    contents = read_json(index)
    files = contents.get("weight_map") if isinstance(contents, dict) else None
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise CheckpointError(
            f"{index}: has no weight_map of tensor names to file names; {DOWNLOAD_AGAIN}"
        )
    return [directory / file for file in sorted(set(files.values()))]


def _check_against_config(
    headers: Mapping[str, TensorHeader], config: QwenConfig, directory: Path
) -> None:
    layers = len({name.split(".")[2] for name in headers if name.startswith("model.layers.")})
    if config.num_hidden_layers > layers:  # before a billion names are made
        raise CheckpointError(
            f"{directory}: config.json asks for {config.num_hidden_layers} layers, the weights have {layers}; "
            f"{DOWNLOAD_AGAIN}, with its own config.json"
        )
    expected = tensor_shapes(config)
    missing = [name for name in expected if name not in headers]
    if missing:
        raise CheckpointError(
            f"{directory}: {_first_of(missing)} missing, which config.json asks for; {DOWNLOAD_AGAIN}, with its own "
            f"config.json"
        )
    surplus = [name for name in headers if name not in expected and not _is_harmless(name)]
    if surplus:
        raise CheckpointError(
            f"{headers[surplus[0]].file}: {_first_of(surplus)} unknown to a model of this config.json "
            f"({config.num_hidden_layers} layers); use the checkpoint's own config.json"
        )
    for name, shape in expected.items():
        header = headers[name]
        if header.shape != shape:
            raise CheckpointError(
                f"{header.file}: {name} must be {list(shape)} by config.json, got {list(header.shape)}; "
                f"use the checkpoint's own config.json"
            )
        if header.dtype not in DTYPES:
            raise CheckpointError(
                f"{header.file}: {name} must be one of {', '.join(DTYPES)}, got {header.dtype}; "
                f"use the unquantized checkpoint"
            )


def _is_harmless(name: str) -> bool:
    """Whether a surplus tensor follows from the other tensors: rotary frequencies, or an LM head beside
    tied embeddings."""
    return name.endswith(".rotary_emb.inv_freq") or name == LM_HEAD


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
