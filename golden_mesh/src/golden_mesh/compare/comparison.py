"""golden-mesh compare: the error of each device operation against float32.

Each operation runs three times: as the chip computes it, in float32 from the very inputs that it got ("this op"), and
in float32 from the float32 stream ("so far"), a second golden memory with the same addresses (docs/compare.md).

Integers (positions, tokens, page tables) are the program's own in the stream, too. So are tensors that an operation
makes without reading a floating-point tensor.
"""

import contextlib
import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Callable, Iterator, NamedTuple, Optional
from unittest.mock import patch

import torch
import ttnn

from golden_mesh.arithmetic import flash
from golden_mesh.arithmetic.kernel import PHASES, Kernel
from golden_mesh.arithmetic.packer import BLOCK_FLOATS
from golden_mesh.arithmetic.plain import plain_float32
from golden_mesh.compare.differences import Error, worst
from golden_mesh.compare.float32_stream import Reader, Scratch, Sources, Stream
from golden_mesh.compare.reference import FROM_HOST, Reference
from golden_mesh.mesh import dispatch, steps, transfer
from golden_mesh.mesh.arguments import on_device, substitute, tensors_in
from golden_mesh.mesh.memory import Slot, each_once
from golden_mesh.mesh.steps import Step, memory
from golden_mesh.program import lines, place
from golden_mesh.rounding import round_to

current: Optional["Comparison"] = None  # the one under way
CALLERS = 3  # of a line that are kept
_NO_ROUNDING = 0.5  # relative errors above are no rounding: the host's memory was used again


@dataclass
class Row:
    """One call of a device operation, or one transfer that rounds."""

    number: int
    site: "Site"
    op: str
    slot: Slot  # the first tensor that it writes
    kernel: Optional[Kernel]
    own: Error  # "this op"
    far: Error  # "so far"
    what_if: Optional[Error] = None
    equals: str = ""  # the value of the reference that the float32 stream gives
    found: tuple[bool, ...] = (False,)  # whether each result is a value of the reference
    in_place: bool = False
    makes_wild: bool = False  # infinities or NaN of finite inputs
    # The rows that made its inputs, and which of their results.
    inputs: frozenset[tuple[int, int]] = frozenset()


class Site(NamedTuple):
    file: str
    line: int
    layout: str  # of the result
    callers: tuple[tuple[str, int], ...]  # lines that called it, the innermost first
    l1: int  # bytes of live buffers on a core after the call
    dram: int  # in a bank

    def __str__(self) -> str:
        return place(self.file, self.line)

    @property
    def places(self) -> list[str]:
        """The callers as text."""
        return [place(*line) for line in self.callers]


def site(result) -> Site:
    """The line of the program that calls ttnn."""
    tensors = [t for t in tensors_in(result) if on_device(t)]
    kinds = (ttnn.BufferType.L1, ttnn.BufferType.DRAM) if tensors else ()
    views = [ttnn.get_memory_view(tensors[0].device(), kind) for kind in kinds]
    used = [view.total_bytes_allocated_per_bank for view in views] or (0, 0)
    first, *callers = lines(1 + CALLERS) or [("?", 0)]
    return Site(*first, tensors[0].layout.name if tensors else "", tuple(callers), *used)


class WhatIf:
    """Another setting of the operations, such as fidelity=HiFi4, dest=float32 or dtype=bfloat16 (of their results)."""

    def __init__(self, text: str):
        self.text = text
        self.name, _, self.value = text.partition("=")

    def kernel(self, kernel: Kernel) -> Kernel:
        if self.name == "fidelity":
            return replace(kernel, phases=PHASES[self.value])
        return replace(kernel, wide=self.value == "float32") if self.name == "dest" else kernel

    def step(self, step: Step) -> Step:
        """The step with results of another dtype."""
        if self.name != "dtype":
            return step
        targets = {*step.targets, *step.outputs}

        def other(slot: Slot) -> Slot:
            changes = slot in targets and "INT" not in slot.dtype.name
            return slot._replace(dtype=self.dtype) if changes else slot

        slots = (step.arguments, step.inputs, step.outputs)
        arguments, inputs, outputs = (substitute(each, Slot, other) for each in slots)
        return replace(step, arguments=arguments, inputs=inputs, outputs=outputs)

    @property
    def dtype(self) -> ttnn.DataType:
        return getattr(ttnn, self.value)


@contextlib.contextmanager
def kernels_of(note: Callable, change: Callable = lambda kernel: kernel) -> Iterator[None]:
    """Call `note` with each kernel that a golden makes inside, and again with another exp. `change` replaces it."""
    real, weights = Kernel.of, flash.weights

    def of(*config, **defaults) -> Kernel:
        kernel = change(real(*config, **defaults))
        note(kernel)
        return kernel

    def noting_exp(scores, largest, scale, kernel, approximate, *limit):
        note(replace(kernel, approximate=approximate))
        return weights(scores, largest, scale, kernel, approximate, *limit)

    with patch.object(Kernel, "of", staticmethod(of)), patch.object(flash, "weights", noting_exp):
        yield


