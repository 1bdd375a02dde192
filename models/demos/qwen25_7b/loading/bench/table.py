"""The benchmark: each load in a process of its own, beside what it cannot be faster than."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from models.common.errors import UserError
from models.demos.qwen25_7b.config import QwenConfig
from models.demos.qwen25_7b.loading.bench.checkpoint import make_checkpoint
from models.demos.qwen25_7b.loading.bench.floors import evict, reading
from models.demos.qwen25_7b.loading.bench.process import Usage


@dataclass(frozen=True)
class Bench:
    """directory: room for the checkpoint and its cache, 24 GB for the 7B."""

    directory: Path
    mesh: str
    tp: int
    recipe: str  # its name or file
    backend: str
    values: bool  # also load with the values of a golden mesh
    say: Callable[[str], None]

    @property
    def model(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def cache(self) -> Path:
        return self.directory / "cache"

    def run(self, config: QwenConfig) -> list[str]:
        """Lines of the table, in Markdown."""
        self._make(config)
        weights, rows = sorted(self.model.glob("*.safetensors")), []
        evict(weights)
        from_disk, in_memory = reading(weights), reading(weights)
        packing = self._child("--packing")
        self.say(
            f"checkpoint: read in {from_disk:.1f} s from disk, in {in_memory:.1f} s from memory; packing {packing:.1f} s"
        )
        shutil.rmtree(self.cache, ignore_errors=True)
        evict(weights)
        rows.append(self._row("cold, no cache", Usage(**self._child()), "packing", packing))
        evict(weights)
        rows.append(self._row("cold, writes the cache", self._load(), "packing", packing))
        tiles = sorted(self.cache.glob("tiles/*/*"))
        evict(tiles)
        floor = reading(tiles)
        evict(tiles)
        rows.append(self._row("warm, from disk", self._load(), "cat", floor))
        reading(tiles)
        floor = reading(tiles)
        rows.append(self._row("warm, in memory", self._load(), "cat", floor))
        if self.values:
            rows.append(self._row("the same with values", self._load("--values"), "cat", floor))
        sizes = [sum(file.stat().st_size for file in files) / 1e9 for files in (weights, tiles)]
        return [
            f"checkpoint {sizes[0]:.2f} GB, cache {sizes[1]:.2f} GB in {len(tiles)} files",
            "",
            "| load | wall | CPU | own memory | chips' values | mapped | from disk | to disk | floor | wall / floor |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *rows,
        ]

    def _make(self, config: QwenConfig) -> None:
        if not self.model.exists():
            self.say(f"making a checkpoint in {self.model}")
            make_checkpoint(self.model, config)
        elif QwenConfig.from_json(self.model / "config.json") != config:
            raise UserError(f"{self.model} is a checkpoint of another size: remove it, or choose another --directory")

    def _row(self, name: str, usage: Usage, floor: str, seconds: float) -> str:
        row = (
            f"| {name} | {usage.wall:.1f} s | {usage.cpu:.1f} s | {_gb(usage.peak)} | {_gb(usage.chips)} | {_gb(usage.mapped)} "
            f"| {_gb(usage.read)} | {_gb(usage.written)} | {floor} {seconds:.1f} s "
            f"| {usage.wall / seconds:.2f} |"
        )
        self.say(row)
        return row

    def _load(self, *options: str) -> Usage:
        """Through the cache."""
        return Usage(**self._child("--cache", f"{self.cache}", *options))

    def _child(self, *options: str):
        command = [sys.executable, "-m", "models.demos.qwen25_7b.loading.bench.child", "--model", f"{self.model}"]
        command += ["--mesh", self.mesh, "--tp", f"{self.tp}", "--recipe", self.recipe, "--backend", self.backend]
        done = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise UserError(f"a load ended with status {done.returncode}")
        return json.loads(done.stdout.strip().splitlines()[-1])


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size else "-"
