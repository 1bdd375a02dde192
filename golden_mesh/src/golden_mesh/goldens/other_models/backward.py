"""Gradients: ttnn's `_bw` operations, computed by torch's automatic differentiation in float32.

A chip computes a gradient in several operations, and each of them rounds. Some gradients of bfloat16 tensors are
computed in the steps of ttnn's composite operations (`STEPS`). Of the others only the result is rounded.
"""

from typing import Callable

import torch
import torch.nn.functional as F

from golden_mesh.arithmetic import engine
from golden_mesh.arithmetic.parts import common_shape
from golden_mesh.goldens.activations import function as f
from golden_mesh.goldens.activations import functions
from golden_mesh.mesh.memory import Slot
from golden_mesh.registry import golden, golden_table


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


def _number(value) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value).bfloat16()


def _mul(a: torch.Tensor, b) -> torch.Tensor:
    return (a.float() * _number(b).float()).bfloat16()


def _add(a: torch.Tensor, b) -> torch.Tensor:
    return engine.add(a, _number(b)).bfloat16()


def _hardswish(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    inside = _mul(g, _add(_mul(x, 0.3333), 0.5))
    return torch.where(x < -3, 0, torch.where(x <= 3, inside, g))


def _silu(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s = f("SIGMOID", x)
    rest = engine.subtract(_number(1.0), s).bfloat16()
    return _mul(_mul(g, s), _add(_mul(rest, x), 1.0))


def _erf(slope: float) -> Callable:
    return lambda g, x: _mul(_mul(f("EXP", -f("SQUARE", x)), g), slope)


STEPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cos": lambda g, x: _mul(g, -f("SIN", x)),
    "erf": _erf(1.1283791671),
    "erfc": _erf(-1.1283791671),
    "exp": lambda g, x: _mul(g, f("EXP", x)),
    "expm1": lambda g, x: _mul(g, f("EXP", x)),
    "hardswish": _hardswish,
    "log": lambda g, x: _mul(g, f("RECIP", x)),
    "reciprocal": lambda g, x: _mul(-g, f("RECIP", f("SQUARE", x))),
    "silu": _silu,
    "sin": lambda g, x: _mul(g, f("COS", x)),
    "sqrt": lambda g, x: _mul(g, f("RECIP", _mul(f("SQRT", x), 2.0))),
    "square": lambda g, x: _mul(_mul(g, 2.0), x),
    "tan": lambda g, x: _mul(g, _add(f("SQUARE", f("TAN", x)), 1.0)),
    "tanhshrink": lambda g, x: _mul(g, f("SQUARE", f("TANH", x))),
}


def _gelu(x: torch.Tensor, how) -> torch.Tensor:
    """how: the op's variant, or its string."""
    return F.gelu(x, approximate="tanh" if getattr(how, "name", how) in ("Tanh", "tanh") else "none")


# Of one to three tensors, and numbers in the ops' order.
_OF_TORCH = (
    "abs acos acosh add asin asinh atan atan2 atanh ceil clamp clip cos cosh deg2rad digamma erf erfc erfinv exp exp2 "
    "expm1 floor fmod frac hypot i0 lerp lgamma log log10 log1p log2 logaddexp logaddexp2 logit mul neg pow rad2deg "
    "reciprocal relu remainder round rsqrt rsub sigmoid sign sin sinh sqrt square sub tan tanh trunc xlogy"
)
_OF_F = (
    "celu elu hardshrink hardsigmoid hardswish hardtanh leaky_relu relu6 selu silu softplus softshrink softsign "
    "tanhshrink threshold"
)
_LIMITS = frozenset("clamp clip hardshrink hardtanh softshrink threshold".split())  # compare with bfloat16 numbers
_FUNCTIONS: dict[str, Callable] = {
    **functions(torch, _OF_TORCH),
    **functions(F, _OF_F),
    "addalpha": lambda a, b, alpha=1.0: a + alpha * b,
    "addcdiv": lambda a, b, c, alpha: a + alpha * b / c,
    "addcmul": lambda a, b, c, alpha: a + alpha * b * c,
    "assign": lambda a, b=0: a + b,
    "bias_gelu": lambda a, b, how: _gelu(a + b, how),
    "concat": lambda a, b, dim=0: torch.cat((a, b), dim),
    "div": lambda a, scalar, rounding_mode=None: torch.div(a, scalar, rounding_mode=rounding_mode),
    "div_no_nan": lambda a, scalar: a / scalar if scalar else a * 0,
    "fill_zero": lambda x: x * 0,
    "gelu": _gelu,
    "ldexp": lambda a, b: a * 2**b,
    "log_sigmoid": F.logsigmoid,
    "max": torch.maximum,
    "min": torch.minimum,
    "multigammaln": lambda x: torch.mvlgamma(x, 4),
    "polygamma": lambda x, n: torch.polygamma(n, x),
    "rdiv": lambda x, scalar, rounding_mode=None: torch.div(x.new_tensor(scalar), x, rounding_mode=rounding_mode),
    "rpow": lambda x, exponent: exponent**x,
    "squared_difference": lambda a, b: (a - b) ** 2,
    "subalpha": lambda a, b, alpha=1.0: a - alpha * b,
}


def _backward(name: str) -> Callable:
    function, steps = _FUNCTIONS[name], STEPS.get(name)

    def op(grad_tensor, are_required_outputs, out, **operands):
        """The gradients of the tensors that are required."""
        places = [name for name, x in operands.items() if isinstance(x, torch.Tensor)]
        if name in _LIMITS and grad_tensor.dtype == torch.bfloat16:
            operands = {key: x if x is None or key in places else _number(x).item() for key, x in operands.items()}
        of_tensors = lambda *tensors: function(*(operands | dict(zip(places, tensors))).values())
        found = gradients(of_tensors, grad_tensor, *map(operands.get, places))
        x = operands[places[0]]
        if steps and grad_tensor.dtype == x.dtype == torch.bfloat16:
            found[0] = found[0].where(~found[0].isfinite(), steps(grad_tensor, x).float())
        found = [g for g, wanted in zip(found, [*(are_required_outputs or (True, True)), True]) if wanted]
        return found[: len(slots(out))]  # lerp's weight has none

    return op


golden_table({f"ttnn.{name}_bw": _backward(name) for name in _FUNCTIONS})


@golden("ttnn.where_bw")
def where_bw(grad_tensor, input_tensor_a, input_tensor_b, input_tensor_c, are_required_outputs):
    """The gradients of b and c in where(a, b, c)."""
    where = lambda b, c: torch.where(input_tensor_a != 0, b, c)
    found = gradients(where, grad_tensor, input_tensor_b, input_tensor_c)
    return [g for g, wanted in zip(found, are_required_outputs, strict=True) if wanted]


@golden("ttnn.embedding_bw", ignores="weight_tensor")
def embedding_bw(input_tensor, output_gradient_tensor, out):
    """Each row's gradient is the sum of the gradients of its ids: ids [B, S], gradients [1, 1, B * S, H]."""
    rows = output_gradient_tensor.float().reshape(-1, output_gradient_tensor.shape[-1])
    result = torch.zeros(out.shape[-2:])
    return result.index_add(0, input_tensor.flatten().long(), rows).reshape(out.shape)
