"""Tensors made on the device hold on every chip what they were made with."""

import pytest
import torch
import ttnn

from tests.golden_mesh.goldens.support import assert_same

MADE = {
    "zeros": (lambda shape, **k: ttnn.zeros(shape, **k), 0.0),
    "ones": (lambda shape, **k: ttnn.ones(shape, **k), 1.0),
    "full": (lambda shape, **k: ttnn.full(shape, 2.5, **k), 2.5),
}


@pytest.mark.parametrize("name", MADE)
def test_made_from_a_shape(chips, name):
    make, value = MADE[name]
    got = make((1, 2, 33, 45), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=chips.device)
    assert_same(chips.get(got), [torch.full((1, 2, 33, 45), value)] * chips.count)


@pytest.mark.parametrize("name", MADE)
def test_made_like_another_tensor(chips, name):
    like = chips.put(chips.draw(1, 1, 33, 45))
    got = ttnn.full_like(like, 2.5) if name == "full" else getattr(ttnn, f"{name}_like")(like)
    assert_same(chips.get(got), [torch.full((1, 1, 33, 45), MADE[name][1])] * chips.count)


def test_made_on_the_host_it_stays_there():
    got = ttnn.zeros((2, 3), ttnn.bfloat16, ttnn.ROW_MAJOR_LAYOUT)
    assert torch.equal(ttnn.to_torch(got), torch.zeros(2, 3).bfloat16())


def test_integers(chips):
    got = ttnn.full((1, 32), 70000, dtype=ttnn.int32, layout=ttnn.ROW_MAJOR_LAYOUT, device=chips.device)
    assert_same(chips.get(got), [torch.full((1, 32), 70000)] * chips.count)


@pytest.mark.parametrize("bounds", ((40,), (3, 40), (3, 40, 2)), ids=str)
def test_arange(chips, bounds):
    got = ttnn.arange(*bounds, dtype=ttnn.int32, device=chips.device)
    assert_same(chips.get(got), [torch.arange(*bounds)] * chips.count)
    named = dict(zip(("start", "end", "step") if len(bounds) > 1 else ("end",), bounds))
    assert_same(chips.get(ttnn.arange(**named, dtype=ttnn.int32, device=chips.device)), chips.get(got))
