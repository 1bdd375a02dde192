"""The values that a torch module computes (golden-mesh compare)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Iterable, Iterator, Optional

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from golden_mesh.compare.fingerprints import FEWEST, Fingerprint, Rows

# Functions whose result may hide a wrong part: a sum is nearly equal where its larger part is.
ADDS = frozenset("add __add__ __radd__ __iadd__ add_ sub __sub__ __rsub__ subtract cat concat stack".split())


@dataclass
class Value:
    """A tensor of the reference."""

    name: str  # of the module that returns it; else of the module and its function
    shape: tuple[int, ...]
    fingerprint: Fingerprint
    parents: frozenset[int]  # numbers of the values that it was computed of
    adds: bool = False  # by an addition, or side by side
    rows: Optional[Rows] = None  # by tokens
    is_output: bool = False  # of a module


class _Watch(TorchFunctionMode):
    """Notes the result of each torch function."""

    def __init__(self, reference):
        super().__init__()
        self.reference = reference
        self.modules: list[str] = []  # names of those that run, the innermost last
        self.numbers = WeakIdKeyDictionary()  # tensor -> number of its value

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tensors_of(result) if self.modules else ():
            parents = {self.numbers.get(each) for each in tensors_of((args, kwargs))} - {None}
            name = getattr(function, "__name__", f"{function}")
            self.note(tensor, f"{self.modules[-1]}: {name}", parents, adds=name in ADDS)
        return result

    def note(self, tensor: torch.Tensor, name: str, parents: Iterable[int], adds: bool = False) -> None:
        mine = Fingerprint(tensor)
        if mine.count < FEWEST:
            return
        for number in parents:  # another view of it, or another dtype
            theirs = self.reference.values[number].fingerprint
            if mine.count == theirs.count and torch.allclose(mine.sums, theirs.sums, rtol=1e-6):
                self.numbers[tensor] = number
                return
        along = [dim for dim, extent in enumerate(tensor.shape[:-1]) if extent == self.reference.tokens]
        rows = Rows(tensor, along[0]) if along else None
        value = Value(name, tuple(tensor.shape), mine.keep(), frozenset(parents), adds, rows)
        self.numbers[tensor] = len(self.reference.values)
        self.reference.values.append(value)

    def entering(self, name: str, inputs) -> None:
        if not self.modules:
            given = [x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor) and x.dim() > 1]
            self.reference.tokens = given[0].shape[1] if given else 0
            for tensor in tensors_of(inputs):
                self.note(tensor, "input", ())
        self.modules.append(name)

    def leaving(self, name: str, output) -> None:
        self.modules.pop()
        for tensor in tensors_of(output):
            if tensor not in self.numbers:
                self.note(tensor, name, ())
            if tensor in self.numbers:
                value = self.reference.values[self.numbers[tensor]]
                if not value.is_output and value.name != "input":
                    value.name, value.is_output = name or "the module", True


def tensors_of(values) -> list[torch.Tensor]:
    """The floating-point tensors inside nested arguments or results."""
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor) and value.is_floating_point()]


@contextlib.contextmanager
def watching(module: torch.nn.Module, reference) -> Iterator[None]:
    """Keep the values that the module computes inside the block. reference: a reference.Reference."""
    watch = _Watch(reference)
    with contextlib.ExitStack() as hooks, watch:
        for name, part in module.named_modules():
            enter = lambda _, args, kwargs, name=name: watch.entering(name, (args, kwargs))  # noqa: E731
            leave = lambda _, __, output, name=name: watch.leaving(name, output)  # noqa: E731
            hooks.enter_context(part.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.enter_context(part.register_forward_hook(leave))
        yield
