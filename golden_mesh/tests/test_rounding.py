"""round_to() against ttnn's own host packing, bit for bit: from_torch().to_torch() without a device."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden_mesh.rounding import BLOCK, round_to

BLOCK_FLOATS = ("bfloat8_b", "bfloat4_b")
FLOATS = ("bfloat16", *BLOCK_FLOATS)
few = settings(max_examples=40, deadline=None, database=None)  # database: leave no files behind
INF, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module")
def ttnn(tmp_path_factory):
    """ttnn with a mock cluster below it. Without a cluster, ttnn refuses even tensors on the host."""
    import os

    from golden_mesh.overlay import make_environment
    from golden_mesh.systems import SYSTEMS

    if "TT_METAL_MOCK_CLUSTER_DESC_PATH" not in os.environ:
        os.environ.update(make_environment(SYSTEMS["N300"], tmp_path_factory.mktemp("mock")))
    return pytest.importorskip("ttnn")


def bits(values: torch.Tensor) -> torch.Tensor:
    """Return the values as integers that differ wherever a bit differs. Floats give the bits of float32,
    which holds them all.
    """
    values = values.contiguous()
    if values.dtype == torch.bfloat16:
        return values.view(torch.int16).to(torch.int32) << 16
    if values.dtype == torch.float32:
        return values.view(torch.int32)
    return values.to(torch.int64)


def floats(codes: list[int] | torch.Tensor) -> torch.Tensor:
    """Return float32 values with these bits (unsigned 32-bit integers)."""
    codes = torch.as_tensor(codes, dtype=torch.int64)
    return (
        torch.where(codes >= 1 << 31, codes - (1 << 32), codes).to(torch.int32).view(torch.float32)
    )


def random_floats(seed: int, shape, lowest: int, highest: int) -> torch.Tensor:
    """Return float32 of both signs with biased exponents from `lowest` to `highest`. Many are ties or just
    beside one.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return torch.randint(low, high, shape, generator=generator)

    fraction = draw(0, 1 << 23)
    kept = draw(8, 24)  # cut some fractions short, so that ties are met...
    fraction = (fraction >> kept << kept) + draw(-1, 2) * draw(
        0, 2
    )  # ...and move some off the tie by one bit
    return floats(
        draw(0, 2) << 31 | draw(lowest, highest + 1) << 23 | fraction.clamp(0, (1 << 23) - 1)
    )


def assert_same(ttnn, values: torch.Tensor, dtype: str) -> None:
    dtype = getattr(ttnn, dtype)
    before = bits(values).clone()
    ours = round_to(values, dtype)
    theirs = ttnn.from_torch(values, dtype=dtype, layout=ttnn.TILE_LAYOUT).to_torch()
    assert ours.shape == values.shape
    wrong = (bits(ours) != bits(theirs)).flatten().nonzero().flatten()[:5]
    assert not len(wrong), (
        f"{dtype}: of {values.flatten()[wrong].tolist()} ttnn makes {theirs.flatten()[wrong].tolist()}, "
        f"round_to {ours.flatten()[wrong].tolist()} (places {wrong.tolist()})"
    )
    assert torch.equal(bits(values), before), "the input was changed"


