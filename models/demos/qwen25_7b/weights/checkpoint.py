"""A Hugging Face checkpoint in safetensors files: checked when it is opened, then read tensor by tensor.

Opening reads config.json, the index and the files' headers (some kilobytes each). They give every
tensor's place, shape and dtype. An incomplete download, or a checkpoint of another model, is therefore
refused in a second and not after minutes of loading.
"""

import errno
import math
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Optional, Sequence

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open

from models.common.errors import UserError
from models.common.json_file import parse_json, read_json
from models.common.user_file import KINDS, FileError

from ..config import QwenConfig

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
DTYPES = {"BF16": 2, "F16": 2, "F32": 4}  # bytes an element
SMALL_FILES = ("*.json", "merges.txt", "*.jinja")  # config, index, tokenizer, chat template
WEIGHT_FILES = ("*.safetensors",)
MOST_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
DOWNLOAD_AGAIN = "download the checkpoint again"


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

    @property
    def files(self) -> frozenset[str]:
        """Paths of its safetensors files, in its directory."""
        return frozenset(
            f"{header.file.relative_to(self.directory)}" for header in self.headers.values()
        )

    @property
    def element_bytes(self) -> int:
        """Of the widest tensor."""
        return max(DTYPES.get(header.dtype, 0) for header in self.headers.values())

    def tensor(self, name: str) -> torch.Tensor:
        """Map one tensor into memory and check that its values are numbers; nothing is kept here."""
        if name == LM_HEAD and self.config.tie_word_embeddings:
            name = EMBEDDING
        file = self.headers[name].file
        with safe_open(file, framework="pt") as tensors:
            tensor = tensors.get_tensor(name)
        check_numbers(tensor, f"{file}: {name}")
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


def check_name(model: str | Path) -> None:
    """CheckpointError for a name that neither a directory nor a hub id can have."""
    if not str(model):
        raise CheckpointError("--model is empty; give the directory or the hub id of a checkpoint")
    if "\0" in str(model):
        raise CheckpointError(
            f"--model {str(model)!r} has a zero byte; give the directory or the hub id of a checkpoint"
        )


def local_directory(
    model: str | Path,
    files: Sequence[str] = (*SMALL_FILES, *WEIGHT_FILES),
    revision: Optional[str] = None,
) -> Path:
    """The directory itself, or where those files of a hub id lie now. The hub's directories are named by commits."""
    check_name(model)
    if os.path.isdir(model):  # and not Path's, which fails for a name of 5,000 characters
        if revision is not None and not _is_snapshot(Path(model), revision):
            raise CheckpointError(
                f"--revision {revision}: {model} is a directory, which has no revisions: leave out --revision, or give "
                "a hub id"
            )
        if not _is_utf_8(model):
            raise CheckpointError(
                f"{model}: the name is not UTF-8, as the safetensors library wants it; rename it"
            )
        return Path(model)
    try:
        return Path(snapshot_download(str(model), revision=revision, allow_patterns=list(files)))
    except (
        Exception
    ) as error:  # bad id, no such repository, no network, no token, full disk: one remedy for all
        at = f" at revision {revision}" if revision else ""
        raise CheckpointError(
            f"{model}{at}: neither a directory here nor a Hugging Face repository that could be had "
            f"({type(error).__name__}); check the name and the network, or give a directory"
        ) from error


def snapshot_commit(directory: Path) -> Optional[str]:
    """Return the commit of a directory in the hub's cache, <repository>/snapshots/<commit>; None for other directories."""
    return directory.name if directory.parent.name == "snapshots" else None


def _is_snapshot(directory: Path, revision: str) -> bool:
    """Whether a directory in the hub's cache is this revision. Offline, vLLM gives both."""
    commit = snapshot_commit(directory)
    reference = directory.parent.parent / "refs" / revision
    return commit is not None and (
        commit == revision or (reference.is_file() and reference.read_text().strip() == commit)
    )


def _read_headers(directory: Path) -> dict[str, TensorHeader]:
    """Headers of all tensors in a directory; where both forms are there, Hugging Face takes the single file too."""
    if os.path.lexists(directory / SINGLE_FILE):
        _check_is_file(directory / SINGLE_FILE, "the weights")
        return _read_file_headers(directory / SINGLE_FILE)
    if os.path.lexists(directory / INDEX_FILE):
        return _read_shard_headers(directory)
    if any(directory.glob("pytorch_model*.bin*")):
        raise CheckpointError(
            f"{directory}: holds pytorch_model.bin but no safetensors; load it with transformers and write it again "
            f"with save_pretrained"
        )
    raise CheckpointError(
        f"{directory}: holds neither {SINGLE_FILE} nor {INDEX_FILE}; {DOWNLOAD_AGAIN}"
    )


