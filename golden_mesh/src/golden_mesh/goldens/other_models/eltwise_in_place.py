"""Elementwise ops of two operands that write their result into the first."""

from typing import Callable

import torch

from golden_mesh.goldens.eltwise_binary import (
    compute,
    in_double,
    logical_and,
    logical_or,
    logical_xor,
    reverse_subtract,
    squared_difference,
)
from golden_mesh.registry import golden


def _in_place(name: str, function: Callable) -> None:
    """Register an op of add_'s names."""

    def op(input_tensor_a, input_tensor_b, store, dtypes, **activations):
        result = compute(function, input_tensor_a, input_tensor_b, formats=dtypes, **activations)
        input_tensor_a.copy_(store(result.reshape(input_tensor_a.shape)))

    golden(name, writes="input_tensor_a", passes=compute)(op)


_in_place("ttnn.add_", torch.add)
_in_place("ttnn.subtract_", torch.sub)


def _in_place_by_short_names(name: str, function: Callable, *first: str) -> None:
    """Register an op of multiply_'s names. first: activations before those of a call."""

    def op(input_a, input_b, activations, store, dtypes, **others):
        result = compute(
            function, input_a, input_b, formats=dtypes, activations=[*first, *(activations or ())], **others
        )
        input_a.copy_(store(result.reshape(input_a.shape)))

    golden(name, writes="input_a", passes=compute)(op)


_in_place_by_short_names("ttnn.bias_gelu_", torch.add, "gelu")
for _name, _function in {
    "multiply": torch.mul,
    "divide": torch.div,
    "rsub": reverse_subtract,
    "squared_difference": squared_difference,
    "ldexp": torch.ldexp,
    "logaddexp": in_double(torch.logaddexp),
    "logaddexp2": in_double(torch.logaddexp2),
    "logical_and": logical_and,
    "logical_or": logical_or,
    "logical_xor": logical_xor,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}.items():
    _in_place_by_short_names(f"ttnn.{_name}_", _function)
