"""What determines the bytes of a piece, as its name in the cache.

A piece is named by the content of the tensors it is made of, not by their file: two checkpoints share what they have in
common, a copy of a checkpoint shares everything, and one that was replaced under its old name shares nothing it should not.
"""

import hashlib
import json
from dataclasses import asdict
from typing import Any, Callable

import torch

from models.common.mesh import TTNN_VERSION
from models.demos.qwen25_7b.weights import Piece
from models.demos.qwen25_7b.weights.parts import VERSION

DigestOf = Callable[[str], str]  # of a tensor, by its Hugging Face name


def digest_of(tensor: torch.Tensor) -> str:
    """Of a tensor's dtype, shape and values."""
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def key_of(piece: Piece, digest: DigestOf) -> str:
    """32 hex digits: of the tensors' content, which parts of it, in what order and shape, format and layout, and the
    versions of the code that reads them and of ttnn, which packs them."""
    described = {"piece": _by_content(asdict(piece), digest), "parts": VERSION, "ttnn": TTNN_VERSION}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


def _by_content(value: Any, digest: DigestOf) -> Any:
    """A description with the names of tensors replaced by their digests."""
    if isinstance(value, dict):
        return {k: digest(v) if k == "tensor" else _by_content(v, digest) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_by_content(item, digest) for item in value]
    return value
