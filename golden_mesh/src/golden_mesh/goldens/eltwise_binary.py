"""Elementwise ops of two operands, each a tensor or a number.

Each operand and the result may have activations: silu(a) * b is one op. The names of the operands differ
between ops: input_tensor_a and input_tensor_b, input_a and input_b, and input_b or value for a number.

Without a float32 tensor dest holds bfloat16, and an operand's activation is packed to the operand's dtype before
the op. The matrix engine computes sums and differences, and products with a block float. The vector unit computes
the rest, and rounds to nearest even.
"""

from functools import partial
from typing import Callable

import torch
import ttnn

from golden_mesh.arithmetic import engine, powers, remainders, special, steps
from golden_mesh.arithmetic.kernel import PHASES, Kernel
from golden_mesh.arithmetic.packer import BLOCK_FLOATS, pack
from golden_mesh.arithmetic.parts import in_parts
from golden_mesh.arithmetic.product import multiply
from golden_mesh.arithmetic.vector import in_bfloat16_dest
from golden_mesh.errors import GoldenError
from golden_mesh.goldens import quotients
from golden_mesh.goldens.activations import PLAIN, activate_all, beside_integers, functions, wide
from golden_mesh.hazards import meet
from golden_mesh.registry import golden, golden_table

Operand = "torch.Tensor | float | int"