@dataclass
class Comparison:
    """The calls of a program, each with its errors."""

    rows: list[Row] = field(default_factory=list)
    stream: Stream = field(default_factory=lambda: Stream(memory))
    sources: Sources = field(default_factory=Sources)
    what_if: Optional[WhatIf] = None
    without: dict[str, str] = field(default_factory=dict)  # op -> why it has no float32 form
    reference: Reference = field(default_factory=Reference)
    _site: Optional[Site] = None
    _sites: dict[Step, Site] = field(default_factory=dict)  # of recorded steps
    _makers: dict[tuple, tuple[int, int]] = field(default_factory=dict)  # place -> row, result
    mirrors: bool = True  # whether what is written to memory goes to the stream, too

    def begin(self) -> None:
        """Begin another report. The stream goes on."""
        self.rows.clear()
        self.without.clear()
        self._makers.clear()
        self.reference = Reference(self.reference.values, self.reference.tokens)

    def called(self, result) -> None:
        self._site = site(result)

    def record(self, step: Step) -> None:
        self._sites[step] = self._site

    def run(self, step: Step) -> None:
        """Run the step in golden memory and in the stream, and keep its errors."""
        where = self._sites.get(step, self._site)
        written = tuple(dict.fromkeys((*step.targets, *step.outputs)))
        floats = [slot for slot in written if "INT" not in slot.dtype.name]
        reads = [slot for slot in step.inputs if "INT" not in slot.dtype.name]
        with patch.object(self, "mirrors", False):
            scratch = self._in_float32(step) if floats and reads else None
            trial = self._try(step) if scratch is not None and self.what_if else None
            kernels: list[Kernel] = []
            with kernels_of(kernels.append):
                steps.run(step)
            for slot in written:
                if scratch is None or "INT" in slot.dtype.name:
                    self.copy(slot)
        inputs = {self._makers.get(_address(slot)) for slot in step.reads if slot is not None} - {None}
        for slot in written:
            self._makers.pop(_address(slot), None)
        if scratch is not None and scratch.results:
            self._add(step.golden.name, where, kernels, floats, scratch, trial, frozenset(inputs))

    def _try(self, step: Step) -> dict[Slot, list]:
        """The results of the step under `what_if`, by the slots of the real ones."""
        other = self.what_if.step(step)
        trial = Scratch(memory, other)
        with kernels_of(lambda kernel: None, self.what_if.kernel):
            steps.run(other, trial)
        return {slot._replace(dtype=None): values for slot, values in trial.results.items()}

    def _in_float32(self, step: Step) -> Optional[Scratch]:
        """Run the step in float32 from its inputs and from the stream. None: it has no float32 form."""
        scratch = Scratch(memory, step)
        try:
            with plain_float32():
                steps.run(step, scratch)
                steps.run(step, Reader(self.stream, step))
        except RuntimeError as refusal:  # GoldenError, or torch's own
            self.without[step.golden.name] = str(refusal).splitlines()[0]
            return None
        return scratch

    def sent(self, host: ttnn.Tensor, tensor: ttnn.Tensor) -> None:
        """A host tensor was written to the device: its values before they were rounded go into the stream."""
        slot, found = dispatch.slot_of(tensor), self.sources.find(host)
        if found is None:
            return
        exact, where = found
        here = site(tensor)
        where = where._replace(l1=here.l1, dram=here.dram)
        if here[:2] != where[:2]:  # a tensor from elsewhere: the lines that send it say more
            where = where._replace(callers=(here[:2], *here.callers))
        values = memory.read(slot)
        exact = exact if len(exact) == len(values) else exact * len(values)
        if any(tuple(each.shape) != slot.shape for each in exact):
            return
        rounding = worst(values, exact, channels=slot.dtype in BLOCK_FLOATS)
        if rounding.relative > _NO_ROUNDING:
            return
        self.stream.write(slot, exact, padding=memory.padding(slot))
        self._makers.pop(_address(slot), None)
        other = None
        if self.what_if and self.what_if.name == "dtype":
            other = worst([round_to(each, self.what_if.dtype) for each in exact], exact)
        self.add(Row(0, where, FROM_HOST, slot, None, rounding, rounding, other), [exact])

    def bracket(self) -> list[str]:
        """What the values of a reference say (compare/reference.py)."""
        return self.reference.lines(self.rows)

    def copy(self, slot: Slot) -> None:
        """Take the program's values into the stream."""
        whole = slot.whole
        for device in whole.devices:
            entry = memory._entry(device, whole)
            one = whole._replace(devices=(device,), coordinates=whole.coordinates[:1])
            self.stream.write(one, [entry.value], entry.unknown, entry.padding)

    def _add(self, op: str, where: Site, kernels, floats, scratch, trial, inputs) -> None:
        found = []
        for slot in floats:
            own = scratch.results.get(slot)
            if own is None or any(value is None for value in own):
                continue
            values, far = memory.read(slot), self.stream.read(slot)
            tried = None if trial is None else trial[slot._replace(dtype=None)]
            places = None
            if scratch.step.golden.unread:  # only what this op wrote
                places = each_once(_written, own)
                own, far, values, tried = (
                    x and each_once(lambda x, at: x.flatten()[at], x, places) for x in (own, far, values, tried)
                )
            values = each_once(torch.Tensor.float, values)
            judge = partial(worst, shape=slot.shape, places=places, channels=slot.dtype in BLOCK_FLOATS)
            errors = judge(values, own), judge(values, far), tried and judge(tried, own)
            found.append((*errors, slot, far))
        if not found:
            return
        own, far, other, slot, _ = max(found, key=lambda each: each[0].badness)
        kernel = kernels[-1] if kernels else None
        row = Row(0, where, op, slot, kernel, own, far, other, inputs=inputs)
        row.found, row.in_place = (False,) * len(found), bool(scratch.step.golden.writes)
        row.makes_wild = own.wild > 0 and self._reads_finite(scratch.step, inputs)
        self.add(row, [values for *_, values in found])
        for i, (*_, slot, _) in enumerate(found):
            self._makers[_address(slot)] = row.number, i

    def _reads_finite(self, step: Step, inputs: frozenset[tuple[int, int]]) -> bool:
        """Whether the inputs are finite. What the step has written over is known by the row that made it."""
        if any(self.rows[number - 1].own.wild for number, _ in inputs):
            return False
        reads = set(step.inputs) - set(step.targets)
        return all(bool(x.isfinite().all()) for slot in reads for x in memory.read(slot))

    def add(self, row: Row, streams: list[list[torch.Tensor]]) -> None:
        """Keep the row. streams: float32 values of each result, by chip."""
        self.rows.append(row)
        row.number = len(self.rows)
        if self.reference.values:
            self.reference.look_up(row, streams)


