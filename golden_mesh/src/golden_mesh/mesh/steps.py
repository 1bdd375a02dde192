"""Runs the golden function of one op on all chips, from golden memory into golden memory."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Callable

import torch
import ttnn

from golden_mesh.arithmetic.packer import nan_to_infinity, pack
from golden_mesh.arithmetic.plain import is_plain
from golden_mesh.errors import GoldenError
from golden_mesh.mesh.arguments import substitute
from golden_mesh.mesh.memory import NEVER_WRITTEN, GoldenMemory, Slot
from golden_mesh.mesh.unknown import as_marks, keep_marks, read_all
from golden_mesh.registry import Golden

memory = GoldenMemory()


@dataclass(frozen=True)
class Step:
    """One op with slots in place of its tensors. It can be computed again at any later time."""

    golden: Golden
    args: tuple
    kwargs: dict
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]

    @cached_property
    def bound(self) -> dict[str, object]:
        """The arguments by the names of the golden's parameters."""
        return self.golden.by_name(self.args, self.kwargs)

    @cached_property
    def tensors(self) -> dict[str, Slot]:
        """Those of `bound` that are tensors."""
        return {name: value for name, value in self.bound.items() if isinstance(value, Slot)}

    @cached_property
    def targets(self) -> list[Slot]:
        """The arguments that the op writes in place."""
        return [self.tensors[name] for name in self.golden.writes if name in self.tensors]

    @cached_property
    def reads(self) -> list[Slot]:
        unread = (self.targets or self.outputs) if self.golden.unread else ()
        return [slot for slot in self.inputs if slot not in unread]

    @cached_property
    def _nested(self) -> bool:
        """Whether a list, tuple or dict among the arguments holds tensors."""
        found: list[Slot] = []
        for value in (*self.args, *self.kwargs.values()):
            if not isinstance(value, Slot):
                substitute(value, Slot, found.append)
        return bool(found)

    def call(self, pick: Callable, extras: dict) -> object:
        """Call the golden function with `pick` of each slot."""
        if self._nested:
            args, kwargs = substitute(self.args, Slot, pick), substitute(self.kwargs, Slot, pick)
        else:
            args = [pick(value) if type(value) is Slot else value for value in self.args]
            kwargs = {name: pick(value) if type(value) is Slot else value for name, value in self.kwargs.items()}
        return self.golden.function(*args, **kwargs, **extras)

    @property
    def writes(self) -> tuple[Slot, ...]:
        """The memory that the op writes: whole tensors, no views."""
        written = (*self.outputs, *self.targets)
        return tuple(slot if slot.part is None else slot.part.whole for slot in written)


def run(step: Step, memory=memory) -> None:
    """Compute the step's values from golden memory into golden memory.

    memory: a GoldenMemory, or what stands in for it (compare/comparison.py).
    GoldenError: the golden function failed. It names the op and its inputs.
    """
    try:
        with _inference():  # no gradients are needed, and small ops take a tenth less time
            _run(step, memory)
    except (GoldenError, Warning):
        raise
    except Exception as error:
        inputs = ", ".join(f"{list(slot.shape)} {slot.dtype.name}" for slot in step.inputs)
        raise GoldenError(f"the golden of {step.golden.name} does not know this call ({inputs}): {error}") from error


# torch.inference_mode itself, without the Python around it, which takes as long as three operations.
_inference = partial(getattr(torch._C, "_InferenceMode", torch.inference_mode), True)


def _run(step: Step, memory) -> None:
    targets = step.targets
    shards, unknown = read_all(memory, step.reads, step.golden.name)
    marks = as_marks(unknown) if step.golden.unread and targets else None
    if unknown and marks is None:
        for slot in (*targets, *step.outputs):
            memory.forget(slot, next(iter(unknown.values())))
    elif step.golden.over_chips:
        _run_over_chips(step, shards, memory)
    elif step.golden.writes:
        why = next(iter(unknown.values()), None)
        _run_in_place(step, shards | (marks or {}), targets, why, memory)
    else:
        _run_per_chip(step, shards, memory)


def _replicas(step: Step, shards: dict[Slot, list[torch.Tensor]]) -> list[list[int]]:
    """Return chips (as indices) in groups. Within a group every slot holds one torch tensor."""
    count = len((step.inputs or step.outputs)[0].devices)
    if count == 1 or not shards:
        return [list(range(count))]
    groups: dict[tuple, list[int]] = {}
    held = [list(map(id, values if len(values) > 1 else values * count)) for values in shards.values()]
    for chip, values in enumerate(zip(*held)):
        groups.setdefault(values, []).append(chip)
    return list(groups.values())


def _extras(step: Step) -> dict:
    """Return the keywords that a golden takes beside its op's arguments (registry.py), except `store`."""
    extras = {}
    if "out" in step.golden.wants:
        outputs = step.outputs
        if is_plain():
            outputs = tuple(slot._replace(dtype=_computed(slot.dtype)) for slot in outputs)
        extras["out"] = outputs[0] if len(outputs) == 1 else outputs
    if "dtypes" in step.golden.wants:
        extras["dtypes"] = {name: _computed(slot.dtype) for name, slot in step.tensors.items()}
    if "paddings" in step.golden.wants:
        extras["paddings"] = {name: memory.padding(slot) for name, slot in step.tensors.items()}
    return extras