def _tensor(value: Operand, other: Operand) -> torch.Tensor:
    """A number in the dtype of the other operand: the nearest bfloat16, or float32, or an integer beside integers."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, int) or not isinstance(other, torch.Tensor) or other.dtype != torch.bfloat16:
        return torch.full((), value, dtype=torch.float32 if isinstance(value, float) else other.dtype)
    return torch.tensor(value).bfloat16()


def _whole(value: Operand, other: Operand) -> Operand:
    integers = isinstance(other, torch.Tensor) and not other.is_floating_point()
    return beside_integers(value) if integers and isinstance(value, float) else value


def _operand(x: torch.Tensor, activations, in_float32: bool, dtype) -> torch.Tensor:
    """An operand with its activations, as its dtype holds it."""
    if not activations:
        return x
    result = _as_dest(activate_all(_as_dest(wide(x), in_float32), activations, dtype), in_float32)
    return pack(result, dtype or ttnn.bfloat16) if x.dtype == torch.bfloat16 else result


def _cast(x: torch.Tensor) -> torch.Tensor:
    """A bfloat16 operand of a float32 dest: the library casts it."""
    return special.without_nan(special.normal(x)).float()


def _as_dest(x: torch.Tensor, in_float32: bool) -> torch.Tensor:
    return x.bfloat16() if x.is_floating_point() and not in_float32 else x


def compute(
    function: Callable, a: Operand, b: Operand, out_dtype=None, formats=None, *,
    activations=(), input_tensor_a_activations=(), input_tensor_b_activations=(),
):  # fmt: skip
    """function(a, b) with its activations. Dest holds float32 if one of the three tensors is float32.

    formats: the dtypes of the operands that are tensors, by their names, a first.
    """
    a_dtype, b_dtype = [*(formats or {}).values(), None, None][:2]
    if out_dtype is None or "INT" in out_dtype.name:
        a, b = _whole(a, b), _whole(b, a)
    a, b = _tensor(a, b), _tensor(b, a)
    if a.is_floating_point() != b.is_floating_point() and torch.bfloat16 in (a.dtype, b.dtype):
        a, b = a.bfloat16(), b.bfloat16()  # the library casts the integers
    in_float32 = torch.float32 in (a.dtype, b.dtype) or out_dtype == ttnn.float32
    a = _operand(a, input_tensor_a_activations, in_float32, a_dtype)
    b = _operand(b, input_tensor_b_activations, in_float32, b_dtype)
    kernel = _kernel(function, a, b, out_dtype, {a_dtype, b_dtype})
    if kernel and not in_float32:
        result = in_parts(lambda a, b: pack(kernel(a, b), ttnn.bfloat16), a, b)
    else:
        if not kernel and in_float32:
            a, b = (_cast(x) if x.dtype == torch.bfloat16 else x for x in (a, b))
        result = kernel(a, b) if kernel else function(wide(a), wide(b))
        if function is torch.mul and not in_float32 and result.is_floating_point():
            result = special.product_without_nan(result, a, b)
    if activations:
        dest = result.float() if result.dtype == torch.bool else wide(result)
        result = activate_all(_as_dest(dest, in_float32), activations, out_dtype)
    if not kernel and out_dtype == ttnn.bfloat16 and result.dtype == torch.float32:
        return result.bfloat16()  # by the vector unit: ties to even
    return _as_dest(result, in_float32)


def _kernel(function: Callable, a: torch.Tensor, b: torch.Tensor, out_dtype, dtypes: set):
    """Return the kernel's own arithmetic. None: the vector unit's, which is torch's, rounded to nearest even.

    Two float32, integers, and two bfloat16 with a float32 result go through the vector unit.
    """
    floats = a.is_floating_point() and b.is_floating_point()
    in_float32 = torch.float32 in (a.dtype, b.dtype)
    if not floats or torch.bfloat16 not in (a.dtype, b.dtype):
        return None
    if out_dtype == ttnn.float32 and not in_float32:
        return None
    if function is torch.mul and BLOCK_FLOATS.isdisjoint(dtypes):
        return None
    return _ENGINE.get(function) or (None if in_float32 else _IN_BFLOAT16_DEST.get(function))


def in_double(function: Callable) -> Callable:
    """torch's function in float64: its float32 form computes a tensor's last elements with other code."""
    return lambda a, b: function(a.double(), b.double()).float()


def squared_difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b) ** 2


def _of_truth(function: Callable) -> Callable:
    is_true = PLAIN["NEZ"]
    return lambda a, b: function(is_true(a), is_true(b))


LOGICAL = {name: _of_truth(f) for name, f in functions(torch, "logical_and logical_or logical_xor").items()}
logaddexp, logaddexp2 = map(in_double, (torch.logaddexp, torch.logaddexp2))


def xlogy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return steps.times_log(a.float(), b.float(), narrow=a.dtype == b.dtype == torch.bfloat16)


golden("ttnn.rpow")(lambda input_tensor, exponent: quotients.power_of_number(exponent, input_tensor))


def reverse_subtract(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return b - a


def least_common_multiple(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if (largest := max(int(x.long().abs().max()) for x in (a, b))) >= 1 << 15:
        meet("lcm beyond 32767", "ttnn.lcm", f"{largest}")
    return torch.lcm(a.long(), b.long())


_ENGINE = {
    torch.add: engine.add_in_float32_dest,
    torch.sub: engine.subtract_in_float32_dest,
    torch.mul: lambda a, b: multiply(a, b, Kernel(PHASES["HiFi4"], wide=torch.float32 in (a.dtype, b.dtype))),
    # -a is packed before b is added: infinity for NaN
    reverse_subtract: lambda a, b: engine.subtract_in_float32_dest(b, special.without_nan(a)),
}
_IN_BFLOAT16_DEST = {
    # the matrix engine subtracts, and the vector unit squares the packed difference
    squared_difference: lambda a, b: (engine.subtract(a, b) ** 2).bfloat16().float(),
    # packed: ties away from zero
    quotients.remainder_by_floor: lambda a, b: remainders.by_floor(a.float(), b.float(), True),
    powers.wide: lambda a, b: powers.narrow(a.float(), b.float()).bfloat16().float(),
    quotients.repeated_product: lambda a, b: engine.keep(quotients.repeated_product(a, b), engine.BFLOAT16),
    # a * 2**b: the vector unit's power, rounded, times a by the matrix engine
    torch.ldexp: lambda a, b: multiply(a, in_bfloat16_dest("EXP2")(b), Kernel(PHASES["HiFi4"], wide=False)),
    xlogy: xlogy,
    logaddexp: lambda a, b: steps.logaddexp(a.float(), b.float()),
    logaddexp2: lambda a, b: steps.logaddexp2(a.float(), b.float()),
}


def _binary(function: Callable) -> Callable:
    def op(input_tensor_a, input_tensor_b, out, dtypes, **activations):
        return compute(function, input_tensor_a, input_tensor_b, out.dtype, dtypes, **activations)

    return op


def _of_normal(function: Callable) -> Callable:
    """The function of numbers whose subnormals are 0."""
    return lambda a, b: function(special.normal(a), special.normal(b))


def smaller(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """NaN is above all numbers."""
    return torch.fmin(a, b) if a.is_floating_point() else torch.minimum(a, b)


for _name, _function in {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "squared_difference": squared_difference,
    **LOGICAL,
    **{name: _of_normal(function) for name, function in functions(torch, "eq ne lt le gt ge").items()},
    "gcd": lambda a, b: torch.gcd(a.long(), b.long()),
    "lcm": least_common_multiple,
    "ldexp": torch.ldexp,
    "logaddexp": logaddexp,
    "logaddexp2": logaddexp2,
    "xlogy": xlogy,
}.items():
    golden(f"ttnn.{_name}", stacks="input_tensor_a input_tensor_b", passes=compute)(_binary(_function))


def binary_of_numbers(function: Callable) -> Callable:
    """An op whose overload for a number calls it input_b."""

    def op(input_tensor_a, input_tensor_b, input_b, out, **activations):
        other = input_b if input_tensor_b is None else input_tensor_b
        return compute(function, input_tensor_a, other, out.dtype, **activations)

    return op


_OF_NUMBERS = {"maximum": torch.maximum, "minimum": smaller, "rsub": reverse_subtract}
golden_table({f"ttnn.{name}": binary_of_numbers(f) for name, f in _OF_NUMBERS.items()}, passes=compute)


def _in_place(function: Callable, *first: str) -> Callable:
    """An op that writes its result into the first operand. first: activations before those of a call."""

    def op(input_a, input_b, input_tensor_a, input_tensor_b, activations, dtypes, **others):
        a, b = (input_tensor_a, input_tensor_b) if input_a is None else (input_a, input_b)
        return compute(function, a, b, formats=dtypes, activations=[*first, *(activations or ())], **others)

    return op


_IN_PLACE = {
    "multiply": torch.mul,
    "divide": torch.div,
    "rsub": reverse_subtract,
    "squared_difference": squared_difference,
    "logaddexp": logaddexp,
    "logaddexp2": logaddexp2,
    **LOGICAL,
    **functions(torch, "ldexp eq ne lt le gt ge"),
}
golden_table({f"ttnn.{name}_": _in_place(f) for name, f in _IN_PLACE.items()}, writes="input_a", passes=compute)
golden("ttnn.bias_gelu_", writes="input_a", passes=compute)(_in_place(torch.add, "gelu"))
golden("ttnn.add_", writes="input_tensor_a", passes=compute)(_in_place(torch.add))
golden("ttnn.subtract_", writes="input_tensor_a", passes=compute)(_in_place(torch.sub))


@golden("ttnn.remainder", passes=compute)
def remainder(input_tensor_a, input_tensor_b, out, **activations):
    """The remainder of a / b with b's sign. A number is not rounded to bfloat16."""
    quotients.check_remainder("ttnn.remainder", input_tensor_a, input_tensor_b)
    function = quotients.remainder_by_floor
    if not isinstance(input_tensor_b, torch.Tensor) and input_tensor_a.is_floating_point():
        narrow = input_tensor_a.dtype == torch.bfloat16
        function = lambda a, _: remainders.by_floor_of_number(a, input_tensor_b, narrow)
    return compute(function, input_tensor_a, input_tensor_b, out.dtype, **activations)