def _written(x: torch.Tensor) -> torch.Tensor:
    """The places of what an op wrote into a tensor of NaN. An op writes half rows of a tile, or more."""
    width = math.gcd(16, x.shape[-1])
    first = x.view(-1, width)[:, :1]
    return ((first == first).nonzero()[:, :1] * width + torch.arange(width)).flatten()


def _address(slot: Slot) -> tuple:
    return slot.devices, slot.buffer_type, slot.address


@contextlib.contextmanager
def comparing() -> Iterator[Comparison]:
    """Compare the operations inside the block. Tensors from before count as exact."""
    global current
    comparison = current = Comparison()
    from_torch = _noting_sources(dispatch.HANDLERS["ttnn.from_torch"], comparison)
    try:
        with contextlib.ExitStack() as replaced, patch.dict(dispatch.HANDLERS, {"ttnn.from_torch": from_torch}):
            for replacement in _replacements(comparison):
                replaced.enter_context(patch.object(*replacement))
            yield comparison
    finally:
        comparison.stream.clear()
        current = None


def _replacements(comparison: Comparison) -> Iterator[tuple[object, str, Callable]]:
    """Owner, name and function for each function of the golden mesh that has another task here, too."""
    stream, traces = comparison.stream, dispatch.traces

    def after(owner, name: str, also: Callable) -> tuple[object, str, Callable]:
        """The owner's function, then also(its result, its arguments)."""
        function = getattr(owner, name)

        def both(*args, **kwargs):
            result = function(*args, **kwargs)
            also(result, *args, **kwargs)
            return result

        return owner, name, both

    def write(_, *what, **how):
        if comparison.mirrors:
            stream.write(*what, **how)

    yield after(dispatch, "REAL_CALL", lambda result, *_, **__: comparison.called(result))
    yield after(memory, "write", write)
    yield after(memory, "free", lambda _, slot: stream.free(slot))
    yield after(memory, "forget_devices", lambda _, devices: stream.forget_devices(devices))
    yield after(traces, "record", lambda _, step: comparison.record(step))
    yield after(transfer, "send", lambda _, host, tensor: comparison.sent(host, tensor))
    yield dispatch, "run", comparison.run
    yield traces, "run", comparison.run


def _noting_sources(from_torch: Callable, comparison: Comparison) -> Callable:
    """ttnn.from_torch, which also notes the tensors that it makes on the host."""

    def handler(real, tensor, dtype=None, **options):
        def noting(tensor, dtype=None, **how):
            host = real(tensor, dtype, **how)
            if isinstance(tensor, torch.Tensor) and not on_device(host):
                convert = partial(real, mesh_mapper=how.get("mesh_mapper"))
                comparison.sources.note(host, tensor, site(host), convert)
            return host

        return from_torch(noting, tensor, dtype, **options)

    return handler
