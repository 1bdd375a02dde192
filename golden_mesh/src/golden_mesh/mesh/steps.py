"""Runs the golden function of one op on all chips, from golden memory into golden memory."""

from dataclasses import dataclass
from functools import cached_property, partial

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

    @property
    def writes(self) -> tuple[Slot, ...]:
        """The memory that the op writes: whole tensors, no views."""
        written = (*self.outputs, *written_in_place(self))
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
    targets = written_in_place(step)
    unread = (targets or step.outputs) if step.golden.unread else ()
    reads = [slot for slot in step.inputs if slot not in unread]
    shards, unknown = read_all(memory, reads, step.golden.name)
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


def written_in_place(step: Step) -> list[Slot]:
    """Return the slots of the arguments that the op writes in place."""
    if not step.golden.writes:
        return []
    return [step.tensors[name] for name in step.golden.writes if name in step.tensors]


def _replicas(step: Step, shards: dict[Slot, list[torch.Tensor]], slots: list[Slot]) -> list[list[int]]:
    """Return chips (as indices) in groups.

    Within a group every one of `slots` holds one torch tensor.
    """
    count = len((step.inputs or step.outputs)[0].devices)
    if count == 1:
        return [[0]]
    groups: dict[tuple, list[int]] = {}
    for chip in range(count):
        groups.setdefault(tuple(id(shards[s][chip if len(s.devices) > 1 else 0]) for s in slots), []).append(chip)
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
    for group in _replicas(step, shards, list(shards)):
        pick = lambda slot: shards[slot][group[0]] if slot in shards else None  # noqa: E731
        if "rewrite" in step.golden.wants:

            def rewrite(name, values, group=group):
                for chip in group:
                    rewritten.setdefault(name, [None] * chips)[chip] = values

            extras["rewrite"] = rewrite
        value = step.golden.function(
            *substitute(step.args, Slot, pick), **substitute(step.kwargs, Slot, pick), **extras
        )
        rounded = _rounded(step, value)
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

    for group in _replicas(step, shards, list(shards)):
        mine = {slot: values[group[0]] for slot, values in shards.items() if slot not in targets}
        mine |= {slot: memory.exclusive(slot, group) for slot in targets}
        if "store" in step.golden.wants:
            extras["store"] = store
        step.golden.function(
            *substitute(step.args, Slot, mine.__getitem__), **substitute(step.kwargs, Slot, mine.__getitem__), **extras
        )
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
        values = step.golden.function(
            *substitute(step.args, Slot, pick), **substitute(step.kwargs, Slot, pick), **_extras(step)
        )
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
        if tuple(v.shape) != slot.shape:
            raise GoldenError(f"{step.golden.name} returned shape {list(slot.shape)}, its golden {list(v.shape)}")
    return tuple(_packed(step.golden, v, slot.dtype) for v, slot in zip(values, step.outputs))


def _packed(golden: Golden, values: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """Return a result as the packer writes it. Ops that move data have no packer: they keep NaN."""
    packed = pack(values, dtype)  # float32 without NaN
    has_nan = dtype == ttnn.bfloat16 and values.dtype != torch.float32 and golden.computes
    return nan_to_infinity(packed) if has_nan else packed
