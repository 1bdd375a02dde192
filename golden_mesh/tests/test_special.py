"""Infinity, NaN, the largest and the lowest numbers against a simulated N150's results (vectors/special.safetensors).

Reductions, softmax, products and attention of rows with these values at the first, middle and last places, and of rows
that are wholly masked. The golden mesh has the chip's infinities and NaNs, and its finite values within 4 % of a row's
largest, sums of bfloat16 dests too. Last, the vector unit's exp, which attention and softmax use, against torch's.
"""

import json
import math
import re
from pathlib import Path

import pytest
import torch
import ttnn
from safetensors import safe_open

from golden_mesh.arithmetic.vector import exp, in_bfloat16_dest
from goldens.support import sdpa_program
from test_families import kc, put

pytestmark = pytest.mark.filterwarnings("ignore::golden_mesh.hazards.HazardWarning")
RECORD = safe_open(Path(__file__).parent / "vectors" / "special.safetensors", "pt")
CASES = {name.split("/")[1]: json.loads(text) for name, text in sorted(RECORD.metadata().items())}
ERROR = 4e-2  # of a row's largest value; attention with a bfloat16 dest has as much without special values, too


def kinds(x: torch.Tensor) -> torch.Tensor:
    """0: finite, 1 and -1: infinities, 2: NaN."""
    return torch.where(x.isnan(), 2, torch.where(x.isinf(), x.sign(), 0))


@pytest.mark.parametrize("name", CASES)
def test_a_special_value_gives_what_a_chip_gives(mesh_device, name):
    case = CASES[name]
    inputs = {key: put(mesh_device, RECORD, *where) for key, where in case["inputs"].items()}
    result = eval(case["expression"], {"ttnn": ttnn, "kc": kc, "attend": sdpa_program}, inputs)
    got = ttnn.to_torch(ttnn.get_device_tensors(result)[0]).double()
    want = RECORD.get_tensor(f"{name}/out/N150").double().reshape(got.shape)
    assert torch.equal(kinds(got), kinds(want))
    got, want = (x.nan_to_num(0, 0, 0).flatten(0, -2) for x in (got.unsqueeze(0), want.unsqueeze(0)))
    largest = want.abs().amax(-1, keepdim=True).clamp(min=1e-3)  # of each row: a large one hides no other
    assert ((got - want) / largest).abs().max() < ERROR


TAILS = safe_open(Path(__file__).parent / "vectors" / "tails.safetensors", "pt")
# lgamma near 1 and 2 is a difference of larger numbers, whose last bits depend on the kernel's logarithm.
LOOSE = {"lgamma.bfloat16": 0.2}


@pytest.mark.parametrize("name", [name for name in TAILS.keys() if not name.startswith("x.")])
def test_the_tails_of_a_function_are_the_kernels(golden, name):
    """Of 2,000 bfloat16 over the whole range, and of 900 float32, within 2 % of each value; also infinity and NaN."""
    op, dtype = name.split(".")
    x = TAILS.get_tensor(f"x.{dtype}")
    padded = torch.nn.functional.pad(x.float(), (0, -len(x) % 1024), value=1.0).reshape(1, 1, -1, 32)
    result, *_ = golden.get(getattr(ttnn, op)(golden.put(padded, dtype=getattr(ttnn, dtype))))
    got, want = result.flatten()[: len(x)].double(), TAILS.get_tensor(name).double()
    assert torch.equal(kinds(got), kinds(want))
    finite = want.isfinite()
    got, want = got[finite], want[finite]
    assert ((got - want).abs() <= LOOSE.get(name, 0.02) * want.abs() + 1e-36).all()


