"""One measurement of bench_load in a separate process, printed as JSON, and the checkpoint for it.

A process is measured by Linux's /proc/self. Floors are the least time of a load: one read of its files, or
ttnn's packing of its tensors.
"""

import argparse
import json
import os
import struct
import threading
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Iterator

import torch

from models.common.command import quiet_libraries, run, status_of
from models.common.terminal import say
from models.demos.qwen25_7b.config import QWEN25_7B, ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.weights.checkpoint import INDEX_FILE, tensor_shapes

SHARD_BYTES = 4 << 30  # as Hugging Face's 7B comes: four files
# 4 of 28 layers, and a vocabulary of 680 tiles instead of 4752: 2.18 GB
SEVENTH = replace(
    QWEN25_7B, num_hidden_layers=4, vocab_size=21760, bos_token_id=None, eos_token_ids=()
)
ELEMENTS = 1 << 24  # of the random numbers that fill all tensors
POLL_SECONDS = 0.01  # between two samples of the memory
BLOCK = 1 << 20  # bytes of a read, as cat has it


def make_checkpoint(directory: Path, config: QwenConfig) -> None:
    """Write it in Hugging Face's format: config.json, an index, and files of bfloat16 tensors of 4 GiB at most."""
    directory.mkdir(parents=True, exist_ok=True)
    fields = {name: value for name, value in asdict(config).items() if name != "eos_token_ids"}
    fields |= {
        "model_type": "qwen2",
        "hidden_act": "silu",
        "eos_token_id": list(config.eos_token_ids),
    }
    starts = {
        name: 104729 * number % ELEMENTS for number, name in enumerate(tensor_shapes(config))
    }  # a prime apart
    random = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    shards = list(_shards(tensor_shapes(config)))
    weight_map = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        weight_map |= dict.fromkeys(names, file)
        _write(directory / file, names, random, starts)
    (directory / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (directory / "config.json").write_text(json.dumps(fields, indent=1))


def _shards(shapes: dict[str, tuple[int, ...]]) -> Iterator[dict[str, tuple[int, ...]]]:
    shard, size = {}, 0
    for name, shape in shapes.items():
        if shard and size + 2 * prod(shape) > SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = shape
        size += 2 * prod(shape)
    yield shard


def _write(
    file: Path, shapes: dict[str, tuple[int, ...]], random: torch.Tensor, starts: dict[str, int]
) -> None:
    """safetensors: the header's length, the header as JSON, the tensors.

    Each tensor begins elsewhere in `random`: tensors that are alike would share tiles.
    """
    header, end = {}, 0
    for name, shape in shapes.items():
        header[name] = {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [end, end + 2 * prod(shape)],
        }
        end += 2 * prod(shape)
    text = json.dumps(header).encode()
    with open(file, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            first, left = starts[name], prod(shape)
            while left:
                part = random[first : first + left]
                stream.write(memoryview(part.view(torch.uint8).numpy()))
                left, first = left - len(part), 0


@dataclass
class Usage:
    """Memory beyond what the process held before. Mapped files count apart: their pages are the system's to take back."""

    wall: float = 0.0  # seconds
    cpu: float = 0.0  # seconds of all threads
    peak: int = 0  # bytes of memory of its own
    mapped: int = 0  # bytes of mapped files in memory, at the most
    read: int = 0  # bytes fetched from the disk
    written: int = 0  # bytes sent to the disk
    chips: int = 0  # bytes, beside `peak`, that stand for chips' memory: a golden mesh's values


class Watch:
    """`with Watch() as usage:` fills it in at the end."""

    def __enter__(self) -> Usage:
        self.usage = Usage()
        self._own, self._files = _memory()
        self._io = _disk()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._wall = time.perf_counter()
        self._cpu = time.process_time()
        self._thread.start()
        return self.usage

    def __exit__(self, *_) -> None:
        self.usage.wall, self.usage.cpu = (
            time.perf_counter() - self._wall,
            time.process_time() - self._cpu,
        )
        self._done.set()
        self._thread.join()
        self.usage.read, self.usage.written = (
            after - before for before, after in zip(self._io, _disk())
        )

    def _look(self) -> None:
        while True:
            own, files = _memory()
            self.usage.peak = max(self.usage.peak, own - self._own)
            self.usage.mapped = max(self.usage.mapped, files - self._files)
            if self._done.wait(POLL_SECONDS):
                return


def _memory() -> tuple[int, int]:
    """Bytes of the process's own, shared memory included, and of mapped files."""
    fields = _fields("/proc/self/status")
    anonymous, files, shared = (
        1024 * int(fields[name].split()[0]) for name in ("RssAnon", "RssFile", "RssShmem")
    )
    return anonymous + shared, files


def _disk() -> tuple[int, int]:
    fields = _fields("/proc/self/io")
    return int(fields["read_bytes"]), int(fields["write_bytes"])


def _fields(file: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in Path(file).read_text().splitlines())


def evict(files: list[Path]) -> None:
    """Drop the files from the page cache, so that the next read comes from the disk."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def reading(files: list[Path]) -> float:
    """Seconds to read them all, one after the other."""
    block = bytearray(BLOCK)
    begin = time.perf_counter()
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            while stream.readinto(block):
                pass
    return time.perf_counter() - begin


def packing(config: QwenConfig, plan: ParallelPlan, recipe: Recipe) -> float:
    """Seconds that ttnn.from_torch takes for all shards, one after the other, each from a tensor in memory.

    Each kind of shard is timed once and counted once for each such shard.
    """
    import ttnn  # here, since a checkpoint is made without a backend

    from models.demos.qwen25_7b.loading.inventory import inventory

    kinds = Counter(
        (shard.slice.shape, shard.format, shard.tiled) for shard in inventory(config, plan, recipe)
    )
    total = 0.0
    for (shape, format, tiled), count in kinds.items():
        tensor = torch.empty(1, 1, *shape).normal_().bfloat16()
        layout = ttnn.TILE_LAYOUT if tiled else ttnn.ROW_MAJOR_LAYOUT
        begin = time.perf_counter()
        ttnn.from_torch(tensor, dtype=getattr(ttnn, format), layout=layout)
        total += count * (time.perf_counter() - begin)
    return total


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _measure(_parse(argv)))


def _measure(args: argparse.Namespace) -> None:
    quiet_libraries()
    from models.common.mesh import chips_in_host_memory, host_alone, open_replicas, select_backend
    from models.demos.qwen25_7b.config import recipe_named
    from models.demos.qwen25_7b.loading.opened import open_checkpoint

    backend = select_backend(args.backend, args.mesh)
    from models.demos.qwen25_7b.loading.load import load_model

    recipe = recipe_named(args.recipe)
    with (
        open_replicas(args.mesh, args.tp) as devices,
        nullcontext() if args.values else host_alone(backend),
    ):
        if args.packing:
            config = QwenConfig.from_json(args.model / "config.json")
            say(json.dumps(packing(config, ParallelPlan.make(config, args.tp), recipe)))
            return
        with Watch() as usage:
            opened = open_checkpoint(
                args.model,
                cache=args.cache,
                use_cache=args.cache is not None,
                say=lambda line: None,
            )
            model = load_model(opened, opened.config, devices[0], recipe, batch=1, max_seq_len=128)
        usage.chips = chips_in_host_memory(backend)
        usage.peak -= usage.chips
        del model
    say(json.dumps(asdict(usage)))


def _parse(argv: list[str] | None) -> argparse.Namespace:
    from models.common.options import Parser, path

    parser = Parser(description=__doc__)
    option = parser.add_argument
    option("--packing", action="store_true", help="ttnn's own packing instead of a load: seconds")
    option("--values", action="store_true", help="have a golden mesh compute what the chips hold")
    option("--model", type=path("--model"), required=True)
    option("--cache", type=path("--cache"), help="default: without a cache")
    option("--mesh", required=True)
    option("--tp", type=int, required=True)
    option("--recipe", required=True)
    option("--backend", required=True)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
