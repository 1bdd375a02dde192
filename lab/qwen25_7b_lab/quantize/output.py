"""The output directory: a checkpoint once all is written, and before that a run to resume.

Each layer is a file. After a layer the streams are kept under `unfinished/`, beside the settings of the run. Config and
index come last, so no loader takes half a model for a complete one. Every file is written under another name and
renamed.
"""

import shutil
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import FileError, check_directory, read_json, write_json, write_whole
from models.demos.qwen25_7b.weights.checkpoint import INDEX_FILE

from .layer import Streams

UNFINISHED = "unfinished"
SETTINGS = "settings.json"


def check_resumable(directory: Path) -> None:
    """UserError unless the directory is new or empty, or has a run to resume, and can be written to."""
    check_directory("--out", directory)
    if not (directory / UNFINISHED / SETTINGS).exists() and directory.exists() and any(directory.iterdir()):
        raise UserError(f"--out {directory}: exists, and holds no unfinished run: give a new directory")


class Output:
    """settings: everything that determines the result, as JSON. files: the number of weight files."""

    def __init__(self, directory: Path, settings: Mapping[str, Any], files: int):
        self.directory = directory
        self.settings = dict(settings)
        self.files = files
        self.work = directory / UNFINISHED

    def open(self) -> None:
        """Make the directory, or find a run to resume in it. UserError: the directory holds anything else."""
        asked = self.work / SETTINGS
        check_resumable(self.directory)
        if not asked.exists():
            write_json(asked, self.settings)
        found = read_json(asked, "--out")
        other = [name for name in self.settings if found.get(name) != self.settings[name]]
        if other:
            raise UserError(
                f"--out {self.directory}: holds an unfinished run with another {' and '.join(other)}: delete it, or "
                "give a new directory"
            )

    def resume(self) -> tuple[int, Optional[Streams]]:
        """The number of finished layers, and the streams after the last of them."""
        done = max((int(file.stem) for file in self.work.glob("*.safetensors")), default=0)
        if not done:
            return 0, None
        file = self._streams(done)
        try:
            return done, Streams(**load_file(file))
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file}: is damaged ({error}): delete {self.directory} and begin again") from error

    def keep_layer(self, i: int, tensors: Mapping[str, torch.Tensor], streams: Streams) -> None:
        self._save(self.directory / self._name(i), tensors)
        self._save(self._streams(i + 1), streams._asdict())
        if i:
            self._streams(i).unlink(missing_ok=True)

    def finish(self, tensors: Mapping[str, torch.Tensor], small: Sequence[Path]) -> None:
        """Write the tensors of no layer, then config and tokenizer, which are the small files, and the index."""
        self._save(self.directory / self._name(self.files - 1), tensors)
        with _resumable():
            for file in small:
                write_whole(self.directory / file.name, partial(shutil.copyfile, file))
            write_json(self.directory / INDEX_FILE, self._index())
        for ours in (self.work / SETTINGS, *self.work.glob("*.safetensors")):
            ours.unlink(missing_ok=True)
        with suppress(OSError):  # somebody's file lies there
            self.work.rmdir()

    def _index(self) -> dict[str, Any]:
        weight_map, size = {}, 0
        for name in map(self._name, range(self.files)):
            with safe_open(self.directory / name, framework="pt") as file:
                for tensor in file.keys():
                    weight_map[tensor] = name
                    size += file.get_tensor(tensor).nbytes
        return {"metadata": {"total_size": size}, "weight_map": weight_map}

    def _name(self, i: int) -> str:
        """Hugging Face's name for a file of a checkpoint."""
        return f"model-{i + 1:05}-of-{self.files:05}.safetensors"

    def _streams(self, layers: int) -> Path:
        return self.work / f"{layers}.safetensors"

    def _save(self, file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        with _resumable():
            write_whole(file, lambda part: save_file(whole, part, metadata={"format": "pt"}))


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except (FileError, SafetensorError) as error:  # SafetensorError: a full disk, too
        raise UserError(f"{error}; once there is room, the same command resumes here") from error