def _computed(dtype: ttnn.DataType) -> ttnn.DataType:
    """Return the dtype that a golden computes with: the tensor's, or float32 inside `plain_float32`."""
    return ttnn.float32 if is_plain() and "INT" not in dtype.name else dtype


def _run_per_chip(step: Step, shards, memory) -> None:
    chips = len(step.outputs[0].devices) if step.outputs else 0
    results: list[tuple | None] = [None] * chips
    extras = _extras(step)
    rewritten: dict[str, list] = {}  # inputs by parameter, new values by chip
    for group in _replicas(step, shards):
        held = {slot: values[group[0]] for slot, values in shards.items()}
        if "rewrite" in step.golden.wants:

            def rewrite(name, values, group=group):
                for chip in group:
                    rewritten.setdefault(name, [None] * chips)[chip] = values

            extras["rewrite"] = rewrite
        rounded = _rounded(step, step.call(held.get, extras))
        for chip in group:
            results[chip] = rounded
    for i, slot in enumerate(step.outputs):
        memory.write(slot, [result[i] for result in results], padding=_padding(step))
    for name, values in rewritten.items():
        slot = step.bound[name]
        memory.write(slot, [_packed(step.golden, value, slot.dtype) for value in values])


def _padding(step: Step) -> float | None:
    """Return the value that the op puts into the padding of its result's tiles, if it is known."""
    if not isinstance(step.golden.pads, str):
        return step.golden.pads
    bound = step.golden.signature.bind_partial(*step.args, **step.kwargs)
    bound.apply_defaults()
    return bound.arguments[step.golden.pads]


def _run_in_place(step: Step, shards, targets: list[Slot], unknown: str | None, memory) -> None:
    """Run the golden in place. unknown: why some of the shards are marks (mesh/unknown.py), if they are."""
    if step.golden.unread:
        shards |= {slot: memory.writable(slot) for slot in targets}
    extras = _extras(step)
    dtypes = [slot.dtype for slot in targets]

    def store(values, name=step.golden.writes[0]):
        packed = _packed(step.golden, values, dtypes[step.golden.writes.index(name)])
        return packed if unknown is None else keep_marks(values, packed)

    for group in _replicas(step, shards):
        mine = {slot: values[group[0]] for slot, values in shards.items() if slot not in targets}
        mine |= {slot: memory.exclusive(slot, group) for slot in targets}
        if "store" in step.golden.wants:
            extras["store"] = store
        step.call(mine.__getitem__, extras)
    if step.golden.unread:
        for slot in targets:
            memory.settle(slot, unknown)


def _run_over_chips(step: Step, shards, memory) -> None:
    slot = step.inputs[0]
    axis = step.bound.get("cluster_axis")
    groups: dict[tuple, list[int]] = {}
    for chip, coordinate in enumerate(slot.coordinates):
        line = () if axis is None else tuple(c for a, c in enumerate(coordinate) if a != axis)
        groups.setdefault(line, []).append(chip)
    results: list = [None] * len(slot.devices)
    for group in groups.values():
        pick = lambda s: [shards[s][chip] for chip in group]  # noqa: E731
        values = step.call(pick, _extras(step))
        rounded: dict[int, tuple] = {}  # replicas stay one tensor
        for chip, value in zip(group, values, strict=True):
            if id(value) not in rounded:
                nothing = (None,) * len(step.outputs)
                rounded[id(value)] = nothing if value is None else _rounded(step, value)
            results[chip] = rounded[id(value)]
    for i, out in enumerate(step.outputs):
        memory.write(out, [result[i] for result in results])
        for chip, result in zip(zip(out.devices, out.coordinates), results):
            if result[i] is None:  # the op wrote nothing on this chip
                memory.forget(out._replace(devices=chip[:1], coordinates=chip[1:]), NEVER_WRITTEN)


def _rounded(step: Step, value) -> tuple[torch.Tensor, ...]:
    """Return the golden's results as the packer writes them, checked against the real op's output specs."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(values) != len(step.outputs):
        raise GoldenError(f"{step.golden.name} returned {len(step.outputs)} tensors, its golden {len(values)}")
    for v, slot in zip(values, step.outputs):
        if v.shape != slot.shape:
            raise GoldenError(f"{step.golden.name} returned shape {list(slot.shape)}, its golden {list(v.shape)}")
    return tuple(_packed(step.golden, v, slot.dtype) for v, slot in zip(values, step.outputs))


def _packed(golden: Golden, values: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """Return a result as the packer writes it. Ops that move data have no packer: they keep NaN."""
    packed = pack(values, dtype)  # float32 without NaN
    has_nan = dtype == ttnn.bfloat16 and values.dtype != torch.float32 and golden.computes
    return nan_to_infinity(packed) if has_nan else packed
