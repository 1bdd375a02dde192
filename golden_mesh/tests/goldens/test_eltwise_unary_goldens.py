"""Elementwise ops of one tensor, each against torch on random and on special values, in bfloat16
and in float32.
"""

import math

import pytest
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic.packer import pack
from golden_mesh.arithmetic.vector import in_bfloat16_dest
from golden_mesh.errors import GoldenError
from goldens.support import assert_same, assert_values

SPECIAL = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1e38,
    -1e38,
    1e-30,
    -1e-30,
    1.0,
    -1.0,
    0.5,
    -0.5,
    20.0,
    -20.0,
    90.0,
]
DTYPES = {"bfloat16": ttnn.bfloat16, "float32": ttnn.float32}


def values(scale: float = 2.0) -> torch.Tensor:
    """[1, 1, 33, 45] random values that bfloat16 holds, with the special ones in the first row."""
    x = (torch.randn(1, 1, 33, 45) * scale).bfloat16().float()
    x[..., 0, : len(SPECIAL)] = torch.tensor(SPECIAL).bfloat16().float()
    return x.masked_fill(x.isnan(), math.nan)  # a positive one


def softplus(x, beta=1.0, threshold=20.0):
    return torch.where(x * beta > threshold, x, torch.log1p(torch.exp(x * beta)) / beta)


def elu(x, alpha=1.0):
    return torch.where(x > 0, x, alpha * torch.expm1(x))


def hardmish(x):
    return x * (x / 2 + 1).clamp(0, 1)


def xielu(x, p=0.8, n=0.8):
    """As published: a parabola for positive x, an integrated ELU for the others."""
    return torch.where(
        x > 0, p * x * x + 0.5 * x, n * torch.expm1(x.clamp(max=-1e-6)) - n * x + 0.5 * x
    )