# (function, value): a simulated P150's result. Its vector unit makes positive NaNs, so the packer writes +infinity.
ON_A_P150 = {
    "silu(-inf)": "inf", "mish(-inf)": "inf", "softsign(-inf)": "inf", "digamma(-1e30)": "inf", "digamma(-2e7)": "inf",
    "digamma(nan)": "inf", "log_sigmoid(nan)": "inf", "rsqrt(nan)": "inf", "sigmoid(nan)": "0.0", "gelu(nan)": "0.0",
    "tanh(nan)": "1.0", "hardswish(-inf)": "0.0", "fmod(-1.0, nan)": "inf",
    "div(nan, -3.0)": "inf", "div(1.0, 1e-38)": "inf",
    # by an inverse that begins with eight bits
    "erfc(0.61328125)": "0.3828125", "mish(-1.0546875)": "-0.306640625", "sigmoid(-0.48828125)": "0.380859375",
}  # fmt: skip
PROGRAM = """
import torch, ttnn
from math import inf, nan
mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
def give(name, value, *number):
    x = ttnn.from_torch(torch.full((32, 32), value), ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
    result = getattr(ttnn, name)(x, *number)
    return ttnn.to_torch(result[0] if isinstance(result, (list, tuple)) else result)[0, 0].item()
"""


def test_a_blackholes_special_values_are_its_own(run_as):
    calls = [call.replace("(", "', ").join(("give('", "")) for call in ON_A_P150]
    found = run_as("P150", PROGRAM + "".join(f"print({call})\n" for call in calls)).split()
    assert found == list(ON_A_P150.values())


# function: results of simulated chips, N150 and P150, for a NaN of torch.Tensor.bfloat16(), whose sign bit is set
NEGATIVE_NAN = {
    "relu": "0.0 -inf", "relu6": "0.0 0.0", "sigmoid": "0.0 0.0", "exp": "0.0 inf", "erf": "-1.0 1.0",
    "tanh": "-1.0 -1.0",
    "gelu": "0.0 0.0", "abs": "-inf -inf", "neg": "inf inf", "sign": "-1.0 -1.0", "floor": "-inf -inf",
    "erfc": "inf inf",
    "softsign": "inf inf", "cbrt": "-inf inf", "hardshrink": "-inf 0.0", "atanh": "-inf 0.0", "sin": "-inf inf",
    "elu": "-1.0 -1.0", "silu": "-inf inf", "hardmish": "-inf inf",
    "maximum": "1.0 1.0", "minimum": "-inf -inf", "multiply": "-inf inf", "relu_max": "0.0 0.0", "relu_min": "1.0 -inf",
    "leaky_relu": "-inf inf", "max": "-inf -inf", "min": "-inf -inf", "topk": "-inf -inf",
}  # fmt: skip


@pytest.mark.parametrize("chip", range(2), ids=["N150", "P150"])
def test_a_nan_with_its_sign_bit_set_gives_what_a_chip_gives(run_as, chip):
    program = PROGRAM.replace("torch.full((32, 32), value), ttnn.bfloat16", "torch.full((32, 32), value).bfloat16()")
    numbers = dict.fromkeys("maximum minimum multiply relu_max relu_min leaky_relu".split(), "1.0")
    numbers |= {"max": "-1, True", "min": "-1, True", "topk": "4"}
    calls = [f"give('{name}', nan, {numbers.get(name, '')})" for name in NEGATIVE_NAN]
    found = run_as(("N150", "P150")[chip], program + "".join(f"print({call})\n" for call in calls)).split()
    assert dict(zip(NEGATIVE_NAN, found)) == {name: both.split()[chip] for name, both in NEGATIVE_NAN.items()}


JOINED = """
x = torch.arange(1, 2049).reshape(1, 1, 32, 64)[..., :WIDTH] / 8
x = ttnn.from_torch(x, ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, device=mesh)
y = ttnn.to_torch(ttnn.concat([x, x], dim=-1)) - torch.cat([ttnn.to_torch(x)] * 2, dim=-1)
print(y.count_nonzero().item())
"""


@pytest.mark.parametrize("system, width, changed", (("P150", 32, 288), ("P150", 64, 0), ("N150", 32, 0)))
def test_block_floats_of_odd_tiles_are_transposed_to_be_joined(run_as, system, width, changed):
    """As on a simulated P150: a transposed block has another exponent."""
    assert run_as(system, PROGRAM + JOINED.replace("WIDTH", f"{width}")).split() == [f"{changed}"]


