"""The padding of an elementwise result whose rows end inside a block of 16 columns.

The kernels compute it as they compute all of a tile, and a block float's 16 columns share one exponent.
"""

import torch
import torch.nn.functional as F

from golden_mesh.arithmetic.packer import BLOCK_FLOATS
from golden_mesh.arithmetic.plain import is_plain
from golden_mesh.hazards import meet
from golden_mesh.rounding import BLOCK

_FAMILIES = {"eltwise_binary", "eltwise_several", "eltwise_unary"}


def paddings(step, memory) -> tuple[int, list]:
    """Return how many columns of padding an op computes here, and the value of each input there (None: it has none).

    0: the result has whole blocks, or an input's padding is unknown.
    """
    golden, outputs = step.golden, step.outputs
    width = outputs[0].shape[-1] if len(outputs) == 1 and outputs[0].shape else 0
    if not width % BLOCK:
        return 0, []
    pairs = golden.name == "ttnn.alt_complex_rotate90"
    elementwise = (golden.family in _FAMILIES and not pairs) or golden.name == "ttnn.typecast"
    if not elementwise or golden.writes or is_plain():
        return 0, []
    values: list = []
    for slot in step.inputs:
        own = slot.shape[-1] if slot.shape else 1
        values.append(memory.padding(slot) if own == width else None)
        if values[-1] is None and own in (width, 0) or own not in (1, width):
            return 0, []
    return -width % BLOCK if outputs[0].dtype in BLOCK_FLOATS else 1, values


def widened(held: list, columns: int, values: list) -> list:
    """Return the inputs with their columns of padding."""
    pairs = zip(held, values) if columns else ()
    return [x if value is None else F.pad(x, (0, columns), value=value) for x, value in pairs] or held


def cut(step, packed: torch.Tensor, columns: int) -> tuple[torch.Tensor, float | None]:
    """Return the result without its padding, and the padding's value. None: it has several."""
    values, beyond = packed.split((packed.shape[-1] - columns, columns), -1)
    slot, first = step.outputs[0], beyond.flatten()[0]
    alike = all(x.shape[-2:] == slot.shape[-2:] for x in step.inputs)  # else rows of padding have other values
    if slot.dtype in BLOCK_FLOATS and not beyond.isfinite().all():
        meet("infinity in a block float's padding", step.golden.name, f"{slot.dtype.name} {list(slot.shape)}")
    return values, float(first) if alike and (beyond == first).all() else None
