"""A Hugging Face checkpoint in safetensors files: checked when it is opened, then read tensor by tensor.

Opening reads config.json, the index and the files' headers (some kilobytes each). They give every
tensor's place, shape and dtype. An incomplete download, or a checkpoint of another model, is therefore
refused in a second and not after minutes of loading.
"""

import math
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Mapping, Optional, Sequence

import torch
from huggingface_hub import errors, snapshot_download
from safetensors import SafetensorError, safe_open

from ..config import BF16, ConfigError, DecoderConfig
from ..errors import UserError, shown, warn_once
from ..files import OTHER_WEIGHTS, FileError, other_format, read_json
from ..plans.chip import WORMHOLE
from ..plans.model_table import ModelTable
from ..plans.parallel_plan import ParallelPlan

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
DTYPES = "BF16", "F16", "F32"
ADAPTER_FILE = "adapter_config.json"
# The model's config, generation config, tokenizer and chat template: what is copied.
SMALL_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
READ_FILES = (*SMALL_FILES, INDEX_FILE, "pytorch_model.bin.index.json", "tekken.json", ADAPTER_FILE)
DOWNLOAD_AGAIN = "download the checkpoint again"
UNREADABLE = "cannot be read by this user; ask its owner for the right (chmod a+r)"
MERGE = "merge it with peft's merge_and_unload and write the result with save_pretrained"
OWN_CONFIG = "use the checkpoint's own config.json"
# Ends of names in AWQ, GPTQ, fp8, compressed-tensors, MLX and bitsandbytes.
QUANTIZED = ".qweight", "_packed", ".scales", "_scale", "_scale_inv", ".absmax", ".SCB"
HUB_ERRORS = {  # the first that fits
    errors.HFValidationError: "no hub id",
    errors.GatedRepoError: "the hub gives it only to users that accepted its terms",
    errors.RepositoryNotFoundError: "the hub has no such repository, or not for your token",
    errors.RevisionNotFoundError: "the hub has no such revision",
    (errors.LocalEntryNotFoundError, ConnectionError): "the hub cannot be reached",
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
    config: DecoderConfig
    headers: Mapping[str, TensorHeader] = field(repr=False)
    _checked: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def open(cls, model: str | Path, revision: Optional[str] = None) -> "Checkpoint":
        """Open and check a checkpoint: a local directory, or a hub id such as Qwen/Qwen2.5-7B-Instruct.

        revision: a commit, branch or tag of the hub id; default: its main branch.
        """
        directory = local_directory(model, (*READ_FILES, SINGLE_FILE), revision)
        config = DecoderConfig.from_json(directory / "config.json")
        if not (os.path.isdir(model) or (directory / SINGLE_FILE).exists()):
            # A repository may hold the weights twice, also as its publisher's consolidated.safetensors.
            files = weight_files(directory) if (directory / INDEX_FILE).exists() else [Path("*.safetensors")]
            local_directory(model, [file.name for file in files], directory.name)
        headers = _read_headers(directory)
        own = _with_own_head(headers, config)
        unread = _check_against_config(headers, own, directory)
        if own != config:
            warn_once(f"{directory}: {LM_HEAD} differs from the embedding and is used, against tie_word_embeddings")
        if unread:
            warn_once(f"{directory}: {_first_of(unread)} not read: no part of a model that generates text")
        return cls(directory, own, headers)

    def tensor(self, name: str) -> torch.Tensor:
        """Map one tensor into memory; nothing is kept here. The first read checks that its values are numbers."""
        if name == LM_HEAD and self.config.tie_word_embeddings:
            name = EMBEDDING
        file = self.headers[name].file
        tensor = _read(file, name)
        if name not in self._checked:
            check_numbers(tensor, f"{file}: {name}")
            self._checked.add(name)
        return tensor


def _read(file: Path, name: str) -> torch.Tensor:
    with safe_open(file, framework="pt") as tensors:
        return tensors.get_tensor(name)


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


def tensor_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this config has: what one chip alone reads, of any kind."""
    table = ModelTable(config, ParallelPlan.make(config, 1), BF16, WORMHOLE)
    shapes: dict[str, tuple[int, ...]] = {}
    for shard in table.shards:
        shapes |= shard.slice.tensor_shapes
    if config.tie_word_embeddings:
        del shapes[LM_HEAD]
    return shapes


def local_directory(model: str | Path, files: Sequence[str], revision: Optional[str] = None) -> Path:
    """The directory itself, or where those files of a hub id lie now. The hub's directories are named by commits."""
    if not str(model):
        raise CheckpointError("--model is empty; give the directory or the hub id of a checkpoint")
    if os.path.isdir(model):
        return _not_an_adapter(Path(model))
    try:
        directory = _download(str(model), revision=revision, allow_patterns=list(files))
    except Exception as error:  # bad id, no such repository, no network, no token, full disk
        at = f" at revision {revision}" if revision else ""
        kinds = (why for kind, why in HUB_ERRORS.items() if isinstance(error, kind))
        reason = next(kinds, f"{error}".partition("\n")[0][:100])
        raise CheckpointError(
            f"{model}{at}: no directory here, and {reason}; check the name and the network, or give a directory"
        ) from error
    return _not_an_adapter(Path(directory))


def _download(model: str, **options) -> str:
    """As snapshot_download, which takes what is on disk where the hub cannot be reached, but not for a broken proxy."""
    try:
        return snapshot_download(model, **options)
    except Exception as error:
        if type(error).__name__ not in ("ProxyError", "SSLError"):  # requests', or httpx's in hub 1
            raise
        return snapshot_download(model, local_files_only=True, **options)


def _not_an_adapter(directory: Path) -> Path:
    """The directory. ConfigError for a LoRA adapter, alone or beside weights: Hugging Face computes both."""
    file = directory / ADAPTER_FILE
    if not file.exists():
        return directory
    base = None
    with suppress(FileError, AttributeError):
        base = read_json(file).get("base_model_name_or_path")
    merged = f"; if these weights are merged already, remove {ADAPTER_FILE}"
    raise ConfigError(
        f"{directory}: a LoRA adapter{f' of {base}' if base else ''}; {MERGE}"
        f"{merged if (directory / 'config.json').exists() else ''}"
    )


def small_files(directory: Path) -> list[Path]:
    """The files of SMALL_FILES that are here. They are copied, so a link must not bring in another file's contents.

    CheckpointError: a link leads elsewhere than to the hub's own blobs.
    """
    found = [directory / name for name in SMALL_FILES if (directory / name).exists()]
    here = directory.resolve()
    for file in found:
        if file.resolve().parent not in (here, here.parent.parent / "blobs"):
            raise CheckpointError(f"{file}: a link to {file.resolve()}, which is not copied; put the file itself here")
    return found


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
            missing = f"{file}: missing or unreadable; {DOWNLOAD_AGAIN}"
            raise CheckpointError(f"{file}: {UNREADABLE}" if file.exists() else missing) from error
    return headers


def weight_files(directory: Path) -> list[Path]:
    """The single file, which Hugging Face prefers too, those that the index names, or one of another name."""
    if (directory / SINGLE_FILE).exists():
        return [directory / SINGLE_FILE]
    index = directory / INDEX_FILE
    if not index.exists():
        files = sorted(directory.glob("*.safetensors"))
        if len(files) == 1:
            return files
        if files:
            raise CheckpointError(
                f"{directory}: holds {len(files)} safetensors files and no {INDEX_FILE}; {DOWNLOAD_AGAIN}"
            )
        if any(directory.glob("pytorch_model*.bin*")):
            raise CheckpointError(
                f"{directory}: holds pytorch_model.bin but no safetensors; load it with transformers and write it "
                "again with save_pretrained"
            )
        missing = f"{directory}: holds neither {SINGLE_FILE} nor {INDEX_FILE}; {DOWNLOAD_AGAIN}"
        raise CheckpointError(other_format(directory, OTHER_WEIGHTS) or missing)
    contents = read_json(index)
    files = contents.get("weight_map") if isinstance(contents, dict) else None
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise CheckpointError(f"{index}: has no weight_map of tensor names to file names; {DOWNLOAD_AGAIN}")
    for file in files.values():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: names {shown(file)}, and weights lie beside their index, in .safetensors; {DOWNLOAD_AGAIN}"
            )
    return [directory / file for file in sorted(set(files.values()))]


