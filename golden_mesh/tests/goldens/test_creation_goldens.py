"""Tensors made on the device have their values on every chip."""

import pytest
import torch
import ttnn

from goldens.support import assert_same

MADE = {
    "zeros": (lambda shape, **k: ttnn.zeros(shape, **k), 0.0),
    "ones": (lambda shape, **k: ttnn.ones(shape, **k), 1.0),
    "full": (lambda shape, **k: ttnn.full(shape, 2.5, **k), 2.5),
}


@pytest.mark.parametrize("name", MADE)
def test_made_from_a_shape(chips, name):
    make, value = MADE[name]
    got = make((1, 2, 33, 45), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=chips.device)
    assert_same(got, torch.full((1, 2, 33, 45), value))


@pytest.mark.parametrize("name", MADE)
def test_made_like_another_tensor(chips, name):
    like = chips.put(chips.draw(1, 1, 33, 45))
    got = ttnn.full_like(like, 2.5) if name == "full" else getattr(ttnn, f"{name}_like")(like)
    assert_same(got, torch.full((1, 1, 33, 45), MADE[name][1]))


def test_a_tensor_made_on_the_host_stays_there():
    got = ttnn.zeros((2, 3), ttnn.bfloat16, ttnn.ROW_MAJOR_LAYOUT)
    assert torch.equal(ttnn.to_torch(got), torch.zeros(2, 3).bfloat16())


def test_integers(chips):
    got = ttnn.full(
        (1, 32), 70000, dtype=ttnn.int32, layout=ttnn.ROW_MAJOR_LAYOUT, device=chips.device
    )
    assert_same(got, torch.full((1, 32), 70000))


@pytest.mark.parametrize("bounds", ((40,), (3, 40), (3, 40, 2)), ids=str)
def test_arange(chips, bounds):
    got = ttnn.arange(*bounds, dtype=ttnn.int32, device=chips.device)
    assert_same(got, torch.arange(*bounds))
    named = dict(zip(("start", "end", "step") if len(bounds) > 1 else ("end",), bounds))
    assert_same(ttnn.arange(**named, dtype=ttnn.int32, device=chips.device), chips.get(got))


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
    assert ((got[kept].float() - 8 / 3).abs() < 0.02).all()


def test_bernoulli_draws_ones_with_their_probabilities(chips):
    share = torch.tensor([0.0, 0.25, 1.0]).repeat_interleave(32)
    got = chips.get(ttnn.bernoulli(chips.put(share.expand(1, 1, 1024, 96)), 3))[0]
    means = got.float().mean((0, 1, 2))
    assert set(got.unique().tolist()) == {0, 1}
    assert (means[:32] == 0).all() and (means[64:] == 1).all()
    assert 0.24 < means[32:64].mean() < 0.26
