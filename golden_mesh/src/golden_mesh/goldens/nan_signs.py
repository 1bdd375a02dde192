"""bfloat16's NaN with its sign bit set, as torch.Tensor.bfloat16() makes each NaN: most kernels take it for -infinity.

A Blackhole's comparisons with a NaN of any sign are false. The tables are a simulated N150's and a simulated P150's.
"""

import functools
import math
from dataclasses import replace

import torch
import ttnn

from golden_mesh.registry import GOLDENS, Golden

_AS_MINUS_INFINITY = {
    "wormhole_b0": (
        "asinh cbrt ceil celu deg2rad digamma elu erf erfinv exp exp2 floor gelu hardshrink hardsigmoid hardswish "
        "hardtanh heaviside log_sigmoid maximum minimum neg prelu rad2deg relu relu6 round rsqrt sigmoid "
        "sigmoid_accurate sign sinh softplus softshrink tanh tanhshrink threshold trunc"
    ).split(),
    "blackhole": (
        "asinh ceil elu erfinv floor hardtanh heaviside log_sigmoid maximum minimum neg relu6 sign sinh tanh threshold "
        "trunc"
    ).split(),
}
_RESULTS = {
    "wormhole_b0": dict.fromkeys("abs asin atanh cos lgamma sin".split(), -math.inf)
    | dict.fromkeys("erfc i1 softsign".split(), math.inf),
    "blackhole": dict.fromkeys("abs asin hardswish mish relu".split(), -math.inf)
    | dict.fromkeys("erfc i1".split(), math.inf),
}
_FALSE = {"wormhole_b0": {}, "blackhole": dict.fromkeys("atanh hardshrink softshrink".split(), 0.0)}  # of any NaN


def _is_nan(x) -> torch.Tensor | None:
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not math.isnan(x.sum()):
        return None
    return x.isnan()


def _is_negative_nan(x) -> torch.Tensor | None:
    """Of bfloat16 only: a float32's NaN may be torch's own, whose sign is not a chip's."""
    found = _is_nan(x)
    return None if found is None or x.dtype != torch.bfloat16 else found & x.signbit()


def _with_infinity(x):
    found = _is_negative_nan(x)
    return x if found is None else x.masked_fill(found, -torch.inf)


def _by_sign(golden: Golden, name: str) -> Golden:
    @functools.wraps(golden.function)
    def function(*args, **kwargs):
        arch = ttnn.get_arch_name()
        if name in _AS_MINUS_INFINITY[arch]:
            args, kwargs = map(_with_infinity, args), {key: _with_infinity(value) for key, value in kwargs.items()}
        result = golden.function(*args, **kwargs)
        for table, find in ((_RESULTS, _is_negative_nan), (_FALSE, _is_nan)):
            found = find(kwargs.get("input_tensor")) if name in table[arch] else None
            result = result if found is None else result.masked_fill(found, table[arch][name])
        return result

    return replace(golden, function=function)


def read_signs() -> None:
    """Let the goldens of these functions read the sign of a NaN."""
    names = {name for table in (_AS_MINUS_INFINITY, _RESULTS, _FALSE) for rows in table.values() for name in rows}
    for name in names:
        if (golden := GOLDENS.get(f"ttnn.{name}")) is not None:  # an older ttnn may lack it
            GOLDENS[golden.name] = _by_sign(golden, name)
