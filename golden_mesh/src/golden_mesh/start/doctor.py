"""golden-mesh --doctor: the installed ttnn, and the parts of it that the golden mesh does not know."""

import platform
import re
import textwrap
from collections.abc import Sequence
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import golden_mesh
from golden_mesh.hazards import HAZARDS
from golden_mesh.registry import GOLDENS
from golden_mesh.versions import NEWEST, OLDEST, check_version, lacking

WIDTH = 100  # columns of the report
_NARROW = "with a bfloat16 dest and default sums up to 9e-3 (bfloat8_b 2.1e-2); with exact sums nearly equal"
_ORDER = "with a bfloat16 dest, the default, 1.5e-2: the library chooses the order of the sum"
# Operations with values that differ from a chip's by more than rounding. HAZARDS.md has the numbers.
DIFFERS = {
    "digamma": "below 0 a chip's kernel is wrong",
    **dict.fromkeys(("sin", "cos", "tan"), "beyond 1e7 a chip's results leave [-1, 1], up to infinity"),
    "hypot": "beyond 1.8e19 infinity on a chip, below 1e-19 0",
    "rms_norm": "without fp32_dest_acc_en 0 on a chip for a row with bfloat16's largest or lowest number",
    **dict.fromkeys(("remainder", "fmod"), "beyond a quotient of 2**22 another number on a chip"),
    **dict.fromkeys(("matmul", "linear", "scaled_dot_product_attention"), _NARROW),
    **dict.fromkeys(("scaled_dot_product_attention_decode", "paged_scaled_dot_product_attention_decode"), _NARROW),
    **dict.fromkeys(("conv1d", "conv2d", "conv_transpose2d"), _ORDER),
    "group_norm": "5e-3, gain 0.998: only the result is rounded",
    "batch_norm": "3e-3, gain 1.002: the batch's statistics are another sum",
    "embedding_bw": "3e-3: only the result is rounded",
    "topk": "without stable=True equal values have another order",
    "softmax": "with numeric_stable=False and scores above 88: infinity here, 0 on a chip",
}


def report(programs: Sequence[Path] = ()) -> list[str]:
    """Return lines that describe this installation, and the operations of the programs that differ from a chip's.

    Activates a golden N150, so call it in a separate process.
    """
    found = check_version()
    golden_mesh.activate("N150")
    import ttnn

    from golden_mesh.mesh import dispatch, doors

    there = {op.python_fully_qualified_name for op in ttnn.decorators.REGISTERED_OPERATIONS}
    known = GOLDENS.keys() | dispatch.HANDLERS.keys() | dispatch.TRANSPARENT
    part_of = lambda owner, name: getattr(owner, name, None)
    missing = [name for name in GOLDENS if reduce(part_of, name.split(".")[1:], ttnn) is None]
    lines = [
        f"golden mesh {_own_version()}, tested with ttnn {OLDEST} to {NEWEST}",
        f"ttnn {found}, Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        f"systems: {', '.join(golden_mesh.SYSTEMS)}",
        f"operations: {len(there)}, with values: {len(there & known)}",
        *_listing("operations without a golden (a call on device tensors is refused)", there - known),
        *_listing("goldens of operations that this ttnn lacks", missing),
        *_listing("lacking in this ttnn", [f"{k}: {v}" for k, v in lacking.items()]),
        *_listing("functions that refuse tensors on a device", doors.refused),
        *_listing("calls that a chip gets wrong (HAZARDS.md)", HAZARDS),
    ]
    if programs:
        names = re.findall(r"ttnn\.(?:\w+\.)*(\w+)", "\n".join(path.read_text() for path in programs))
        found = [f"    ttnn {name}: {why}" for name, why in DIFFERS.items() if name in names]
        lines += [f"operations of the programs that are not like a chip's here: {len(found)}", *found]
    return lines


def _own_version() -> str:
    try:
        return version("golden-mesh")
    except PackageNotFoundError:
        return "(not installed)"


def _listing(title: str, names) -> list[str]:
    names = sorted(names)
    text = textwrap.wrap(", ".join(names), WIDTH, break_long_words=False)
    return [f"{title}: {len(names)}", *(f"    {line}" for line in text)]
