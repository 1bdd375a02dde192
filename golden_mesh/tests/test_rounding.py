"""round_to() against ttnn's own host packing, bit for bit: from_torch().to_torch() without a device."""

import subprocess
import sys

import pytest
import torch
import ttnn
from hypothesis import given, settings
from hypothesis import strategies as st

from golden_mesh.rounding import BLOCK, round_to

FLOATS = ("bfloat16", "bfloat8_b", "bfloat4_b")
INF, NAN = float("inf"), float("nan")


def bits(values: torch.Tensor) -> torch.Tensor:
    """The values as integers that differ wherever a bit differs. Floats give float32's bits."""
    if values.is_floating_point():
        return values.float().contiguous().view(torch.int32)
    return values.to(torch.int64)


def floats(codes) -> torch.Tensor:
    """float32 values with these bits (unsigned 32-bit integers)."""
    codes = torch.as_tensor(codes, dtype=torch.int64)
    codes = torch.where(codes >= 1 << 31, codes - (1 << 32), codes)
    return codes.to(torch.int32).view(torch.float32)


def random_floats(seed: int, shape, ends: tuple[int, int]) -> torch.Tensor:
    """float32 of both signs with biased exponents between the ends. Many are ties or beside one."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return torch.randint(low, high, shape, generator=generator)

    kept = draw(8, 24)  # cuts some fractions short, so that ties are met
    fraction = draw(0, 1 << 23) >> kept << kept
    fraction = fraction + draw(-1, 2) * draw(0, 2)  # moves some off the tie by one bit
    exponent = draw(min(ends), max(ends) + 1)
    return floats(draw(0, 2) << 31 | exponent << 23 | fraction.clamp(0, (1 << 23) - 1))


def assert_same(values: torch.Tensor, dtype: str) -> None:
    before = bits(values).clone()
    ours = round_to(values, getattr(ttnn, dtype))
    theirs = ttnn.from_torch(values, getattr(ttnn, dtype), layout=ttnn.TILE_LAYOUT).to_torch()
    assert ours.shape == values.shape
    wrong = (bits(ours) != bits(theirs)).flatten().nonzero().flatten()[:5]
    assert not len(wrong), (
        f"{dtype}: of {values.flatten()[wrong].tolist()} ttnn makes {theirs.flatten()[wrong].tolist()}, "
        f"round_to {ours.flatten()[wrong].tolist()} (places {wrong.tolist()})"
    )
    assert torch.equal(bits(values), before), "the input was changed"
    assert torch.equal(bits(round_to(ours, getattr(ttnn, dtype))), bits(ours)), "rounded twice"


NOISE = torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
MIXED = NOISE.clone()  # a special block does not change its neighbors
MIXED[3, 20], MIXED[7, 0], MIXED[9, 16:32], MIXED[11, 32:48] = INF, NAN, 0.0, 1e-37
NANS = [0x7F800001, 0x7FC00000, 0xFFC12345, 0x7FFFFFFF, 0xFF810000, 0xFFA00000, 0x7F880000]
VALUES = {
    "transposed": NOISE.T,
    "from the second column on": NOISE[:, 1:],
    "one row, expanded": NOISE[:1].expand(8, -1),
    "special blocks": MIXED,
    "several chunks": torch.randn(32, 8224) * torch.logspace(-6, 3, 32)[:, None],
    "NaNs with payloads": torch.stack([floats(NANS), torch.zeros(7)], 1),
}
# Biased exponents: around one; of attention scores to activations; near the ends of float32; all of them.
for ends in ((120, 130), (100, 140), (0, 0), (0, 1), (0, 8), (1, 30), (22, 26), (240, 254), (240, 255), (0, 255)):
    VALUES[f"exponents {ends}"] = random_floats(1, (256, 96), ends)
for shape in ((), (1,), (5,), (0,), (3, 0), (2, 3, 17), (1, 1, 32, 100), (33, 47)):
    VALUES[f"shape {shape}"] = torch.randn(shape)
for integers in (torch.int32, torch.uint8, torch.int8, torch.bool):
    VALUES[f"{integers}"] = torch.randint(-(1 << 31), 1 << 31, (32, 64)).to(integers)
for i, block in enumerate(
    (
        [-0.0] * 16,
        [-1e-30, 1.0],
        [1.0, 2.0**-6, 2.0**-7, 3 * 2.0**-7, 2.0**-8, -(2.0**-7)],  # last code of bfloat8_b; ties
        [1.0, 0.25, 0.125, 0.375, 0.0625, -0.125, -0.375],  # last code of bfloat4_b; ties
        [1.0, 2.0**-7 * (1 + 2.0**-23), 0.125 * (1 + 2.0**-23)],  # above a tie by bits that are cut
        [1.0, 1.0 + 2.0**-7, 1.0 + 2.0**-7 + 2.0**-23],  # through bfloat16 the third would differ
        [255 / 128, 1.999999, 1.0, -1.999999],  # would carry into the next exponent: saturates
        [3.4028234663852886e38, -3.4e38, 1e38, 1.0],  # the largest float32
        [1.1754943508222875e-38, -1.1754943508222875e-38, 2.0**-125],  # the smallest normal one
        [1e-45, -1e-45, 1e-40, 1.1754942e-38],  # subnormal all
        [2.0**-126, 1.1754942e-38, -1e-40],  # subnormal beside the smallest normal one
        [INF, 1.0, -2.0, 3e38, 1e38],
        [-INF, INF, 0.0],
        [NAN, 1.0, INF, -1.0, 3e38],
        [171.0, 0.5, -0.3, 0.01, 1e-4] * 3,  # Qwen2.5's K with its bias: the small channels lose
    )
):
    VALUES[f"block {i}"] = torch.tensor(block)


@pytest.mark.parametrize("source", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_values(dtype, name, source):
    values = VALUES[name]
    assert_same(values if source is None else values.to(source).contiguous(), dtype)


SHAPES = st.lists(st.integers(1, 40), max_size=4).map(tuple)
EXPONENTS = st.tuples(st.integers(0, 255), st.integers(0, 255))
CODES = st.lists(st.integers(0, (1 << 32) - 1), min_size=BLOCK, max_size=BLOCK)
NUMBERS = st.lists(st.floats(width=32), min_size=1, max_size=2 * BLOCK + 1)


@pytest.mark.parametrize("dtype", FLOATS)
@given(
    values=st.builds(random_floats, st.integers(0, 1 << 32), SHAPES, EXPONENTS)
    | CODES.map(floats)
    | NUMBERS.map(torch.tensor),
    source=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=120, deadline=None, database=None)  # database: leave no files behind
def test_any_values(dtype, values, source):
    assert_same(values.to(source), dtype)


WHOLE = [0, 1, -1, 7, 70000, -(2**31), *(2**n for n in (7, 8, 15, 16, 31))]
WHOLE += [2**n - 1 for n in (7, 8, 15, 16, 31, 32)]
FRACTIONS = [0.0, 0.5, 1.5, 2.5, 3.99, 200.7, 255.5, 256.0, 65535.0, 1e6, -0.5, -1.0, -300.5]


@pytest.mark.parametrize("source", "int64 int32 int16 uint8 int8 uint32 float32 bfloat16".split())
@pytest.mark.parametrize("dtype", ["int32", "uint32", "uint16", "uint8", "float32"])
def test_integers(dtype, source):
    """Integers out of range wrap round. Floats are cut towards zero; beyond the range uint16 and uint8 saturate."""
    source = getattr(torch, source)
    if source.is_floating_point:
        values = FRACTIONS
    else:
        values = [v for v in WHOLE if torch.iinfo(source).min <= v <= torch.iinfo(source).max]
    assert_same(torch.tensor(values, dtype=source), dtype)


@pytest.mark.parametrize(
    "holder, dtypes",
    [("bfloat16", FLOATS), ("float32", ["float32"]), ("int32", ["int32", "uint16"]),
     ("int64", ["uint32"]), ("uint8", ["uint8"])],
)  # fmt: skip
def test_the_narrowest_torch_dtype_holds_each_dtype(holder, dtypes):
    """uint32 has a wider one: torch can do little with its own uint32."""
    holder = getattr(torch, holder)
    for dtype in dtypes:
        assert round_to(torch.tensor([[0, 1, 2, 3]]), getattr(ttnn, dtype)).dtype == holder
    if dtypes[0] in ("bfloat16", "float32", "int32"):
        values = torch.ones(4, 4, dtype=holder)
        assert round_to(values, getattr(ttnn, dtypes[0])) is values, "nothing is copied"


def test_the_number_formats_are_a_library_that_needs_no_ttnn():
    code = (
        "import sys, torch; from golden_mesh.rounding import round_to; "
        "print(round_to(torch.tensor([[1.0, 0.01]]), 'bfloat4_b').tolist(), 'ttnn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[[1.0, 0.0]] False\n"
