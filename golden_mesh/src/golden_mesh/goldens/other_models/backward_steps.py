"""Gradients of bfloat16 tensors in the steps of ttnn's composite operations. Each step is packed to bfloat16."""

from typing import Callable

import torch

from golden_mesh.arithmetic import engine
from golden_mesh.goldens.activations import function as f


def _number(value) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value).bfloat16()


def _mul(a: torch.Tensor, b) -> torch.Tensor:
    return (a.float() * _number(b).float()).bfloat16()


def _add(a: torch.Tensor, b) -> torch.Tensor:
    return engine.add(a, _number(b)).bfloat16()


def _from(number: float, x: torch.Tensor) -> torch.Tensor:
    return engine.subtract(_number(number), x).bfloat16()


def _hardswish(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    inside = _mul(g, _add(_mul(x, 0.3333), 0.5))
    return torch.where(x < -3, 0, torch.where(x <= 3, inside, g))


def _silu(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s = f("SIGMOID", x)
    return _mul(_mul(g, s), _add(_mul(_from(1.0, s), x), 1.0))


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