PAIRS = safe_open(Path(__file__).parent / "vectors" / "pairs.safetensors", "pt")
CALLS = sorted(PAIRS.metadata().items())
LEAST, WHOLE = 2.0**-125, 2.0**22  # below: subnormals. Beyond, a remainder depends on the last bits of 1 / y, as
# where the quotient is whole.


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_a_pair_of_special_values_gives_what_a_chip_gives(golden, name, call):
    """All pairs of 64 values, or 128 values and a number, within 2 %. Infinities and NaNs are an N150's."""
    dtype = name.split(".")[-1]
    u, x = PAIRS.get_tensor(f"u.{dtype}").float(), PAIRS.get_tensor(f"x.{dtype}").float()
    a, b = (u.reshape(4, 32),) * 2 if "u" in re.findall(r"\w+", call) else (x[:, None].expand(64, 64), x.expand(64, 64))

    def held(values):
        padded = torch.nn.functional.pad(values, (0, 0, 0, -len(values) % 32), value=1.0)
        return golden.put(padded, dtype=getattr(ttnn, dtype))

    result = eval(call, {"ttnn": ttnn}, {"x": held(a), "y": held(b), "u": held(a)})
    got = golden.get(result)[0].double()[: len(a)]
    want = PAIRS.get_tensor(name).double().reshape(a.shape)
    known = ((a.abs() > LEAST) | (a == 0)) & ((b.abs() > LEAST) | (b == 0)) | a.isnan() | b.isnan()
    if name.startswith(("fmod", "remainder", "floor_div", "div.floor", "div.trunc")):
        last_bits_decide = ((a / b).abs() > WHOLE) | ((a / b).frac() == 0)
        known &= ~last_bits_decide | ~a.isfinite() | (b == 0)
    if name == "pow.float32":
        known &= ~((b.abs() > 1e38) & b.isfinite())  # the kernel's split of the exponent overflows
    assert torch.equal(kinds(got)[known], kinds(want)[known])
    known &= want.isfinite()
    assert ((got - want).abs()[known] <= 0.02 * want.abs()[known] + 1e-36).all()


TORCH = {"EXP": torch.exp, "SIGMOID": torch.sigmoid, "SILU": torch.nn.functional.silu}


def test_exp_equals_torchs_and_flushes_denormals_to_zero():
    x = torch.linspace(-150, 0, 20_001)
    expected, smallest = torch.exp(x * 0.75), torch.finfo(torch.float32).tiny
    got = exp(x, 0.75, approximate=False)
    seen, gone = expected > 1.02 * smallest, expected < smallest
    assert seen.any() and got[seen].equal(expected[seen])
    assert gone.any() and not got[gone].any()


def test_exp_of_masked_scores_is_zero_and_of_nan_is_nan():
    got = exp(torch.tensor([-3.0e38, -math.inf, math.nan, 0]), 0.125, approximate=False)
    assert got[:2].tolist() == [0, 0] and got[2].isnan() and got[3] == 1


@pytest.mark.parametrize("name", TORCH)
def test_kernels_of_a_bfloat16_dest_on_every_value(name):
    """Within a unit in the last place up to |x| of 87. Beyond, exp is infinite, or counts as zero. Subnormals count as
    zero. NaN of exp is NaN; of the others tails.safetensors has what a chip gives."""
    codes = torch.arange(1 << 16, dtype=torch.int32).bitwise_left_shift(16)
    x = codes.view(torch.float32).bfloat16()
    got, exact = in_bfloat16_dest(name)(x).double(), TORCH[name](x.double())
    near, above, below = x.abs() <= 87, x > 89, (x < -89) & x.isfinite()
    unit = torch.where(x.abs() < 2.0**-126, 2.0**-126, exact.abs().clamp(min=2.0**-126) * 2**-7)
    assert ((got - exact).abs() <= unit)[near].all()
    limit = torch.inf if name == "EXP" else exact[above]
    assert (got[above] == limit).all()
    assert not got[below].any()
    assert name != "EXP" or got[x.isnan()].isnan().all()
