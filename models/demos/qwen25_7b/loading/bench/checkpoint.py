"""A checkpoint of the 7B's exact shapes with random weights, and one that is a seventh of it, for quick runs."""

import json
import struct
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Iterator

import torch

from models.demos.qwen25_7b.config import QWEN25_7B, QwenConfig
from models.demos.qwen25_7b.weights.checkpoint import INDEX_FILE, tensor_shapes

SHARD_BYTES = 4 << 30  # as Hugging Face's 7B comes: four files
# 4 of 28 layers, and a vocabulary of 680 tiles instead of 4752: 2.18 GB
SEVENTH = replace(QWEN25_7B, num_hidden_layers=4, vocab_size=21760, bos_token_id=None, eos_token_ids=())
ELEMENTS = 1 << 24  # of the random numbers that all tensors are cut from


def make_checkpoint(directory: Path, config: QwenConfig) -> None:
    """Write it in Hugging Face's format: config.json, an index, and files of bfloat16 tensors of 4 GiB at most."""
    directory.mkdir(parents=True)
    fields = {name: value for name, value in asdict(config).items() if name != "eos_token_ids"}
    fields |= {"model_type": "qwen2", "hidden_act": "silu", "eos_token_id": list(config.eos_token_ids)}
    (directory / "config.json").write_text(json.dumps(fields, indent=1))
    starts = {name: 104729 * number % ELEMENTS for number, name in enumerate(tensor_shapes(config))}  # a prime apart
    random = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    shards = list(_shards(tensor_shapes(config)))
    weight_map = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        weight_map |= dict.fromkeys(names, file)
        _write(directory / file, names, random, starts)
    (directory / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _shards(shapes: dict[str, tuple[int, ...]]) -> Iterator[dict[str, tuple[int, ...]]]:
    shard, size = {}, 0
    for name, shape in shapes.items():
        if shard and size + 2 * prod(shape) > SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = shape
        size += 2 * prod(shape)
    yield shard


def _write(file: Path, shapes: dict[str, tuple[int, ...]], random: torch.Tensor, starts: dict[str, int]) -> None:
    """safetensors: the header's length, the header as JSON, the tensors.

    Each tensor begins elsewhere in `random`: tensors that are alike would share tiles.
    """
    header, end = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + 2 * prod(shape)]}
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