# Biased exponents: around one; of attention scores to activations; near the ends of float32; all of them.
RANGES = (
    (120, 130), (100, 140), (0, 0), (0, 1), (0, 8), (1, 30), (22, 26), (240, 254), (240, 255), (0, 255),
)  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lowest, highest", RANGES)
def test_random_values(ttnn, dtype, lowest, highest):
    values = random_floats(1, (256, 96), lowest, highest)
    assert_same(ttnn, values, dtype)
    assert_same(ttnn, values.to(torch.bfloat16), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@given(
    seed=st.integers(0, 1 << 32),
    shape=st.lists(st.integers(1, 40), min_size=0, max_size=4).map(tuple),
    ends=st.tuples(st.integers(0, 255), st.integers(0, 255)),
    bfloat16=st.booleans(),
)
@few
def test_any_shape_and_range(ttnn, dtype, seed, shape, ends, bfloat16):
    values = random_floats(seed, shape, min(ends), max(ends))
    assert_same(ttnn, values.to(torch.bfloat16) if bfloat16 else values, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@given(block=st.lists(st.integers(0, (1 << 32) - 1), min_size=BLOCK, max_size=BLOCK))
@few
def test_any_block_of_bits(ttnn, dtype, block):
    assert_same(ttnn, floats(block), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@given(block=st.lists(st.floats(width=32), min_size=1, max_size=2 * BLOCK + 1))
@few
def test_values_that_hypothesis_finds_nasty(ttnn, dtype, block):
    assert_same(ttnn, torch.tensor(block), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "block",
    [
        [0.0] * 16,
        [-0.0] * 16,
        [1.0] + [-0.0] * 15,
        [-1e-30, 1.0],
        [
            1.0,
            2.0**-6,
            2.0**-7,
            3 * 2.0**-7,
            2.0**-8,
            -(2.0**-7),
            -3 * 2.0**-7,
        ],  # the last code of bfloat8_b; ties
        [1.0, 0.25, 0.125, 0.375, 0.0625, -0.125, -0.375],  # the last code of bfloat4_b; ties
        [
            1.0,
            2.0**-7 * (1 + 2.0**-23),
            0.125 * (1 + 2.0**-23),
        ],  # beyond a tie by bits that are cut off before
        [
            1.0,
            1.0 + 2.0**-7,
            1.0 + 2.0**-7 + 2.0**-23,
            1.0 + 3 * 2.0**-7,
        ],  # through bfloat16 the third would differ
        [255 / 128, 1.999999, 1.0, -1.999999],  # would carry into the next exponent: saturates
        [1.75, 1.875, 1.9375, -1.875],
        [3.4028234663852886e38, -3.4e38, 1e38, 1.0],  # the largest float32
        [1.1754943508222875e-38, -1.1754943508222875e-38, 2.0**-125],  # the smallest normal one
        [1e-45, -1e-45, 1e-40, 1.1754942e-38],  # subnormal all
        [2.0**-126, 1.1754942e-38, -1e-40],  # subnormal beside the smallest normal one
        [2.0**-120, 1.1754942e-38, -1.1754942e-38],
        [INF, 1.0, -2.0, 3e38, 1e38],
        [-INF, INF, 0.0],
        [NAN, 1.0, INF, -1.0, 3e38],
        [171.0, 0.5, -0.3, 0.01, 1e-4] * 3,  # Qwen2.5's K with its bias: the small channels lose
        [float(2**k) for k in range(16)],
        [-(2.0**-k) for k in range(16)],
    ],
)
def test_hand_made_blocks(ttnn, dtype, block):
    assert_same(ttnn, torch.tensor(block), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nans_with_payloads(ttnn, dtype):
    codes = [0x7F800001, 0x7FC00000, 0xFFC12345, 0x7FFFFFFF]
    codes += [0xFF810000, 0xFFA00000, 0x7F880000, 0x7F80FFFF]
    values = torch.zeros(len(codes), 32)
    values[:, 0] = floats(codes)
    assert_same(ttnn, values, dtype)
    assert_same(ttnn, values.to(torch.bfloat16), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_special_block_does_not_change_its_neighbors(ttnn, dtype):
    values = torch.randn(64, 64)
    values[3, 20], values[7, 0], values[9, 16:32], values[11, 32:48] = INF, NAN, 0.0, 1e-37
    assert_same(ttnn, values, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_more_than_one_chunk(ttnn, dtype):
    """Large tensors are rounded in pieces. The last piece is shorter."""
    values = torch.randn(32, 8224) * torch.logspace(-6, 3, 32)[:, None]
    assert_same(ttnn, values, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "shape", [(), (1,), (5,), (0,), (3, 0), (2, 3, 17), (1, 1, 32, 100), (33, 47)]
)
def test_shapes(ttnn, dtype, shape):
    assert_same(ttnn, torch.randn(shape), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "view", [lambda t: t.T, lambda t: t[:, ::2], lambda t: t[:, 1:], lambda t: t[:1].expand(8, -1)]
)
def test_views(ttnn, dtype, view):
    assert_same(ttnn, view(torch.randn(48, 64)), dtype)
    assert_same(ttnn, view(torch.randn(48, 64).to(torch.bfloat16)).contiguous(), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("source", [torch.int32, torch.uint8, torch.int8, torch.bool])
def test_integers_into_floats(ttnn, dtype, source):
    generator = torch.Generator().manual_seed(2)
    info = torch.iinfo(source) if source != torch.bool else torch.iinfo(torch.uint8)
    values = torch.randint(info.min, info.max + 1, (32, 64), generator=generator).to(source)
    assert_same(ttnn, values, dtype)


@pytest.mark.parametrize("dtype", BLOCK_FLOATS)
@given(seed=st.integers(0, 1 << 32))
@few
def test_rounding_twice_changes_nothing(ttnn, dtype, seed):
    once = round_to(random_floats(seed, (8, 64), 1, 254), getattr(ttnn, dtype))
    assert torch.equal(bits(round_to(once, getattr(ttnn, dtype))), bits(once))


@pytest.mark.parametrize("dtype", FLOATS)
def test_float64_is_taken_as_float32(ttnn, dtype):
    values = torch.randn(32, 64, dtype=torch.float64)
    dtype = getattr(ttnn, dtype)
    assert torch.equal(
        bits(round_to(values, dtype)), bits(round_to(values.to(torch.float32), dtype))
    )


@pytest.mark.parametrize(
    "source", [torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8, torch.uint32]
)
@pytest.mark.parametrize("dtype", ["int32", "uint32", "uint16", "uint8", "float32"])
def test_integers(ttnn, dtype, source):
    """Integers in range stay. Integers out of range wrap round."""
    info = torch.iinfo(source)
    whole = [0, 1, -1, 7, *(2**n - 1 for n in (7, 8, 15, 16, 31, 32)), 70000, -(2**31)]
    whole += [2**n for n in (7, 8, 15, 16, 31)]
    assert_same(
        ttnn, torch.tensor([v for v in whole if info.min <= v <= info.max], dtype=source), dtype
    )


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", ["int32", "uint32", "uint16", "uint8"])
def test_floats_into_integers(ttnn, dtype, source):
    """Floats are cut towards zero. Beyond the range uint16 and uint8 saturate and uint32 wraps round."""
    values = [0.0, 0.5, 1.5, 2.5, 3.99, 200.7, 255.5, 256.0, 65535.0, 1e6, -0.5, -1.0, -300.5]
    assert_same(ttnn, torch.tensor(values, dtype=source), dtype)


def test_holders(ttnn):
    """The narrowest torch dtype that holds each dtype (uint32 wider: torch can do little with its own uint32)."""
    values = torch.tensor([[0, 1, 2, 3]])
    holders = {
        dtype: round_to(values, getattr(ttnn, dtype)).dtype
        for dtype in (*FLOATS, "float32", "int32", "uint8")
    }
    assert holders == dict.fromkeys(FLOATS, torch.bfloat16) | {
        "float32": torch.float32,
        "int32": torch.int32,
        "uint8": torch.uint8,
    }
    assert round_to(values, ttnn.uint16).dtype == torch.int32
    assert round_to(values, ttnn.uint32).dtype == torch.int64
    torch.arange(4)[round_to(values, ttnn.uint32)]  # a tensor of indices indexes


@pytest.mark.parametrize(
    "dtype, holder",
    [("bfloat16", torch.bfloat16), ("float32", torch.float32), ("int32", torch.int32)],
)
def test_a_conversion_to_the_same_form_copies_nothing(ttnn, dtype, holder):
    values = torch.ones(4, 4, dtype=holder)
    assert round_to(values, getattr(ttnn, dtype)) is values


def test_the_number_formats_are_a_library_that_needs_no_ttnn():
    code = (
        "import sys, torch; from golden_mesh.rounding import round_to; "
        "print(round_to(torch.tensor([[1.0, 0.01]]), 'bfloat4_b').tolist(), 'ttnn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[[1.0, 0.0]] False\n"