# op, its arguments after the tensor, torch's result in float64.
CASES = [
    ("acos", (), {}, torch.acos),
    ("acosh", (), {}, lambda x: torch.where(x < 1, math.nan, torch.log(x + torch.sqrt(x * x - 1)))),
    ("asin", (), {}, torch.asin),
    ("asinh", (), {}, torch.asinh),
    ("atan", (), {}, torch.atan),
    ("atanh", (), {}, lambda x: (torch.log1p(x) - torch.log1p(-x)) / 2),
    ("cbrt", (), {}, lambda x: x.sign() * x.abs() ** (1 / 3)),
    ("celu", (), {}, elu),
    ("celu", (), {"alpha": 1.5}, lambda x: torch.where(x > 0, x, 1.5 * torch.expm1(x / 1.5))),
    ("cosh", (), {}, lambda x: (torch.exp(x) + torch.exp(-x)) / 2),
    ("deg2rad", (), {}, lambda x: x * math.pi / 180),
    ("elu", (), {}, elu),
    ("elu", (), {"alpha": 0.5}, lambda x: elu(x, 0.5)),
    ("erfc", (), {}, torch.special.erfc),
    ("fill", (2.5,), {}, lambda x: torch.full_like(x, 2.5)),
    ("frac", (), {}, lambda x: x - x.trunc()),
    ("hardmish", (), {}, hardmish),
    ("hardshrink", (), {}, lambda x: torch.where(x.abs() <= 0.5, 0.0, x)),
    ("hardshrink", (), {"lambd": 1.5}, lambda x: torch.where(x.abs() <= 1.5, 0.0, x)),
    ("hardtanh", (), {}, lambda x: x.clamp(-1, 1)),
    ("hardtanh", (), {"min_val": -0.25, "max_val": 2.0}, lambda x: x.clamp(-0.25, 2)),
    ("heaviside", (0.75,), {}, lambda x: torch.where(x == 0, 0.75, (x > 0).double())),
    ("i0", (), {}, torch.special.i0),
    ("i1", (), {}, lambda x: torch.special.i1(x.clamp(-88.5, 88.5))),
    ("isfinite", (), {}, lambda x: (x.abs() < math.inf).double()),
    ("isinf", (), {}, lambda x: (x.abs() == math.inf).double()),
    ("isnan", (), {}, lambda x: (x != x).double()),
    ("isneginf", (), {}, lambda x: (x == -math.inf).double()),
    ("isposinf", (), {}, lambda x: (x == math.inf).double()),
    ("leaky_relu", (0.125,), {}, lambda x: torch.where(x >= 0, x, x / 8)),
    ("logit", (), {}, lambda x: torch.log(x / (1 - x))),
    (
        "logit",
        (),
        {"eps": 0.25},
        lambda x: torch.log(x.clamp(0.25, 0.75) / (1 - x.clamp(0.25, 0.75))),
    ),
    (
        "normalize_hw",
        (),
        {},
        lambda x: (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True, correction=0),
    ),
    ("rad2deg", (), {}, lambda x: x * 180 / math.pi),
    ("rdiv", (3.0,), {}, lambda x: 3 / x),
    (
        "rdiv",
        (3.0,),
        {"rounding_mode": "floor"},
        lambda x: torch.div(torch.tensor(3.0), x, rounding_mode="floor"),
    ),
    ("rdiv", (3.0,), {"rounding_mode": "trunc"}, lambda x: torch.trunc(3 / x)),
    ("relu_max", (1.5,), {}, lambda x: x.clamp(0, 1.5)),
    ("relu_min", (0.5,), {}, lambda x: x.clamp(min=0.5)),
    ("round", (), {}, torch.round),
    ("round", (), {"decimals": 1}, lambda x: torch.round(x * 10) / 10),
    ("rpow", (2.0,), {}, torch.exp2),
    ("selu", (), {}, lambda x: 1.0507009873554805 * elu(x, 1.673259973526001)),  # ttnn's default
    ("selu", (), {"scale": 2.0, "alpha": 0.5}, lambda x: 2 * elu(x, 0.5)),
    ("signbit", (), {}, lambda x: torch.signbit(x).double()),
    ("sinh", (), {}, lambda x: torch.expm1(x) / 2 - torch.expm1(-x) / 2),
    ("softplus", (), {}, softplus),
    ("softplus", (), {"beta": 2.0, "threshold": 4.0}, lambda x: softplus(x, 2, 4)),
    ("softshrink", (), {}, lambda x: torch.where(x.abs() <= 0.5, 0.0, x - 0.5 * x.sign())),
    ("softshrink", (), {"lambd": 1.0}, lambda x: torch.where(x.abs() <= 1, 0.0, x - x.sign())),
    ("softsign", (), {}, lambda x: x / (1 + x.abs())),
    ("tanhshrink", (), {}, lambda x: x - torch.tanh(x)),
    ("threshold", (0.5, -3.0), {}, lambda x: torch.where(x <= 0.5, -3.0, x)),
    ("trunc", (), {}, lambda x: x.sign() * x.abs().floor()),
    ("xielu", (), {}, xielu),
    ("xielu", (), {"alpha_p": 0.5, "alpha_n": 1.5}, lambda x: xielu(x, 0.5, 1.5)),
]
# Functions that a chip computes for positive values only, or within (-1, 1).
POSITIVE = [
    ("digamma", (), {}, torch.special.digamma),
    ("lgamma", (), {}, torch.special.gammaln),
    ("multigammaln", (), {}, lambda x: torch.special.multigammaln(x, 4)),
    ("polygamma", (1,), {}, lambda x: torch.special.polygamma(1, x)),
    ("polygamma", (3,), {}, lambda x: torch.special.polygamma(3, x)),
]


def name_of(case) -> str:
    name, args, kwargs, _ = case
    return "-".join([name, *map(str, args), *(f"{k}={v}" for k, v in kwargs.items())])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_unary_by_rule(chips, case, dtype):
    name, args, kwargs, reference = case
    x = values()
    if name in ("cosh", "sinh", "i0", "lgamma"):
        x = x.clamp(-80, 80)  # beyond it bfloat16 rounds finite float32 values to infinity
    want = reference(x.double())
    if name == "normalize_hw":  # of finite values
        x = torch.randn(1, 2, 33, 45).bfloat16().float()
        want = reference(x.double())
    cut = in_bfloat16_dest(name.upper()) or name == "leaky_relu"  # the last bits (test_families.py)
    assert_values(
        chips.get(getattr(ttnn, name)(chips.put(x, dtype), *args, **kwargs)),
        [want] * chips.count,
        dtype,
        steps=2 if cut and dtype == ttnn.bfloat16 else 1,
    )


