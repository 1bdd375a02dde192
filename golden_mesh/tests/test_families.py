"""The common op families against a chip's results (vectors/README.md): 495 small cases.

A case is an expression over named inputs. Its result must be within 5e-3 of the record (relative error), within 1e-3 in
gain (least squares; 1 is the right scale), and finite at the same places. HAZARDS.md, "Not like a chip here", lists the
other cases and their errors. A listed case must differ by what the page says.
"""

import json
from contextlib import nullcontext
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
import torch
import ttnn
from safetensors import safe_open

from golden_mesh import exact_sums
from goldens.support import kernel
from values import Golden

pytestmark = pytest.mark.filterwarnings("ignore::golden_mesh.hazards.HazardWarning")
TESTS = Path(__file__).parent
RECORDS = [safe_open(TESTS / "vectors" / f"families{n}.safetensors", "pt") for n in ("", "2", "3")]
CASES = {
    name: {"record": record, **json.loads(text)}
    for record in RECORDS
    for name, text in sorted(record.metadata().items())
}
ERROR, GAIN = 5e-3, 1e-3
# Of the matrix engine, the packer and tables: these meet the record to the bit. So do products with exact sums.
TO_THE_BIT = (
    "binary.multiply* binary.*_mul.* binary.rsub* binary.subtract* binary.squared_difference* "
    "norm.* wide_norm.* typecast.* reduce.fast_reduce_nc reduce.*.bfp8 sharded.* backward.* pool.avg* "
    "unary.a*h.bf16 unary.er*.bf16 unary.log*.bf16 unary.lgamma.bf16 unary.multigammaln.bf16 unary.mish.bf16 "
    "unary.tanh.*bf16 unary.pow.* binary.nextafter.bf16 binary.atan2.bf16* binary.log*.bf16* binary.xlogy.bf16* "
    "binary.ldexp.bf16* softmax.moreh reduce.moreh.norm mo.sum "
    "reduce.*.-2.*.bf16 mix.* cast.* act.* emb.* red.* int.*"
).split()
PRODUCTS_TO_THE_BIT = (
    "matmul.k* matmul.bfp8.* linear.s* sdpa.decode.* sdpa.window sdpa.causal.32.96.* mm.* mo.* att.cu.* att.joint.*"
).split()


def listed() -> list[tuple[str, float, float]]:
    """Return (case or pattern, error, gain) of each line of the page's table."""
    section = (TESTS.parent / "HAZARDS.md").read_text().split("\n# Not like a chip here\n")[1]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:3] == "| `"]
    return [(name.strip("`"), float(error), float(gain)) for name, error, gain, *_ in rows]


LISTED = listed()


def matches(name: str, patterns) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def named(pattern: str) -> list[str]:
    return [name for name in CASES if fnmatch(name, pattern)]


def kc(name: str, l1: bool = True, approx: bool = False):
    """The kernel config of an expression: kc("HiFi2.fp32")."""
    fidelity, dest = name.split(".")
    return kernel(fidelity, dest == "fp32", approx, l1)


@cache
def difference(device, name: str, exact: bool = False) -> tuple[float, float]:
    """Return (error, gain) of the first chip's result of a case."""
    case = CASES[name]
    record = case["record"]
    inputs = {key: put(device, record, *where) for key, where in case["inputs"].items()}
    with exact_sums() if exact else nullcontext():
        result = eval(case["expression"], {"ttnn": ttnn, "kc": kc}, inputs)
    got = ttnn.to_torch(ttnn.get_device_tensors(result)[0]).double()
    want = record.get_tensor(f"{name}/out").double().reshape(got.shape)
    finite = torch.isfinite(want)
    assert torch.equal(torch.isfinite(got), finite)
    got, want = got[finite], want[finite]
    if torch.equal(got, want):
        return 0.0, 1.0
    got, want = (x / want.abs().max() for x in (got, want))  # squares of large values are finite
    size = want @ want
    return ((got - want).norm() / size.sqrt()).item(), (got @ want / size).item()


def put(device, record, tensor: str, dtype: str, layout: str):
    x = record.get_tensor(tensor)
    x = x.float() if x.is_floating_point() else x.int()
    return Golden(device).put(x, dtype=getattr(ttnn, dtype), layout=getattr(ttnn, f"{layout}_LAYOUT"))


@pytest.mark.parametrize("name", [name for name in CASES if not matches(name, [row[0] for row in LISTED])])
def test_a_case_is_the_chips(mesh_device, name):
    error, gain = difference(mesh_device, name)
    assert error <= (0 if matches(name, TO_THE_BIT) else ERROR) and abs(gain - 1) < GAIN


@pytest.mark.parametrize("pattern, error, gain", LISTED, ids=[row[0] for row in LISTED])
def test_a_listed_case_differs_by_what_the_page_says(mesh_device, pattern, error, gain):
    """Of several cases the page has the largest error, and the gain that is furthest from 1."""
    found = [difference(mesh_device, name) for name in named(pattern)]
    assert max(each for each, _ in found) == pytest.approx(error, rel=0.1)
    assert max(abs(each - 1) for _, each in found) == pytest.approx(abs(gain - 1), abs=3e-4)


@pytest.mark.parametrize(
    "name", [name for of in ("matmul", "linear", "sdpa", "mm", "mo", "att") for name in named(f"{of}.*")]
)
def test_with_exact_sums_a_product_is_the_chips(mesh_device, name):
    error, gain = difference(mesh_device, name, exact=True)
    assert error <= (0 if matches(name, PRODUCTS_TO_THE_BIT) else ERROR) and abs(gain - 1) < GAIN