@golden("ttnn.bias_gelu", passes=compute)
def bias_gelu(input_tensor_a, input_tensor_b, fast_and_approximate_mode, activations, out, **others):
    """gelu(a + b)"""
    if fast_and_approximate_mode:
        raise GoldenError("ttnn.bias_gelu by a table has no golden: leave out fast_and_approximate_mode")
    gelu = ["gelu", *activations]
    return compute(torch.add, input_tensor_a, input_tensor_b, out.dtype, activations=gelu, **others)


@golden("ttnn.div", "ttnn.divide", passes=compute)
def div(input_tensor_a, input_tensor_b, value, rounding_mode, out, **activations):
    """a / b, of which one may be a number; rounding_mode "trunc" or "floor" rounds the quotient that dest holds."""
    other = value if input_tensor_b is None else input_tensor_b
    rounded = rounding_mode and getattr(torch, rounding_mode)
    dtypes = {x.dtype for x in (input_tensor_a, other) if isinstance(x, torch.Tensor)}
    dtype = out.dtype if dtypes == {torch.bfloat16} else ttnn.float32

    def function(a, b):
        if rounded and quotients.are_integers(a, b):
            return quotients.whole_quotient(a, b, rounding_mode)
        if rounded:
            return quotients.rounded_quotient(a, b, rounded, dtype)
        return quotients.quotient_of_inverse(a, b) if dtype == ttnn.bfloat16 else quotients.quotient(a, b)

    return compute(function, input_tensor_a, other, out.dtype, **activations)


@golden("ttnn.pow", passes=compute)
def power(input_tensor, exponent, out, **activations):
    """Of floats: 2 and 3 are products, which a bfloat16 dest cuts. 0 and 1 are exact."""
    if not isinstance(input_tensor, torch.Tensor):
        return quotients.power_of_number(input_tensor, exponent)
    function = powers.wide
    if not input_tensor.is_floating_point():
        function = torch.pow
        exponent = int(exponent)  # PowIntDeviceOperation: products of integers. The library refuses other exponents
    elif not isinstance(exponent, torch.Tensor):
        narrow = input_tensor.dtype == torch.bfloat16
        function = partial(quotients.power_by_number, number=exponent, narrow=narrow)
        if exponent in (0, 1, 2, 3):
            function = torch.pow if exponent < 2 else quotients.repeated_product
    return compute(function, input_tensor, exponent, out.dtype, **activations)
