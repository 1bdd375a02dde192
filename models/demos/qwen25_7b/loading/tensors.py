"""A checkpoint's tensors while pieces are made of them: each is mapped, checked and hashed once, and let go after its last."""

from collections import Counter
from threading import Lock
from typing import Iterable, Mapping

import torch

from models.demos.qwen25_7b.loading.identity import digest_of
from models.demos.qwen25_7b.weights import Piece, TensorSource


class _Held:
    """A tensor that several threads may ask for at once."""

    def __init__(self):
        self.lock = Lock()
        self.tensor = None


class Tensors:
    """known: digests that were computed before, by tensor names. pieces: all that will be made, each once."""

    def __init__(self, source: TensorSource, known: Mapping[str, str], pieces: Iterable[Piece]):
        self._source = source
        self.digests = dict(known)
        self._uses = Counter(name for piece in pieces for name in piece.part.tensors)
        self._held: dict[str, _Held] = {}
        self._lock = Lock()

    def get(self, name: str) -> torch.Tensor:
        held = self._entry(name)
        with held.lock:
            if held.tensor is None:
                held.tensor = self._source.tensor(name)
            return held.tensor

    def digest(self, name: str) -> str:
        """Of the tensor's content; of what `get` gives, where it was not known before."""
        if name not in self.digests:
            tensor, held = self.get(name), self._entry(name)
            with held.lock:
                if name not in self.digests:
                    self.digests[name] = digest_of(tensor)
        return self.digests[name]

    def release(self, piece: Piece) -> None:
        """The piece is made."""
        with self._lock:
            for name in piece.part.tensors:
                self._uses[name] -= 1
                if self._uses[name] <= 0:
                    self._held.pop(name, None)

    def _entry(self, name: str) -> _Held:
        with self._lock:
            return self._held.setdefault(name, _Held())
