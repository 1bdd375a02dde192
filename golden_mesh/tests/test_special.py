"""Infinity, NaN, the largest and the lowest numbers against a simulated N150's results (vectors/special.safetensors).

Reductions, softmax, products and attention of rows with these values at the first, middle and last places, and of rows
that are wholly masked. The golden mesh has the chip's infinities and NaNs, and its finite values within 4 % of a row's
largest, sums of bfloat16 dests too.
"""

import json
from pathlib import Path

import pytest
import torch
import ttnn
from safetensors import safe_open

from test_families import kc as kernel
from test_families import put

pytestmark = pytest.mark.filterwarnings("ignore::golden_mesh.hazards.HazardWarning")
RECORD = safe_open(Path(__file__).parent / "vectors" / "special.safetensors", "pt")
CASES = {name.split("/")[1]: json.loads(text) for name, text in sorted(RECORD.metadata().items())}
ERROR = 4e-2  # of a row's largest value; attention with a bfloat16 dest has as much without special values, too


def kc(name: str, approx: bool = False):
    config = kernel(name)
    config.math_approx_mode = approx
    return config


def attend(q: int, k: int, approximate: bool) -> ttnn.SDPAProgramConfig:
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(8, 8), q_chunk_size=q, k_chunk_size=k, exp_approx_mode=approximate
    )


def kinds(x: torch.Tensor) -> torch.Tensor:
    """0: finite, 1 and -1: infinities, 2: NaN."""
    return torch.where(x.isnan(), 2, torch.where(x.isinf(), x.sign(), 0))


@pytest.mark.parametrize("name", CASES)
def test_a_special_value_gives_what_a_chip_gives(mesh_device, name):
    case = CASES[name]
    inputs = {key: put(mesh_device, RECORD, *where) for key, where in case["inputs"].items()}
    result = eval(case["expression"], {"ttnn": ttnn, "kc": kc, "attend": attend}, inputs)
    got = ttnn.to_torch(ttnn.get_device_tensors(result)[0]).double()
    want = RECORD.get_tensor(f"{name}/out/N150").double().reshape(got.shape)
    assert torch.equal(kinds(got), kinds(want))
    got, want = (x.nan_to_num(0, 0, 0).flatten(0, -2) for x in (got.unsqueeze(0), want.unsqueeze(0)))
    largest = want.abs().amax(-1, keepdim=True).clamp(min=1e-3)  # of each row: a large one hides no other
    assert ((got - want) / largest).abs().max() < ERROR
