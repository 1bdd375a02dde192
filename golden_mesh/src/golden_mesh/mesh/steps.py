"""Runs the golden function of one op on all chips, from golden memory into golden memory.

Ops may take the unknown results of others: memory that was never written, and what is computed of it. The host may not
read them.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic.packer import BLOCK_FLOATS, nan_to_infinity, pack
from golden_mesh.arithmetic.plain import is_plain
from golden_mesh.errors import GoldenError, UnknownMemory
from golden_mesh.hazards import meet
from golden_mesh.mesh.arguments import substitute
from golden_mesh.mesh.memory import NEVER_WRITTEN, GoldenMemory, Slot, each_once, identity, unwritten
from golden_mesh.registry import MOVERS, Golden
from golden_mesh.rounding import BLOCK

ELEMENTWISE = {"eltwise_binary", "eltwise_several", "eltwise_unary"}  # families of goldens
AT_ONCE = 1 << 18  # elements of a result: chips with smaller ones are computed together
Shards = list[list[torch.Tensor] | None]  # of each input, by chip. None: not read, or unknown
_DEPENDS = "depends on memory that was never written"
memory = GoldenMemory()


@dataclass(eq=False)
class Step:
    """One op with slots in place of its tensors. It can be computed again at any later time."""

    golden: Golden
    arguments: dict[str, object]  # of the golden's function, by name
    inputs: tuple[Slot, ...]  # each once
    outputs: tuple[Slot, ...]
    axis: int | None = None  # of the mesh, for a collective along it

    @cached_property
    def tensors(self) -> dict[str, Slot]:
        """The arguments that are tensors."""
        return {name: value for name, value in self.arguments.items() if type(value) is Slot}

    @cached_property
    def targets(self) -> list[Slot]:
        """The arguments that the op writes in place."""
        return [self.tensors[name] for name in self.golden.writes if name in self.tensors]

    @cached_property
    def reads(self) -> tuple[Slot | None, ...]:
        """The inputs, with None in place of those that the op does not read."""
        unread = (self.targets or self.outputs) if self.golden.unread else ()
        return tuple([None if slot in unread else slot for slot in self.inputs]) if unread else self.inputs

    @cached_property
    def as_codes(self) -> frozenset[Slot]:
        """The inputs that the golden takes as BlockFloats, too."""
        if not self.golden.codes:
            return frozenset()
        others = [slot for name, slot in self.tensors.items() if name not in self.golden.codes]
        return frozenset(self.tensors[name] for name in self.golden.codes if name in self.tensors).difference(others)

    def call(self, values: list, extras: dict) -> object:
        """Call the golden function with `values` in place of `inputs`."""
        arguments = substitute(self.arguments, Slot, dict(zip(self.inputs, values)).get)
        return self.golden.function(**arguments, **extras)

    @property
    def writes(self) -> tuple[Slot, ...]:
        """The memory that the op writes: whole tensors, no views."""
        return tuple(slot.whole for slot in (*self.outputs, *self.targets))


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
    shards, unknown = _read_all(step, memory)
    marks = _marks(unknown) if step.golden.unread and targets else None
    if unknown and marks is None:
        for slot in (*targets, *step.outputs):
            memory.forget(slot, next(iter(unknown.values())))
    elif step.golden.over_chips:
        _run_over_chips(step, shards, memory)
    elif step.golden.writes:
        if marks:
            shards = [marks.get(slot, values) for slot, values in zip(step.inputs, shards)]
        _run_in_place(step, shards, next(iter(unknown.values()), None), memory)
    else:
        _run_per_chip(step, shards, memory)


def _read_all(step: Step, memory) -> tuple[Shards, dict[Slot, str]]:
    """Return the known inputs, and the reason for each unknown one: it names the first op that read unknown memory."""
    shards, unknown = [], {}
    for slot in step.reads:
        try:
            shards.append(None if slot is None else memory.read(slot, slot in step.as_codes))
        except UnknownMemory as error:
            first = f"{_DEPENDS}: {step.golden.name} read {error.slot}, which {error.why}"
            unknown[slot] = error.why if error.why.startswith(_DEPENDS) else first
            shards.append(None)
    return shards, unknown


def _marks(unknown: dict[Slot, str]) -> dict[Slot, list[torch.Tensor]] | None:
    """Return marks in place of unknown inputs, for an op that only moves its inputs.

    Returns None if an unknown input holds integers. Integers say where an op writes (positions, page tables),
    so every element that the op may write becomes unknown.
    """
    if any("INT" in slot.dtype.name for slot in unknown):
        return None
    return {slot: [unwritten(slot)] * len(slot.devices) for slot in unknown}


def _replicas(count: int, shards: Shards) -> list[list[int]]:
    """Return the chips, as indices below `count`, in groups. Within a group every input is one torch tensor."""
    held = [map(identity, values if len(values) > 1 else values * count) for values in shards if values is not None]
    if count == 1 or not held:
        return [list(range(count))]
    groups: dict[tuple, list[int]] = {}
    for chip, values in enumerate(zip(*held)):
        groups.setdefault(values, []).append(chip)
    return list(groups.values())


def _extras(step: Step) -> dict:
    """Return the keywords that a golden takes beside its op's arguments (registry.py), except `store`."""
    extras, wants = {}, step.golden.wants
    if "out" in wants:
        outputs = tuple(slot._replace(dtype=_computed(slot.dtype)) for slot in step.outputs)
        extras["out"] = outputs[0] if len(outputs) == 1 else outputs
    if "dtypes" in wants:
        extras["dtypes"] = {name: _computed(slot.dtype) for name, slot in step.tensors.items()}
    if "paddings" in wants:
        extras["paddings"] = {name: memory.padding(slot) for name, slot in step.tensors.items()}
    return extras


