"""The directory that the result is written to: a checkpoint once all is there, until then what a later run goes on from.

A layer is a file. After each the streams behind it are kept under `unfinished/`, with what the run was asked for; config
and index come last, so nobody takes half a model for a whole one. Every file is written under another name and renamed.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any, Mapping, Optional

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from models.common.errors import UserError
from models.common.json_file import read_json
from models.demos.qwen25_7b.quantize.layer import Streams
from models.demos.qwen25_7b.weights.checkpoint import INDEX_FILE

UNFINISHED = "unfinished"
SETTINGS = "settings.json"
COPIED = ("*.json", "merges.txt", "*.jinja")  # config, generation config, tokenizer, chat template
PART = ".part"


class Output:
    """settings: all that determines the result, as JSON has it. files: how many the weights are in."""

    def __init__(self, directory: Path, settings: Mapping[str, Any], files: int):
        self.directory, self.settings, self.files = directory, dict(settings), files
        self.work = directory / UNFINISHED

    def open(self) -> None:
        """Make the directory, or find in it what this run goes on from. UserError if it holds anything else."""
        asked = self.work / SETTINGS
        try:
            if not self.work.is_dir():
                if self.directory.exists() and (not self.directory.is_dir() or any(self.directory.iterdir())):
                    raise UserError(
                        f"--out {self.directory}: is there already, and no unfinished run: give a new directory"
                    )
                self.work.mkdir(parents=True)
            if not asked.exists():
                self._write_json(asked, self.settings)
            found = read_json(asked)
        except (OSError, ValueError) as error:
            raise UserError(f"--out {self.directory}: cannot be used ({error}): give a new directory") from error
        if found != self.settings:
            found = found if isinstance(found, dict) else {}
            other = [name for name in self.settings if found.get(name) != self.settings[name]]
            raise UserError(
                f"--out {self.directory}: holds an unfinished run with another {' and '.join(other)}: delete it, or give "
                "a new directory"
            )

    def resume(self) -> tuple[int, Optional[Streams]]:
        """How many layers are done, and the streams behind the last of them."""
        done = max((int(path.stem) for path in self.work.glob("*.safetensors")), default=0)
        if not done:
            return 0, None
        tensors = load_file(self._streams(done))
        return done, Streams(**tensors)

    def keep_layer(self, i: int, tensors: Mapping[str, torch.Tensor], streams: Streams) -> None:
        self._save(self.directory / self._name(i), tensors)
        self._save(self._streams(i + 1), streams._asdict())
        if i:
            self._streams(i).unlink(missing_ok=True)

    def finish(self, tensors: Mapping[str, torch.Tensor], source: Path) -> None:
        """What belongs to no layer, and what goes with the weights: then it is a checkpoint."""
        self._save(self.directory / self._name(self.files - 1), tensors)
        for pattern in COPIED:
            for file in sorted(source.glob(pattern)):
                if file.name != INDEX_FILE:
                    shutil.copyfile(file, self.directory / file.name)
        self._write_json(self.directory / INDEX_FILE, self._index())
        shutil.rmtree(self.work)

    def _index(self) -> dict[str, Any]:
        weight_map, size = {}, 0
        for name in map(self._name, range(self.files)):
            with safe_open(self.directory / name, framework="pt") as file:
                for tensor in file.keys():
                    weight_map[tensor] = name
                    size += file.get_tensor(tensor).nbytes
        return {"metadata": {"total_size": size}, "weight_map": weight_map}

    def _name(self, i: int) -> str:
        """As Hugging Face names the parts of a checkpoint."""
        return f"model-{i + 1:05}-of-{self.files:05}.safetensors"

    def _streams(self, layers: int) -> Path:
        return self.work / f"{layers}.safetensors"

    def _save(self, file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        part = file.with_name(file.name + PART)
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part, metadata={"format": "pt"})
            os.replace(part, file)
        except (OSError, SafetensorError) as error:  # the second is the library's for a full disk
            raise UserError(f"{file}: cannot be written ({error}); mend that, and the run goes on from here") from error

    def _write_json(self, file: Path, content: Any) -> None:
        part = file.with_name(file.name + PART)
        part.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(part, file)