def _with_own_head(headers: Mapping[str, TensorHeader], config: DecoderConfig) -> DecoderConfig:
    """The config, untied if the weights have an LM head that differs from the embedding, as in transformers 5."""
    if not (config.tie_word_embeddings and {LM_HEAD, EMBEDDING} <= headers.keys()):
        return config
    head, embedding = (_read(headers[name].file, name) for name in (LM_HEAD, EMBEDDING))
    same = head.shape == embedding.shape and head.to(embedding.dtype).equal(embedding)
    return config if same else replace(config, tie_word_embeddings=False)


def _check_against_config(headers: Mapping[str, TensorHeader], config: DecoderConfig, directory: Path) -> list[str]:
    """Names of tensors that the model does not read. CheckpointError: the weights are another config's."""
    layers = len({name.split(".")[2] for name in headers if name.startswith("model.layers.")})
    # Layers of a checkpoint that is not whole are looked for first, before a billion names are made.
    count = min(config.num_hidden_layers, max(layers, 1))
    expected = tensor_shapes(replace(config, num_hidden_layers=count))
    # Rotary frequencies, and an LM head of tied embeddings, follow from others.
    harmless = {LM_HEAD, *(name for name in headers if name.endswith(".rotary_emb.inv_freq"))}
    surplus = [name for name in headers if name not in expected and name not in harmless]
    missing = [name for name in expected if name not in headers]
    if missing:
        raise CheckpointError(f"{directory}: {_why_missing(missing, surplus, count)}")
    if config.num_hidden_layers > layers:
        raise CheckpointError(
            f"{directory}: config.json asks for {config.num_hidden_layers} layers, the weights have {layers}; "
            f"{DOWNLOAD_AGAIN}, with its own config.json"
        )
    unknown = [name for name in surplus if name.startswith("model.")]
    if unknown:
        raise CheckpointError(
            f"{headers[unknown[0]].file}: {_first_of(unknown)} unknown to a model of this config.json "
            f"({config.num_hidden_layers} layers); {_kind_of(unknown) or OWN_CONFIG}"
        )
    for name, shape in expected.items():
        header = headers[name]
        if header.shape != shape:
            raise CheckpointError(
                f"{header.file}: {name} must be {list(shape)} by config.json, got {list(header.shape)}; {OWN_CONFIG}"
            )
        if header.dtype not in DTYPES:
            raise CheckpointError(
                f"{header.file}: {name} must be one of {', '.join(DTYPES)}, got {header.dtype}; "
                "use the unquantized checkpoint"
            )
    return surplus


