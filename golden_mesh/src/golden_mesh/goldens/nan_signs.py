"""bfloat16's NaN with its sign bit set, as torch.Tensor.bfloat16() makes each NaN: most kernels take it for -infinity.

A Blackhole's comparisons with a NaN of any sign are false. The tables are a simulated N150's and a simulated P150's.
"""

import math

import torch

from golden_mesh.arithmetic.special import on_blackhole
from golden_mesh.registry import Golden, wrap

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


def _filled(result, x, value: float, negative: bool = True):
    """`result` with the value where `x` is NaN. negative: where its sign bit is set, too, and of bfloat16 only: a
    float32's NaN may be torch's own, whose sign is not a chip's.
    """
    is_float = isinstance(x, torch.Tensor) and x.is_floating_point()
    if not is_float or (negative and x.dtype != torch.bfloat16) or not math.isnan(x.sum()):
        return result
    return result.masked_fill(x.isnan() & x.signbit() if negative else x.isnan(), value)


def _by_sign(golden: Golden, **arguments) -> object:
    name, chip = golden.name.removeprefix("ttnn."), on_blackhole()
    if name in _AS_MINUS_INFINITY[chip]:
        arguments = {key: _filled(x, x, -torch.inf) for key, x in arguments.items()}
    result = golden.function(**arguments)
    if name in _RESULTS[chip]:
        result = _filled(result, arguments["input_tensor"], _RESULTS[chip][name])
    if name in _FALSE[chip]:
        result = _filled(result, arguments["input_tensor"], _FALSE[chip][name], negative=False)
    return result


def read_signs() -> None:
    """Let the goldens of these functions read the sign of a NaN."""
    tables = (_AS_MINUS_INFINITY, _RESULTS, _FALSE)
    wrap({name for table in tables for rows in table.values() for name in rows}, _by_sign)
