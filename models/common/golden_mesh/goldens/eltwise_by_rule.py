"""Elementwise functions of one tensor by the rule: what ttnn's own golden function says, computed in double precision.

In double precision, since some of torch's float32 functions go through other code for a tensor's last few elements:
then an element's last bit would depend on what lies beside it. The parameters are those that the op declares; ttnn's
goldens ignore what they do not know, so each that is let in here was seen to count (test_by_rule_goldens.py).
"""

from inspect import Parameter, Signature
from typing import Callable

import torch
import ttnn

from models.common.golden_mesh.goldens.eltwise_unary import as_dest
from models.common.golden_mesh.registry import golden

_PLAIN = (
    "asinh atan cbrt cosh deg2rad digamma erfc erfinv frac hardmish i0 i1 isfinite isinf isnan isneginf isposinf "
    "lgamma multigammaln rad2deg signbit sinh softsign tanhshrink trunc"
).split()
# op -> its parameters after the tensor: those by position, then those by keyword. (What is left out of a call, ttnn's
# golden has a default for; it is the op's.)
_WITH_PARAMETERS = {
    "celu": ((), ("alpha",)),
    "elu": ((), ("alpha",)),
    "fill": (("fill_value",), ()),
    "hardshrink": ((), ("lambd",)),
    "hardtanh": ((), ("min_val", "max_val")),
    "heaviside": (("value",), ()),
    "leaky_relu": (("negative_slope",), ()),
    "logit": ((), ("eps",)),
    "polygamma": (("k",), ()),
    "relu_max": (("upper_limit",), ()),
    "relu_min": (("lower_limit",), ()),
    "round": ((), ("decimals",)),
    "rpow": (("exponent",), ()),
    "selu": ((), ("scale", "alpha")),
    "softplus": ((), ("beta", "threshold")),
    "softshrink": ((), ("lambd",)),
    "threshold": (("threshold", "value"), ()),
    "xielu": ((), ("alpha_p", "alpha_n")),
}


def _compute(function: Callable, x: torch.Tensor, *args, **kwargs) -> torch.Tensor:
    """Rounded as dest holds it, but for whole numbers, which double precision holds, and truths."""
    result = function(x.double(), *args, **kwargs)
    return as_dest(result.float(), x) if x.is_floating_point() and result.is_floating_point() else result


def _by_rule(name: str, positional: tuple[str, ...] = (), keywords: tuple[str, ...] = ()) -> None:
    function = ttnn.get_golden_function(getattr(ttnn, name))

    def op(input_tensor, *args, **kwargs):
        return _compute(function, input_tensor, *args, **kwargs)

    names = [(n, Parameter.POSITIONAL_OR_KEYWORD) for n in ("input_tensor", *positional)]
    names += [(n, Parameter.KEYWORD_ONLY) for n in keywords]
    op.__signature__ = Signature([Parameter(n, kind) for n, kind in names])
    golden(f"ttnn.{name}")(op)


for _name in _PLAIN:
    _by_rule(_name)
for _name, _parameters in _WITH_PARAMETERS.items():
    _by_rule(_name, *_parameters)


def _with_domain(function: Callable) -> Callable:
    """Outside of its domain a bfloat16 result is +infinity, where a float32 one is NaN."""

    def op(input_tensor):
        result = _compute(function, input_tensor)
        if input_tensor.dtype != torch.bfloat16:
            return result
        return result.masked_fill(result.isnan() & ~input_tensor.isnan(), torch.inf)

    return op


for _function in (torch.acos, torch.acosh, torch.asin, torch.atanh):
    golden(f"ttnn.{_function.__name__}")(_with_domain(_function))


@golden("ttnn.rdiv")
def rdiv(input_tensor, value, *, rounding_mode=None):
    """value / x. (ttnn's golden ignores the rounding mode.)"""
    return _compute(lambda x: torch.div(torch.full_like(x, value), x, rounding_mode=rounding_mode), input_tensor)


@golden("ttnn.bitwise_not")
def bitwise_not(input_tensor):
    return ~input_tensor


@golden("ttnn.logical_not_", writes="input_tensor")
def logical_not_(input_tensor, *, store):
    input_tensor.copy_(store(input_tensor == 0))


@golden("ttnn.normalize_hw")
def normalize_hw(input_tensor):
    """(x - mean) / std of each matrix."""
    return _compute(lambda x: _normalized(x, (-2, -1)), input_tensor)


@golden("ttnn.normalize_global")
def normalize_global(input_tensor):
    """(x - mean) / std of the whole tensor."""
    return _compute(lambda x: _normalized(x, tuple(range(x.dim()))), input_tensor)


def _normalized(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    return (x - x.mean(dims, keepdim=True)) / x.std(dims, keepdim=True, correction=0)


@golden("ttnn.alt_complex_rotate90")
def alt_complex_rotate90(input_tensor):
    """Neighbouring pairs (x0, x1) -> (-x1, x0)."""
    real, imaginary = input_tensor.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-imaginary, real), -1).flatten(-2)
