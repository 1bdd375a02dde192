"""Elementwise ops of one, two and three tensors.

ttnn's binary ops take activations for either operand and for the result, which makes silu(a) * b one op.
"""
from typing import Callable

import torch

from models.common.golden_mesh.errors import GoldenError
from models.common.golden_mesh.goldens.activations import PLAIN, activate_all
from models.common.golden_mesh.registry import golden

_UNARY = {  # ttnn op -> UnaryOpType
    "abs": "ABS",
    "ceil": "CEIL",
    "cos": "COS",
    "eqz": "EQZ",
    "erf": "ERF",
    "exp": "EXP",
    "exp2": "EXP2",
    "expm1": "EXPM1",
    "floor": "FLOOR",
    "gez": "GEZ",
    "gtz": "GTZ",
    "hardsigmoid": "HARDSIGMOID",
    "hardswish": "HARDSWISH",
    "identity": "IDENTITY",
    "lez": "LEZ",
    "log": "LOG",
    "log10": "LOG10",
    "log1p": "LOG1P",
    "log2": "LOG2",
    "log_sigmoid": "LOGSIGMOID",
    "logical_not": "LOGICAL_NOT_UNARY",
    "ltz": "LTZ",
    "mish": "MISH",
    "neg": "NEG",
    "nez": "NEZ",
    "reciprocal": "RECIP",
    "relu": "RELU",
    "relu6": "RELU6",
    "rsqrt": "RSQRT",
    "sigmoid": "SIGMOID",
    "sigmoid_accurate": "SIGMOID",
    "sign": "SIGN",
    "silu": "SILU",
    "sin": "SIN",
    "sqrt": "SQRT",
    "square": "SQUARE",
    "swish": "SILU",
    "tan": "TAN",
    "tanh": "TANH",
}


def _wide(value):
    """Floats as float32; integer tensors and numbers as they are."""
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _unary(function: Callable) -> Callable:
    def op(input_tensor, *, fast_and_approximate_mode=False, mode=None, vector_mode=4):
        return function(_wide(input_tensor))

    return op


for _name, _type in _UNARY.items():
    golden(f"ttnn.{_name}")(_unary(PLAIN[_type]))


@golden("ttnn.gelu")
def gelu(input_tensor, *, variant=None, fast_and_approximate_mode=False):
    """Exact, or by tanh where the variant says so. The table of FastLut is off by up to one per cent: not golden."""
    name = getattr(variant, "name", "Accurate")
    if fast_and_approximate_mode or name not in ("Accurate", "Tanh"):
        raise GoldenError(f"ttnn.gelu by a table ({name}) has no golden: use GeluVariant.Accurate or GeluVariant.Tanh")
    return PLAIN["GELU_TANH" if name == "Tanh" else "GELU"](_wide(input_tensor))


_BINARY = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "rsub": lambda a, b: b - a,
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
}


def _operands(a, b, a_activations, b_activations):
    """Both operands as tensors, activated. A number takes the dtype of the tensor that it meets."""
    a, b = _wide(a), _wide(b)
    if not isinstance(a, torch.Tensor):
        a = torch.full((), a, dtype=_dtype_beside(a, b))
    if not isinstance(b, torch.Tensor):
        b = torch.full((), b, dtype=_dtype_beside(b, a))
    return activate_all(a, a_activations), activate_all(b, b_activations)


def _dtype_beside(number, tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if isinstance(number, float) else tensor.dtype


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


def _binary_in_place(function: Callable) -> Callable:
    compute = _binary(function)

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
        result = compute(
            input_tensor_a,
            input_tensor_b,
            activations=activations,
            input_tensor_a_activations=input_tensor_a_activations,
            input_tensor_b_activations=input_tensor_b_activations,
        )
        input_tensor_a.copy_(store(result))

    return op


for _name, _function in _BINARY.items():
    golden(f"ttnn.{_name}")(_binary(_function))
for _name in ("add", "subtract", "divide"):
    golden(f"ttnn.{_name}_", writes="input_tensor_a")(_binary_in_place(_BINARY[_name]))


@golden("ttnn.multiply_", writes="input_a")
def multiply_(
    input_a,
    input_b,
    *,
    fast_and_approximate_mode=None,
    activations=(),
    input_tensor_a_activations=(),
    input_tensor_b_activations=(),
    store,
):
    """In place. The only one of the four whose operands are called input_a and input_b."""
    a, b = _operands(input_a, input_b, input_tensor_a_activations, input_tensor_b_activations)
    input_a.copy_(store(activate_all(a * b, activations)))


def _extremum(function: Callable) -> Callable:
    def op(
        input_tensor_a,
        input_tensor_b=None,
        *,
        input_b=None,
        dtype=None,
        activations=(),
        input_tensor_a_activations=(),
        input_tensor_b_activations=(),
    ):
        other = input_b if input_tensor_b is None else input_tensor_b  # ttnn's overload for numbers says input_b
        a, b = _operands(input_tensor_a, other, input_tensor_a_activations, input_tensor_b_activations)
        return activate_all(function(a, b), activations)

    return op


golden("ttnn.maximum")(_extremum(torch.maximum))
golden("ttnn.minimum")(_extremum(torch.minimum))


@golden("ttnn.div")
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


@golden("ttnn.where")
def where(predicate, true_value, false_value):
    return torch.where(predicate != 0, _wide(true_value), _wide(false_value))


@golden("ttnn.clamp", "ttnn.clip")
def clamp(input_tensor, min=None, max=None):
    return torch.clamp(_wide(input_tensor), _wide(min), _wide(max))


@golden("ttnn.unary_chain")
def unary_chain(input_tensor, ops_chain):
    return activate_all(_wide(input_tensor), ops_chain)
