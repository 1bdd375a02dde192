"""Gradients: ttnn's `_bw` operations, computed by torch's automatic differentiation in float32.

A chip computes a gradient in several operations, and each of them rounds. Here only the result is rounded.
"""

from inspect import Parameter, Signature
from typing import Callable

import torch
import torch.nn.functional as F

from golden_mesh.registry import golden


def _gradients(function: Callable, grad: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The gradient of each input, where `grad` is the gradient of function(*inputs)."""
    with torch.inference_mode(False), torch.enable_grad():
        copies = [x.clone().double().requires_grad_() for x in inputs]
        result = function(*copies)
        found = torch.autograd.grad(result, copies, grad.clone().double().expand(result.shape))
    return [g.float() for g in found]


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
}
# Functions with parameters: torch's function, and the parameters with the op's defaults.
_WITH_PARAMETERS: dict[str, tuple[Callable, dict[str, float]]] = {
    "celu": (F.celu, {"alpha": 1.0}),
    "elu": (F.elu, {"alpha": 1.0}),
    "hardshrink": (F.hardshrink, {"lambd": 0.5}),
    "hardtanh": (lambda x, min, max: F.hardtanh(x, min, max), {"min": -1.0, "max": 1.0}),
    "leaky_relu": (F.leaky_relu, {"negative_slope": 0.01}),
    "softplus": (F.softplus, {"beta": 1.0, "threshold": 20.0}),
    "softshrink": (F.softshrink, {"lambd": 0.5}),
}
_BINARY = {
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "squared_difference": lambda a, b: (a - b) ** 2,
    "xlogy": torch.xlogy,
}


def _unary(name: str, function: Callable, defaults: dict[str, float]) -> None:
    def op(grad_tensor, input_tensor, **parameters):
        how = defaults | parameters
        return _gradients(lambda x: function(x, **how), grad_tensor, input_tensor)

    names = [(n, Parameter.POSITIONAL_OR_KEYWORD) for n in ("grad_tensor", "input_tensor")]
    parameters = [Parameter(n, kind) for n, kind in names]
    parameters += [Parameter(n, Parameter.KEYWORD_ONLY, default=v) for n, v in defaults.items()]
    op.__signature__ = Signature(parameters)
    golden(f"ttnn.{name}_bw")(op)


for _name, _function in _UNARY.items():
    _unary(_name, _function, {})
for _name, (_function, _defaults) in _WITH_PARAMETERS.items():
    _unary(_name, _function, _defaults)


def _binary(function: Callable) -> Callable:
    def op(grad_tensor, input_tensor_a, input_tensor_b):
        return _gradients(function, grad_tensor, input_tensor_a, input_tensor_b)

    return op


for _name, _function in _BINARY.items():
    golden(f"ttnn.{_name}_bw")(_binary(_function))


def _arithmetic(function: Callable) -> Callable:
    def op(grad_tensor, *operands, are_required_outputs=(True, True), **named):
        """Of two tensors, or of a tensor and a number: the gradients that are required."""
        a, b = (*operands, *named.values())  # overloads have several names for them
        if not isinstance(b, torch.Tensor):
            return _gradients(lambda x: function(x, b), grad_tensor, a)
        found = _gradients(function, grad_tensor, a, b)
        return [g for g, required in zip(found, are_required_outputs, strict=True) if required]

    return op


golden("ttnn.add_bw")(_arithmetic(torch.add))
golden("ttnn.sub_bw")(_arithmetic(torch.sub))
golden("ttnn.mul_bw")(_arithmetic(torch.mul))


@golden("ttnn.embedding_bw")
def embedding_bw(input_tensor, weight_tensor, output_gradient_tensor, *, dtype=None, out):
    """Each row's gradient is the sum of the gradients of its ids: ids [B, S], gradients [1, 1, B * S, H]."""
    rows = output_gradient_tensor.float().reshape(-1, output_gradient_tensor.shape[-1])
    result = torch.zeros(out.shape[-2:])
    return result.index_add(0, input_tensor.flatten().long(), rows).reshape(out.shape)
