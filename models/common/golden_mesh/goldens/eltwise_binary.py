"""Elementwise ops of two operands, each a tensor or a number.

They take activations for either operand and for the result, which makes silu(a) * b one op. ttnn calls its operands by
several names: input_tensor_a and input_tensor_b, but input_b or value where the second is a number in some ops, and
input_a and input_b in some in-place ones.
"""

from typing import Callable

import torch

from models.common.golden_mesh.goldens.activations import activate_all, wide
from models.common.golden_mesh.registry import golden


def _operands(a, b, a_activations, b_activations) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as tensors, activated. A whole number takes the dtype of the tensor that it meets."""
    a, b = wide(a), wide(b)
    if not isinstance(a, torch.Tensor):
        a = torch.full((), a, dtype=torch.float32 if isinstance(a, float) else b.dtype)
    if not isinstance(b, torch.Tensor):
        b = torch.full((), b, dtype=torch.float32 if isinstance(b, float) else a.dtype)
    return activate_all(a, a_activations), activate_all(b, b_activations)


def _binary(function: Callable) -> Callable:
    def op(
        input_tensor_a,
        input_tensor_b,
        *,
        dtype=None,
        fast_and_approximate_mode=None,
        activations=(),
        input_tensor_a_activations=(),
        input_tensor_b_activations=(),
    ):
        a, b = _operands(input_tensor_a, input_tensor_b, input_tensor_a_activations, input_tensor_b_activations)
        return activate_all(function(a, b), activations)

    return op


for _name, _function in {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "squared_difference": lambda a, b: (a - b) ** 2,
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "logical_xor": lambda a, b: (a != 0) ^ (b != 0),
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}.items():
    golden(f"ttnn.{_name}")(_binary(_function))


def _binary_with_input_b(function: Callable) -> Callable:
    def op(
        input_tensor_a,
        input_tensor_b=None,
        *,
        input_b=None,
        dtype=None,
        fast_and_approximate_mode=None,
        activations=(),
        input_tensor_a_activations=(),
        input_tensor_b_activations=(),
    ):
        other = input_b if input_tensor_b is None else input_tensor_b
        a, b = _operands(input_tensor_a, other, input_tensor_a_activations, input_tensor_b_activations)
        return activate_all(function(a, b), activations)

    return op


golden("ttnn.maximum")(_binary_with_input_b(torch.maximum))
golden("ttnn.minimum")(_binary_with_input_b(torch.minimum))
golden("ttnn.rsub")(_binary_with_input_b(lambda a, b: b - a))


@golden("ttnn.div", "ttnn.divide")
def div(
    input_tensor_a,
    input_tensor_b=None,
    *,
    value=None,
    fast_and_approximate_mode=None,
    rounding_mode=None,
    dtype=None,
    activations=(),
    input_tensor_a_activations=(),
    input_tensor_b_activations=(),
):
    """a / b; rounding_mode "trunc" or "floor" as in torch."""
    other = value if input_tensor_b is None else input_tensor_b
    a, b = _operands(input_tensor_a, other, input_tensor_a_activations, input_tensor_b_activations)
    return activate_all(torch.div(a, b, rounding_mode=rounding_mode), activations)


@golden("ttnn.pow")
def power(
    input_tensor,
    exponent,
    *,
    dtype=None,
    activations=(),
    input_tensor_a_activations=(),
    input_tensor_b_activations=(),
):
    a, b = _operands(input_tensor, exponent, input_tensor_a_activations, input_tensor_b_activations)
    return activate_all(torch.pow(a, b), activations)


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
    ):
        a, b = _operands(input_tensor_a, input_tensor_b, input_tensor_a_activations, input_tensor_b_activations)
        input_tensor_a.copy_(store(activate_all(function(a, b), activations)))

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
    ):
        compute(
            input_a,
            input_b,
            activations=activations,
            input_tensor_a_activations=input_tensor_a_activations,
            input_tensor_b_activations=input_tensor_b_activations,
            store=store,
        )

    return op


golden("ttnn.multiply_", writes="input_a")(_in_place_by_short_names(torch.mul))
golden("ttnn.divide_", writes="input_a")(_in_place_by_short_names(torch.div))
