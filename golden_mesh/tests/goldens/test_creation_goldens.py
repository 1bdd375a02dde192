"""Tensors made on the device: values on every chip, and distributions of random numbers."""

import pytest
import torch
import ttnn

from goldens.support import ROW_MAJOR, TILE, assert_same

SHAPE = (1, 2, 33, 45)
BFLOAT16 = dict(dtype=ttnn.bfloat16, layout=TILE)
INT32 = dict(dtype=ttnn.int32)
# The call, with the place HERE and a tensor `like`, and its values.
CONSTANTS = {
    "zeros(SHAPE, device=HERE, **BFLOAT16)": torch.zeros(SHAPE),
    "ones(SHAPE, device=HERE, **BFLOAT16)": torch.ones(SHAPE),
    "full(SHAPE, 2.5, device=HERE, **BFLOAT16)": torch.full(SHAPE, 2.5),
    "zeros_like(like)": torch.zeros(SHAPE),
    "ones_like(like)": torch.ones(SHAPE),
    "full_like(like, 2.5)": torch.full(SHAPE, 2.5),
    "full((1, 32), 70000, layout=ROW_MAJOR, device=HERE, **INT32)": torch.full((1, 32), 70000),
    # A block of four bits is packed from whole rows.
    "zeros((32, 64), dtype=ttnn.bfloat4_b, layout=TILE, device=HERE)": torch.zeros(32, 64),
    "arange(40, device=HERE, **INT32)": torch.arange(40),
    "arange(3, 40, 2, device=HERE, **INT32)": torch.arange(3, 40, 2),
    "arange(start=3, end=40, step=2, device=HERE, **INT32)": torch.arange(3, 40, 2),
}


@pytest.mark.parametrize("call", CONSTANTS)
def test_constants(chips, call):
    here = {"HERE": chips.device, "like": chips.put(chips.draw(*SHAPE))}
    assert_same(eval(f"ttnn.{call}", globals(), here), CONSTANTS[call])


def test_a_tensor_made_on_the_host_stays_there():
    got = ttnn.zeros((2, 3), ttnn.bfloat16, ROW_MAJOR)
    assert torch.equal(ttnn.to_torch(got), torch.zeros(2, 3).bfloat16())


def test_random_numbers_lie_evenly_between_their_bounds(chips):
    got = chips.get(ttnn.rand((4, 33, 65), chips.device, dtype=ttnn.float32, low=-1.0, high=3.0))
    for values in got:
        assert values.shape == (4, 33, 65)
        assert values.min() >= -1 and values.max() < 3
        assert values.histc(4, -1, 3) / values.numel() == pytest.approx([0.25] * 4, abs=0.02)


def test_a_seed_repeats_random_numbers(chips):
    def numbers(**options):
        return chips.get(ttnn.rand((32, 32), chips.device, **options))[0]

    assert torch.equal(numbers(seed=7), numbers(seed=7))
    assert not torch.equal(numbers(seed=7), numbers(seed=8))
    assert not torch.equal(numbers(), numbers())


def test_normal_random_numbers(chips):
    values = chips.get(ttnn.randn((64, 128), chips.device, dtype=ttnn.float32, seed=3))[0]
    assert values.mean().item() == pytest.approx(0, abs=0.05)
    assert values.std().item() == pytest.approx(1, abs=0.05)


def test_dropout_keeps_the_share_that_it_should(chips):
    x = torch.full((1, 1, 128, 128), 2.0)
    got = chips.get(ttnn.experimental.dropout(chips.put(x), 0.25, 4 / 3, 7))[0]
    kept = got != 0
    assert 0.72 < kept.float().mean() < 0.78
    assert set(got[kept].tolist()) == {2.65625}  # 8 / 3, cut


def test_bernoulli_draws_ones_with_their_probabilities(chips):
    share = torch.tensor([0.0, 0.25, 1.0]).repeat_interleave(32)
    got = chips.get(ttnn.bernoulli(chips.put(share.expand(1, 1, 1024, 96)), 3))[0]
    means = got.float().mean((0, 1, 2))
    assert set(got.unique().tolist()) == {0, 1}
    assert (means[:32] == 0).all() and (means[64:] == 1).all()
    assert 0.24 < means[32:64].mean() < 0.26
