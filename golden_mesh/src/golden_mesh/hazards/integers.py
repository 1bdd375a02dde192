"""Hazards of operations on integers that show in their dtypes."""

import ttnn

from golden_mesh.hazards import meet
from golden_mesh.hazards.checks import Arguments, checks

_READ_AS_FLOATS = {  # op -> dtypes, of ttnn 0.81.1
    **dict.fromkeys(("ttnn.addalpha", "ttnn.subalpha", "ttnn.l1_loss", "ttnn.max_pool2d"), "INT32 UINT32 UINT16"),
    "ttnn.addcdiv": "UINT32 UINT16",
    **dict.fromkeys(("ttnn.cumsum", "ttnn.cumprod", "ttnn.moreh_cumsum", "ttnn.lerp"), "UINT16"),
}


@checks(*_READ_AS_FLOATS)
def _read_as_floats(op: str, given: Arguments) -> None:
    tensor = next((value for value in given.values() if isinstance(value, ttnn.Tensor)), None)
    if tensor is not None and given.get("dtype") is None and tensor.dtype.name in _READ_AS_FLOATS[op].split():
        meet("integers in a kernel of floats", op, f"tensors of {tensor.dtype.name}")


@checks("ttnn.floor_div")
def _floor_div(op: str, given: Arguments) -> None:
    dtypes = [v.dtype for v in given.values() if isinstance(v, ttnn.Tensor)]
    if dtypes == [ttnn.int32] * 2:
        meet("floor_div of integers", op, "two INT32 tensors")