def _padding(step: Step) -> float | None:
    """The value of the result's padding by the golden's `pads`."""
    pads = step.golden.pads
    value = step.arguments[pads] if isinstance(pads, str) else pads
    return memory.padding(value) if type(value) is Slot else value


def _computed(dtype: ttnn.DataType) -> ttnn.DataType:
    """Return the dtype that a golden computes with: the tensor's, or float32 inside `plain_float32`."""
    return ttnn.float32 if is_plain() and "INT" not in dtype.name else dtype


def _run_per_chip(step: Step, shards: Shards, into) -> None:
    chips = len(step.outputs[0].devices) if step.outputs else 0
    results: list[tuple | None] = [None] * chips
    extras = _extras(step)
    rewritten: dict[str, list] = {}  # inputs by parameter, new values by chip
    columns, beyond = _paddings(step)
    found = set()  # values of the result's padding

    def compute(values: list, *chips: int) -> tuple:
        packed = _rounded(step, step.call(_widened(values, columns, beyond), extras), *chips, columns=columns)
        if columns:
            whole, value = _cut(step, *packed, columns)
            found.add(value)
            return (whole,)
        return packed

    groups = _replicas(len((step.inputs or step.outputs)[0].devices), shards)
    if stacked := _stacked(step, shards, [group[0] for group in groups]):
        rounded = compute(stacked, len(groups))
        for group, *of_group in zip(groups, *(values.unbind() for values in rounded)):
            for chip in group:
                results[chip] = of_group
        groups = []
    for group in groups:
        if "rewrite" in step.golden.wants:

            def rewrite(name, values, group=group):
                for chip in group:
                    rewritten.setdefault(name, [None] * chips)[chip] = values

            extras["rewrite"] = rewrite
        rounded = compute([values and values[group[0]] for values in shards])
        for chip in group:
            results[chip] = rounded
    padding = found.pop() if len(found) == 1 else _padding(step)
    for slot, values in zip(step.outputs, zip(*results)):
        into.write(slot, values, padding=padding)
    for name, values in rewritten.items():
        slot = step.arguments[name]
        into.write(slot, [_packed(step.golden, value, slot.dtype) for value in values])


def _paddings(step: Step) -> tuple[int, list]:
    """Return how many columns of padding an elementwise op computes, and the value of each input there (None: it has
    none). The kernels compute all of a tile, and a block float's 16 columns share one exponent.

    0: the result has whole blocks, or an input's padding is unknown.
    """
    golden, outputs = step.golden, step.outputs
    width = outputs[0].shape[-1] if len(outputs) == 1 and outputs[0].shape else 0
    if not width % BLOCK:
        return 0, []
    pairs = golden.name == "ttnn.alt_complex_rotate90"
    elementwise = (golden.family in ELEMENTWISE and not pairs) or golden.name == "ttnn.typecast"
    if not elementwise or golden.writes or is_plain():
        return 0, []
    values: list = []
    for slot in step.inputs:
        own = slot.shape[-1] if slot.shape else 1
        values.append(memory.padding(slot) if own == width else None)
        if values[-1] is None and own in (width, 0) or own not in (1, width):
            return 0, []
    return -width % BLOCK if outputs[0].dtype in BLOCK_FLOATS else 1, values


def _widened(held: list, columns: int, values: list) -> list:
    """Return the inputs with their columns of padding."""
    pairs = zip(held, values) if columns else ()
    return [x if value is None else F.pad(x, (0, columns), value=value) for x, value in pairs] or held


def _cut(step: Step, packed: torch.Tensor, columns: int) -> tuple[torch.Tensor, float | None]:
    """Return the result without its padding, and the padding's value. None: it has several."""
    values, beyond = packed.split((packed.shape[-1] - columns, columns), -1)
    slot, first = step.outputs[0], beyond.flatten()[0]
    alike = all(x.shape[-2:] == slot.shape[-2:] for x in step.inputs)  # else rows of padding have other values
    if slot.dtype in BLOCK_FLOATS and not beyond.isfinite().all():
        meet("infinity in a block float's padding", step.golden.name, f"{slot.dtype.name} {list(slot.shape)}")
    return values, float(first) if alike and (beyond == first).all() else None