@pytest.mark.parametrize(
    "name, args, function",
    (
        ("fill", (7,), lambda x: torch.full_like(x, 7)),
        ("relu_min", (-5,), lambda x: x.clamp(min=-5)),
    ),
)
def test_whole_numbers_stay_exact(chips, name, args, function):
    x = torch.randint(-(2**31), 2**31 - 1, (1, 1, 33, 45))
    got = getattr(ttnn, name)(chips.put(x.int(), ttnn.int32), *args)
    assert_same(chips.get(got), [function(x)] * chips.count)


def test_a_block_float_is_rounded_once_more(chips):
    x = torch.randn(1, 1, 33, 45).bfloat16().float()
    given = chips.put(x, ttnn.bfloat8_b)
    held = chips.get(given)[0].double()
    want = pack(torch.atan(held).float().bfloat16(), ttnn.bfloat8_b)
    assert_same(chips.get(ttnn.atan(given)), [want] * chips.count)


@pytest.mark.parametrize("case", POSITIVE, ids=name_of)
def test_gamma_functions(chips, case):
    name, args, kwargs, reference = case
    x = (values().nan_to_num(1).abs().clamp(max=100) + 2).bfloat16().float()
    got = getattr(ttnn, name)(chips.put(x, ttnn.float32), *args, **kwargs)
    assert_values(chips.get(got), [reference(x.double())] * chips.count, ttnn.float32)


def test_erfinv(chips):
    x = (torch.rand(1, 1, 33, 45) * 1.9 - 0.95).bfloat16().float()
    got = chips.get(ttnn.erfinv(chips.put(x, ttnn.float32)))
    assert_values(
        [torch.special.erf(g.double()) for g in got], [x.double()] * chips.count, ttnn.float32
    )


def test_normalize_global(chips):
    x = torch.randn(1, 2, 32, 64).bfloat16().float()
    want = (x - x.mean()) / x.std(correction=0)
    assert_values(chips.get(ttnn.normalize_global(chips.put(x))), [want] * chips.count)


def test_alt_complex_rotate90_rotates_neighboring_pairs(chips):
    x = values(1.0).nan_to_num()[..., :44].contiguous()
    want = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * 1j).flatten(-2)
    assert_values(chips.get(ttnn.alt_complex_rotate90(chips.put(x))), [want] * chips.count)


def test_logical_not_in_place(chips):
    x = values().nan_to_num()
    target = chips.put(x)
    copy = ttnn.clone(target)
    ttnn.logical_not_(target)
    assert_values(chips.get(target), [(x == 0).float()] * chips.count)
    assert_values(chips.get(copy), [x] * chips.count)


@pytest.mark.parametrize("name", ("elu", "fill", "isnan"))
def test_a_preallocated_output_receives_the_values(chips, name):
    x = values()
    out = chips.put(torch.zeros_like(x))
    args = (2.5,) if name == "fill" else ()
    getattr(ttnn, name)(chips.put(x), *args, output_tensor=out)
    want = {"elu": F.elu(x), "fill": torch.full_like(x, 2.5), "isnan": x.isnan().float()}[name]
    assert_values(chips.get(out), [want] * chips.count)


@pytest.mark.parametrize(
    "name", ("acosh", "cbrt", "erfc", "sinh", "softsign", "tanhshrink", "digamma")
)
def test_an_element_does_not_depend_on_its_neighbors(chips, name):
    x = values(1.0).nan_to_num(3).abs() + 1
    whole = chips.get(getattr(ttnn, name)(chips.put(x, ttnn.float32)))
    part = chips.get(getattr(ttnn, name)(chips.put(x[..., 5:, 3:20].contiguous(), ttnn.float32)))
    for w, p in zip(whole, part):
        assert torch.equal(w[..., 5:, 3:20], p)


def test_unknown_arguments_of_a_rule_are_refused(chips):
    """ttnn's own golden function would ignore the parameter."""
    from golden_mesh.registry import GOLDENS

    with pytest.raises(TypeError, match="beta"):
        GOLDENS["ttnn.elu"].arguments((torch.ones(1),), {"beta": 2.0})
    with pytest.raises(GoldenError, match="table"):
        a = chips.put(torch.ones(1, 1, 32, 32))
        ttnn.bias_gelu(a, a, fast_and_approximate_mode=True)
