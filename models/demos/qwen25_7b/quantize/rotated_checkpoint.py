"""The directory that `rotate` writes: a checkpoint in float32, whole or not at all.

float32, because rotated values are not bfloat16's, and rounding twice costs a part of the gain (docs/numerics.md).
"""

import json
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Iterator

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from models.common.errors import UserError
from models.common.interrupt import shielded
from models.common.json_file import read_json
from models.demos.qwen25_7b.quantize.rotation import Rotation
from models.demos.qwen25_7b.weights import Checkpoint
from models.demos.qwen25_7b.weights.checkpoint import INDEX_FILE, SMALL_FILES, tensor_shapes

OnProgress = Callable[[int, int], None]  # files written, files in all
DTYPE = torch.float32
CONFIG = "config.json"


def write_rotated(model: str, out: Path, progress: OnProgress = lambda *_: None) -> None:
    """Write the checkpoint `model`, rotated, to `out`, which is new or empty.

    Memory: twice a layer or a table of the vocabulary, in float32: 4.4 GB for the 7B.
    UserError: `out` holds something or cannot be written, or the model cannot be rotated.
    """
    _check_new(out)
    checkpoint = Checkpoint.open(model)
    try:
        rotation = Rotation.sorting(checkpoint.config, checkpoint.tensor)
    except UserError as error:
        raise UserError(f"{checkpoint.directory}: {error}") from error
    parts = list(_files(checkpoint, rotation))
    names = [f"model-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
    weight_map, size = {}, 0
    with _whole_directory(out) as directory:
        progress(0, len(parts))
        for i, (name, make) in enumerate(zip(names, parts)):
            tensors = make()
            save_file(tensors, directory / name, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(tensors, name)
            size += sum(tensor.nbytes for tensor in tensors.values())
            progress(i + 1, len(parts))
        for pattern in SMALL_FILES:
            for file in sorted(checkpoint.directory.glob(pattern)):
                shutil.copyfile(file, directory / file.name)
        _write_json(directory / CONFIG, rotated_config(read_json(checkpoint.directory / CONFIG)))
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        _write_json(directory / INDEX_FILE, index)


def rotated_config(fields: dict[str, Any]) -> dict[str, Any]:
    """config.json's fields for the rotated model: the LM head is no longer the embedding."""
    dtypes = {name: "float32" for name in ("dtype", "torch_dtype") if name in fields}
    return {**fields, **dtypes, "tie_word_embeddings": False}


def _files(
    checkpoint: Checkpoint, rotation: Rotation
) -> Iterator[Callable[[], dict[str, torch.Tensor]]]:
    """Yield a function for each file, which makes the file's tensors by their Hugging Face names."""
    for i in range(checkpoint.config.num_hidden_layers):
        yield lambda i=i: _layer(checkpoint, rotation, f"model.layers.{i}.")
    yield lambda: rotation.turned_embedding(checkpoint.tensor, DTYPE)
    yield lambda: rotation.turned_head(checkpoint.tensor, DTYPE)


def _layer(checkpoint: Checkpoint, rotation: Rotation, prefix: str) -> dict[str, torch.Tensor]:
    names = [name for name in tensor_shapes(checkpoint.config) if name.startswith(prefix)]
    tensors = {name.removeprefix(prefix): checkpoint.tensor(name) for name in names}
    return {
        prefix + name: tensor.to(DTYPE).contiguous()
        for name, tensor in rotation.turned_layer(tensors).items()
    }


def _check_new(out: Path) -> None:
    """UserError unless `out` is missing or an empty directory."""
    if os.path.lexists(out) and (out.is_symlink() or not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: exists; give a new directory")


@contextmanager
def _whole_directory(out: Path) -> Iterator[Path]:
    """Yield a directory beside `out`. It is renamed to `out` at the end, and removed on an error or an interrupt."""
    made = [directory for directory in out.absolute().parents if not directory.exists()]
    part = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        yield part
        part.chmod(0o755)  # mkdtemp's is for its owner alone
        os.rename(part, out)
    except BaseException as error:
        with shielded():
            if part is not None:
                shutil.rmtree(part, ignore_errors=True)
            with suppress(OSError):  # a file that is not ours stays
                for directory in made:
                    directory.rmdir()
        if isinstance(error, (OSError, SafetensorError)):  # SafetensorError: a full disk, too
            raise UserError(
                f"--out {out}: cannot be written ({error}); make room, or give another place"
            ) from error
        raise


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")