def _read_shard_headers(directory: Path) -> dict[str, TensorHeader]:
    index = directory / INDEX_FILE
    file_of = _read_index(index)
    headers = {}
    for file_name in sorted(set(file_of.values())):
        # The hub's cache links files to a blobs folder elsewhere, so the check is of the name and not of
        # its target.
        if Path(file_name).is_absolute() or ".." in Path(file_name).parts:
            raise CheckpointError(
                f"{index}: names {file_name!r}, which is outside the directory; {DOWNLOAD_AGAIN}"
            )
        file = directory / file_name
        _check_is_file(file, f"named by {INDEX_FILE}")
        for name, header in _read_file_headers(file).items():
            if name in headers:
                raise CheckpointError(
                    f"{name}: in both {headers[name].file.name} and {file.name} of {directory}; remove one of them"
                )
            headers[name] = header
    for name, file_name in file_of.items():
        if name not in headers or headers[name].file != directory / file_name:
            raise CheckpointError(
                f"{directory / file_name}: does not hold {name}, which {INDEX_FILE} puts there; {DOWNLOAD_AGAIN}"
            )
    return headers


def _check_is_file(file: Path, role: str) -> None:
    try:
        kind = stat.S_IFMT(os.stat(file).st_mode)
    except (FileNotFoundError, ValueError):  # ValueError: a zero byte, which no file's name has
        raise CheckpointError(f"{file}: missing, but {role}; {DOWNLOAD_AGAIN}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise CheckpointError(f"{file}: missing, but {role}; {DOWNLOAD_AGAIN}") from None
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error
    if kind != stat.S_IFREG:
        found = KINDS.get(kind, "no regular file")
        raise CheckpointError(f"{file}: is {found}, but {role}; {DOWNLOAD_AGAIN}")


def _read_index(index: Path) -> dict[str, str]:
    """The index's weight_map: file name of each tensor."""
    try:
        contents = read_json(index)
    except FileError as error:
        raise CheckpointError(f"{error}; {DOWNLOAD_AGAIN}") from error
    weight_map = contents.get("weight_map") if isinstance(contents, dict) else None
    if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) for file in weight_map.values()
    ):
        raise CheckpointError(
            f"{index}: has no weight_map of tensor names to file names; {DOWNLOAD_AGAIN}"
        )
    return weight_map


def _read_file_headers(file: Path) -> dict[str, TensorHeader]:
    """Headers of one file. The library checks that they cover the file exactly; data is not read."""
    try:
        found, claimed = file.stat().st_size, _claimed_bytes(file)
        if found < claimed:
            raise CheckpointError(
                f"{file}: truncated, {found} bytes where its header claims {claimed}; {DOWNLOAD_AGAIN}"
            )
        with safe_open(file, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}
            return {
                name: TensorHeader(file, s.get_dtype(), tuple(s.get_shape()))
                for name, s in slices.items()
            }
    except SafetensorError as error:
        raise CheckpointError(
            f"{file}: damaged, {found} bytes ({error}); {DOWNLOAD_AGAIN}"
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{file}: cannot be read ({error.strerror}); check its permissions"
        ) from error


def _claimed_bytes(file: Path) -> int:
    """The least size that a safetensors file can have, going by its first bytes.

    Layout: the header's length (8 bytes, little endian), the header (JSON), the data.
    """
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if 8 + length > file.stat().st_size:
            return 8 + length
        if length > MOST_HEADER_BYTES:
            raise CheckpointError(
                f"{file}: its header is not a safetensors header; {DOWNLOAD_AGAIN}"
            )
        try:
            entries = parse_json(stream.read(length))
            ends = [
                entry["data_offsets"][1]
                for name, entry in entries.items()
                if name != "__metadata__"
            ]
            return 8 + length + max(ends, default=0)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise CheckpointError(
                f"{file}: its header is not a safetensors header; {DOWNLOAD_AGAIN}"
            ) from error


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


def _is_utf_8(path: str | Path) -> bool:
    """Python hides in surrogates what is not."""
    return str(path) == str(path).encode(errors="replace").decode()


def _is_harmless(name: str) -> bool:
    """Whether a surplus tensor follows from the other tensors: rotary frequencies, or an LM head beside
    tied embeddings."""
    return name.endswith(".rotary_emb.inv_freq") or name == LM_HEAD


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
