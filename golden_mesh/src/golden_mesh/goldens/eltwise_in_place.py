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


def _in_place(function: Callable) -> Callable:
    def op(
        input_tensor_a,
        input_tensor_b,
        *,
        fast_and_approximate_mode=None,
        activations=(),
        input_tensor_a_activations=(),
        input_tensor_b_activations=(),
        store,
        dtypes=None,
    ):
        result = compute(
            function, input_tensor_a, input_tensor_b, activations, input_tensor_a_activations,
            input_tensor_b_activations, dtypes=dtypes,
        )  # fmt: skip
        input_tensor_a.copy_(store(result.reshape(input_tensor_a.shape)))

    return op


golden("ttnn.add_", writes="input_tensor_a")(_in_place(torch.add))
golden("ttnn.subtract_", writes="input_tensor_a")(_in_place(torch.sub))


def _in_place_by_short_names(function: Callable) -> Callable:
    compute = _in_place(function)

    def op(
        input_a,
        input_b,
        *,
        fast_and_approximate_mode=None,
        activations=(),
        input_tensor_a_activations=(),
        input_tensor_b_activations=(),
        store,
        dtypes=None,
    ):
        compute(
            input_a,
            input_b,
            activations=activations,
            input_tensor_a_activations=input_tensor_a_activations,
            input_tensor_b_activations=input_tensor_b_activations,
            store=store,
            dtypes=dtypes,
        )

    return op


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
    golden(f"ttnn.{_name}_", writes="input_a")(_in_place_by_short_names(_function))


@golden("ttnn.bias_gelu_", writes="input_a")
def bias_gelu_(
    input_a, input_b, *, activations=(), input_tensor_a_activations=(), input_tensor_b_activations=(), store
):
    compute_in_place = _in_place(torch.add)
    compute_in_place(
        input_a,
        input_b,
        activations=["gelu", *activations],
        input_tensor_a_activations=input_tensor_a_activations,
        input_tensor_b_activations=input_tensor_b_activations,
        store=store,
    )
