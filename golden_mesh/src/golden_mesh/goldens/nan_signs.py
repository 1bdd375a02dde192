"""bfloat16's NaN with its sign bit set, as torch.Tensor.bfloat16() makes each NaN: most kernels take it for -infinity.

A Blackhole's comparisons with a NaN of any sign are false. The tables are a simulated N150's and a simulated P150's.
"""

import functools
import math
from dataclasses import replace

import torch

from golden_mesh.arithmetic.special import on_blackhole
from golden_mesh.registry import GOLDENS, Golden

_ON_BOTH = (
    "asinh ceil elu erfinv floor hardtanh heaviside log_sigmoid max maximum min minimum neg relu6 relu_max sign sinh "
    "tanh threshold topk trunc"
).split()
_ON_WORMHOLE = (
    "cbrt celu deg2rad digamma erf exp exp2 gelu hardshrink hardsigmoid hardswish leaky_relu prelu rad2deg relu "
    "relu_min round rsqrt sigmoid sigmoid_accurate softplus softshrink tanhshrink"
).split()
# Functions by whether the chip is a Blackhole.
_AS_MINUS_INFINITY = {False: _ON_BOTH + _ON_WORMHOLE, True: _ON_BOTH}
_RESULTS = {
    False: dict.fromkeys("abs asin atanh cos hardmish lgamma sin".split(), -math.inf)
    | dict.fromkeys("erfc i1 softsign".split(), math.inf),
    True: dict.fromkeys("abs asin hardswish mish relu relu_min".split(), -math.inf)
    | dict.fromkeys("erfc i1".split(), math.inf),
}
_FALSE = {False: {}, True: dict.fromkeys("atanh hardshrink softshrink".split(), 0.0)}  # of any NaN


def _is_nan(x) -> torch.Tensor | None:
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not math.isnan(x.sum()):
        return None
    return x.isnan()


def _is_negative_nan(x) -> torch.Tensor | None:
    """Of bfloat16 only: a float32's NaN may be torch's own, whose sign is not a chip's."""
    found = _is_nan(x) if getattr(x, "dtype", None) == torch.bfloat16 else None
    return None if found is None else found & x.signbit()


def _filled(x, found: torch.Tensor | None, value: float):
    return x if found is None else x.masked_fill(found, value)


def _by_sign(golden: Golden, name: str) -> Golden:
    @functools.wraps(golden.function)
    def function(**arguments):
        chip = on_blackhole()
        if name in _AS_MINUS_INFINITY[chip]:
            arguments = {key: _filled(x, _is_negative_nan(x), -torch.inf) for key, x in arguments.items()}
        result = golden.function(**arguments)
        for table, find in ((_RESULTS, _is_negative_nan), (_FALSE, _is_nan)):
            if name in table[chip]:
                result = _filled(result, find(arguments["input_tensor"]), table[chip][name])
        return result

    return replace(golden, function=function)


def read_signs() -> None:
    """Let the goldens of these functions read the sign of a NaN."""
    names = {name for table in (_AS_MINUS_INFINITY, _RESULTS, _FALSE) for rows in table.values() for name in rows}
    for name in names:
        if (golden := GOLDENS.get(f"ttnn.{name}")) is not None:  # an older ttnn may lack it
            GOLDENS[golden.name] = _by_sign(golden, name)