def _why_missing(missing: list[str], surplus: list[str], layers: int) -> str:
    """Why tensors are missing: another name, kind or architecture, or a download. layers: those looked for."""
    name = missing[0]
    end = "." + name.removeprefix("model.")
    found = next((other for other in surplus if f".{other}".endswith(end)), None)
    if found:
        return (
            f"{name} is named {found} here; write the checkpoint again with save_pretrained of its ...ForCausalLM, for "
            "a LoRA adapter after peft's merge_and_unload"
        )
    kind = _kind_of(surplus)
    if kind:
        return f"{_first_of(missing)} missing, {_first_of(surplus)} found; {kind}"
    if not {EMBEDDING, LM_HEAD} & set(missing):  # a value head beside an incomplete model is not the reason
        surplus = [other for other in surplus if other.startswith("model.")]
    if surplus:
        return (
            f"{_first_of(missing)} missing, {_first_of(surplus)} found, which no model of this config.json has; "
            "use a text checkpoint with its own config.json"
        )
    part = name.split(".", 3)[-1]
    if layers > 1 and sum(other.endswith(f".{part}") for other in missing) == layers:
        return f"no layer has {part}, which every model of this model_type has; use the checkpoint's own config.json"
    return f"{_first_of(missing)} missing, which config.json asks for; {DOWNLOAD_AGAIN}, with its own config.json"


def _kind_of(names: list[str]) -> Optional[str]:
    """What to do about tensors of a LoRA adapter or of a quantized checkpoint; None for others."""
    if any(".lora_" in name for name in names):
        return f"these are a LoRA adapter's: {MERGE}"
    if any(name.endswith(QUANTIZED) for name in names):
        return "these are a quantized checkpoint's: use the unquantized one"
    return None


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
