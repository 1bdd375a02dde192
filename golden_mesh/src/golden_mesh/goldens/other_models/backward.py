"""Gradients: ttnn's `_bw` operations, computed by torch's automatic differentiation in float32.

A chip computes a gradient in several operations, and each of them rounds. backward_steps.py has some of these steps.
Of the other gradients only the result is rounded.
"""

from typing import Callable

import torch
import torch.nn.functional as F

from golden_mesh.arithmetic.parts import common_shape
from golden_mesh.goldens.other_models.backward_steps import STEPS
from golden_mesh.mesh.memory import Slot
from golden_mesh.registry import golden


def gradients(function: Callable, grad: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The gradient of each input, where `grad` is the gradient of function(*inputs)."""
    with torch.inference_mode(False), torch.enable_grad():
        copies = [x.clone().double().requires_grad_() for x in inputs]
        result = function(*copies)
        shape = common_shape(grad.shape, result.shape)  # of any rank
        grad = grad.clone().double().expand(shape).reshape(result.shape)
        found = torch.autograd.grad(result, copies, grad, materialize_grads=True)
    return [g.float() for g in found]


def slots(out) -> tuple[Slot, ...]:
    """The slots of an op's results: `out` is one slot, or several."""
    return (out,) if isinstance(out, Slot) else out


_UNARY = {
    "abs": torch.abs,
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "deg2rad": torch.deg2rad,
    "digamma": torch.digamma,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinv": torch.erfinv,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "frac": torch.frac,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "i0": torch.i0,
    "lgamma": torch.lgamma,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "log_sigmoid": F.logsigmoid,
    "neg": torch.neg,
    "rad2deg": torch.rad2deg,
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "relu6": F.relu6,
    "rsqrt": torch.rsqrt,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "softsign": F.softsign,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "tanhshrink": F.tanhshrink,
    # with parameters, in the op's order
    "celu": F.celu,
    "elu": F.elu,
    "hardshrink": F.hardshrink,
    "hardtanh": lambda x, min, max: F.hardtanh(x, min, max),
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "softshrink": F.softshrink,
}
_BINARY = {
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "squared_difference": lambda a, b: (a - b) ** 2,
    "xlogy": torch.xlogy,
}


def _unary(name: str, function: Callable) -> None:
    def op(grad_tensor, input_tensor, **parameters):
        found = gradients(lambda x: function(x, *parameters.values()), grad_tensor, input_tensor)
        if name not in STEPS or not (grad_tensor.dtype == input_tensor.dtype == torch.bfloat16):
            return found
        return [found[0].where(~found[0].isfinite(), STEPS[name](grad_tensor, input_tensor).float())]

    golden(f"ttnn.{name}_bw")(op)


for _name, _function in _UNARY.items():
    _unary(_name, _function)


def _binary(function: Callable) -> Callable:
    def op(grad_tensor, input_tensor_a, input_tensor_b):
        return gradients(function, grad_tensor, input_tensor_a, input_tensor_b)

    return op


for _name, _function in _BINARY.items():
    golden(f"ttnn.{_name}_bw")(_binary(_function))


_SEVERAL: dict[str, Callable] = {  # of one to three tensors, and numbers in the ops' order
    "add": torch.add,
    "addalpha": lambda a, b, alpha=1.0: a + alpha * b,
    "addcdiv": lambda a, b, c, alpha: a + alpha * b / c,
    "addcmul": lambda a, b, c, alpha: a + alpha * b * c,
    "assign": lambda a, b=0: a + b,
    "ceil": torch.ceil,
    "clamp": torch.clamp,
    "clip": torch.clamp,
    "concat": lambda a, b, dim=0: torch.cat((a, b), dim),
    "div": lambda a, scalar, rounding_mode=None: torch.div(a, scalar, rounding_mode=rounding_mode),
    "div_no_nan": lambda a, scalar: a / scalar if scalar else a * 0,
    "fill_zero": lambda x: x * 0,
    "floor": torch.floor,
    "fmod": lambda a, scalar: torch.fmod(a, scalar),
    "ldexp": lambda a, b: a * 2**b,
    "lerp": lambda a, b, scalar: torch.lerp(a, b, scalar),
    "logit": torch.logit,
    "max": torch.maximum,
    "min": torch.minimum,
    "mul": torch.mul,
    "multigammaln": lambda x: torch.mvlgamma(x, 4),
    "polygamma": lambda x, n: torch.polygamma(n, x),
    "pow": lambda x, exponent: x**exponent,
    "rdiv": lambda x, scalar, rounding_mode=None: torch.div(x.new_tensor(scalar), x, rounding_mode=rounding_mode),
    "remainder": lambda a, scalar: torch.remainder(a, scalar),
    "round": torch.round,
    "rpow": lambda x, exponent: exponent**x,
    "rsub": lambda a, b: b - a,
    "sign": torch.sign,
    "sub": torch.sub,
    "subalpha": lambda a, b, alpha=1.0: a - alpha * b,
    "threshold": lambda x, min, max: F.threshold(x, min, max),
    "trunc": torch.trunc,
}


def _several(function: Callable) -> Callable:
    def op(grad_tensor, are_required_outputs, out, **operands):
        """The gradients of the tensors that are required."""
        places = [name for name, x in operands.items() if isinstance(x, torch.Tensor)]
        of_tensors = lambda *tensors: function(*(operands | dict(zip(places, tensors))).values())  # noqa: E731
        found = gradients(of_tensors, grad_tensor, *map(operands.get, places))
        found = [g for g, wanted in zip(found, [*(are_required_outputs or (True, True)), True]) if wanted]
        return found[: len(slots(out))]  # lerp's weight has none

    return op


for _name, _function in _SEVERAL.items():
    golden(f"ttnn.{_name}_bw")(_several(_function))


@golden("ttnn.where_bw")
def where_bw(grad_tensor, input_tensor_a, input_tensor_b, input_tensor_c, are_required_outputs):
    """The gradients of b and c in where(a, b, c)."""
    where = lambda b, c: torch.where(input_tensor_a != 0, b, c)  # noqa: E731
    found = gradients(where, grad_tensor, input_tensor_b, input_tensor_c)
    return [g for g, wanted in zip(found, are_required_outputs, strict=True) if wanted]


@golden("ttnn.gelu_bw")
def gelu_bw(grad_tensor, input_tensor, variant):
    how = "tanh" if getattr(variant, "name", "") == "Tanh" else "none"
    return gradients(lambda x: F.gelu(x, approximate=how), grad_tensor, input_tensor)


@golden("ttnn.bias_gelu_bw")
def bias_gelu_bw(grad_tensor, variant, approximate, **operands):
    """Of gelu(input + bias), for each of the two tensors, or of a tensor and a number."""
    a, b = operands.values()
    how = "tanh" if approximate == "tanh" or getattr(variant, "name", "") == "Tanh" else "none"
    gelu = lambda x, y=b: F.gelu(x + y, approximate=how)  # noqa: E731
    return gradients(gelu, grad_tensor, *((a, b) if isinstance(b, torch.Tensor) else (a,)))


@golden("ttnn.embedding_bw", ignores="weight_tensor")
def embedding_bw(input_tensor, output_gradient_tensor, out):
    """Each row's gradient is the sum of the gradients of its ids: ids [B, S], gradients [1, 1, B * S, H]."""
    rows = output_gradient_tensor.float().reshape(-1, output_gradient_tensor.shape[-1])
    result = torch.zeros(out.shape[-2:])
    return result.index_add(0, input_tensor.flatten().long(), rows).reshape(out.shape)
