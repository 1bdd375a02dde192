"""Elementwise ops of two operands that write their result into the first."""

from typing import Callable

import torch

from golden_mesh.goldens.activations import functions
from golden_mesh.goldens.eltwise_binary import LOGICAL, compute, in_double, reverse_subtract, squared_difference
from golden_mesh.registry import golden_table


def _in_place(function: Callable, *first: str) -> Callable:
    """first: activations before those of a call."""

    def op(input_a, input_b, input_tensor_a, input_tensor_b, activations, dtypes, **others):
        a, b = (input_tensor_a, input_tensor_b) if input_a is None else (input_a, input_b)
        return compute(function, a, b, formats=dtypes, activations=[*first, *(activations or ())], **others)

    return op


_FUNCTIONS = {
    "multiply": torch.mul,
    "divide": torch.div,
    "rsub": reverse_subtract,
    "squared_difference": squared_difference,
    "logaddexp": in_double(torch.logaddexp),
    "logaddexp2": in_double(torch.logaddexp2),
    **LOGICAL,
    **functions(torch, "ldexp eq ne lt le gt ge"),
}
_ROWS = {f"ttnn.{name}_": _in_place(function) for name, function in _FUNCTIONS.items()}
_ROWS["ttnn.bias_gelu_"] = _in_place(torch.add, "gelu")
golden_table(_ROWS, writes="input_a", passes=compute)
golden_table(
    {"ttnn.add_": _in_place(torch.add), "ttnn.subtract_": _in_place(torch.sub)}, writes="input_tensor_a", passes=compute
)
