"""Elementwise ops of two operands that write their result into the first."""

from typing import Callable

import torch

from golden_mesh.goldens.activations import functions
from golden_mesh.goldens.eltwise_binary import LOGICAL, compute, in_double, reverse_subtract, squared_difference
from golden_mesh.registry import golden_table


def _in_place(function: Callable) -> Callable:
    """An op of add_'s names."""

    def op(input_tensor_a, input_tensor_b, store, dtypes, **activations):
        result = compute(function, input_tensor_a, input_tensor_b, formats=dtypes, **activations)
        input_tensor_a.copy_(store(result.reshape(input_tensor_a.shape)))

    return op


_ROWS = {"ttnn.add_": _in_place(torch.add), "ttnn.subtract_": _in_place(torch.sub)}
golden_table(_ROWS, writes="input_tensor_a", passes=compute)


def _by_short_names(function: Callable, *first: str) -> Callable:
    """An op of multiply_'s names. first: activations before those of a call."""

    def op(input_a, input_b, activations, store, dtypes, **others):
        activations = [*first, *(activations or ())]
        result = compute(function, input_a, input_b, formats=dtypes, activations=activations, **others)
        input_a.copy_(store(result.reshape(input_a.shape)))

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
_BY_SHORT_NAMES = {f"ttnn.{name}_": _by_short_names(function) for name, function in _FUNCTIONS.items()}
_BY_SHORT_NAMES["ttnn.bias_gelu_"] = _by_short_names(torch.add, "gelu")
golden_table(_BY_SHORT_NAMES, writes="input_a", passes=compute)