def _stacked(step: Step, shards: Shards, chips: list[int]) -> list | None:
    """Return the inputs of these chips for one call of the golden (registry.py). None: each chip needs a call."""
    golden = step.golden
    takes_chips = golden.stacks or golden.lists
    if not takes_chips or len(chips) == 1 or len(chips) * math.prod(step.outputs[0].shape) > AT_ONCE:
        return None
    ways: dict[Slot, str | None] = {}
    for name, slot in step.tensors.items():
        way = "list" if name in golden.lists else "stack" if name in golden.stacks else None
        if ways.setdefault(slot, way) != way:
            return None
    rank = max([len(slot.shape) for slot, way in ways.items() if way == "stack"], default=0)
    found: list = []
    for slot, held in zip(step.inputs, shards):
        values = [held[chip] for chip in chips] if len(held) > 1 else held * len(chips)
        one = all(value is values[0] for value in values)
        way = ways.get(slot)
        if way == "list":
            found.append(values)
        elif way == "stack":
            stack = values[0].expand(len(chips), *slot.shape) if one else torch.stack(values)
            found.append(stack.reshape(len(chips), *(1,) * (rank - len(slot.shape)), *slot.shape))
        elif one:
            found.append(values[0])
        else:
            return None
    return found


def _run_in_place(step: Step, shards: Shards, unknown: str | None, memory) -> None:
    """Run the golden in place. unknown: why some of the shards are marks, if they are."""
    targets = [(step.inputs.index(slot), slot) for slot in step.targets]
    if step.golden.unread:
        for i, slot in targets:
            shards[i] = memory.writable(slot)
    extras = _extras(step)
    dtypes = [slot.dtype for slot in step.targets]

    def store(values, name=step.golden.writes[0]):
        packed = _packed(step.golden, values, dtypes[step.golden.writes.index(name)])
        keeps_marks = unknown is None or not values.is_floating_point()
        return packed if keeps_marks else torch.where(values.isnan(), torch.nan, packed)  # a block float may lose some

    if "store" in step.golden.wants:
        extras["store"] = store
    for group in _replicas(len(step.inputs[0].devices), shards):
        values = [values and values[group[0]] for values in shards]
        for i, slot in targets:
            values[i] = memory.exclusive(slot, group)
        result = step.call(values, extras)
        if result is not None:
            target = values[targets[0][0]]
            target.copy_(store(result.reshape(target.shape)))
    if step.golden.unread:
        for _, slot in targets:
            memory.settle(slot, unknown)


def _run_over_chips(step: Step, shards: Shards, memory) -> None:
    slot = step.inputs[0]
    groups: dict[tuple, list[int]] = {}
    for chip, coordinate in enumerate(slot.coordinates):
        line = () if step.axis is None else tuple(c for a, c in enumerate(coordinate) if a != step.axis)
        groups.setdefault(line, []).append(chip)
    results: list = [None] * len(slot.devices)
    nothing = (None,) * len(step.outputs)
    for group in groups.values():
        values = step.call([held and [held[chip] for chip in group] for held in shards], _extras(step))
        rounded = each_once(lambda value: nothing if value is None else _rounded(step, value), values)
        for chip, result in zip(group, rounded, strict=True):
            results[chip] = result
    for i, out in enumerate(step.outputs):
        memory.write(out, [result[i] for result in results])
        for chip, result in zip(zip(out.devices, out.coordinates), results):
            if result[i] is None:  # the op wrote nothing on this chip
                memory.forget(out._replace(devices=chip[:1], coordinates=chip[1:]), NEVER_WRITTEN)


def _rounded(step: Step, value, *chips: int, columns: int = 0) -> tuple[torch.Tensor, ...]:
    """Return the golden's results as the packer writes them, checked against the real op's output specs.

    chips: the first dim of results of stacked chips. columns: of padding in the result.
    """
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(values) != len(step.outputs):
        raise GoldenError(f"{step.golden.name} returned {len(step.outputs)} tensors, its golden {len(values)}")
    packed = []
    for v, slot in zip(values, step.outputs):
        shape = *chips, *slot.shape[:-1], *(extent + columns for extent in slot.shape[-1:])
        if v.shape != shape:
            if _without_ones(v.shape[len(chips) :]) != _without_ones(shape[len(chips) :]):
                raise GoldenError(f"{step.golden.name} returned shape {list(slot.shape)}, its golden {list(v.shape)}")
            v = v.reshape(shape)
        packed.append(_packed(step.golden, v, slot.dtype))
    return tuple(packed)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape without the 1s that it begins with: the library takes tensors of several ranks together."""
    first = next((dim for dim, extent in enumerate(shape) if extent != 1), len(shape))
    return tuple(shape[first:])


def _packed(golden: Golden, values: torch.Tensor, dtype: ttnn.DataType) -> torch.Tensor:
    """Return a result as the packer writes it. Ops that move data have no packer: they keep NaN."""
    packed = pack(values, dtype)  # float32 without NaN
    has_nan = dtype == ttnn.bfloat16 and values.dtype != torch.float32 and golden.family not in MOVERS
    return nan_to_infinity(packed) if has_nan else packed
