"""Sampling: one candidate is certain, and several have the right distribution."""

import pytest
import torch
import ttnn

from goldens.support import cores, ints

USERS, WIDTH = 32, 64
EQUAL, IDS = torch.zeros(1, 1, USERS, WIDTH), torch.arange(WIDTH).expand(1, 1, USERS, WIDTH)


def sample(chips, values=EQUAL, ids=IDS, k=32, p=1.0, temperature=1.0, seed=None) -> torch.Tensor:
    """The first chip's tokens, [USERS]."""
    each = lambda value, dtype: chips.put_input(ints(torch.full((USERS,), value), dtype))
    settings = each(k, ttnn.uint32), each(p, ttnn.bfloat16), each(1 / temperature, ttnn.bfloat16)
    how = dict(zip(("k", "p", "temp"), settings), seed=seed)
    return chips.get(ttnn.sampling(chips.put(values), chips.put_ints(ids), **how))[0].flatten()


@pytest.mark.parametrize("settings", ({"k": 1, "p": 1.0}, {"k": 32, "p": 0.0}), ids=str)
def test_one_candidate_is_taken(chips, settings):
    values = torch.stack([torch.randperm(WIDTH) for _ in range(USERS)])[None, None].float()
    ids = torch.randint(0, 150000, (1, 1, USERS, WIDTH))
    want = ids.gather(-1, values.argmax(-1, keepdim=True)).flatten()
    assert torch.equal(sample(chips, values, ids, **settings, seed=3).long(), want)


@pytest.mark.parametrize("temperature", (1.0, 2.0))
def test_draws_follow_the_softmax_of_what_top_k_and_top_p_leave(chips, temperature):
    """Candidates of weight 4, 3, 2, 1: p = 0.8 needs three of them."""
    values = torch.full((1, 1, USERS, WIDTH), -100.0)
    values[..., [5, 9, 20, 33]] = torch.tensor([4.0, 3.0, 2.0, 1.0]).log()
    ttnn.manual_seed(1, device=chips.device)
    how = dict(k=8, p=0.8, temperature=temperature)
    draws = torch.cat([sample(chips, values, IDS + 1000, **how) for _ in range(40)])
    shares = torch.stack([(draws == token).double().mean() for token in (1005, 1009, 1020)])
    want = torch.tensor([4.0, 3.0, 2.0]).double() ** (1 / temperature)
    assert shares.sum() == 1
    assert torch.allclose(shares, want / want.sum(), atol=0.05)


def test_equal_values_go_to_the_lower_index(chips):
    assert (sample(chips, k=1) == 0).all()


def test_manual_seed_repeats_what_follows(chips):
    draws = []
    for seed in (5, 5, 6):
        ttnn.manual_seed(seed, device=chips.device)
        draws.append(torch.stack([sample(chips) for _ in range(2)]))
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert not torch.equal(*draws[0])


def test_users_may_be_seeded_one_by_one(chips):
    """User 3 gets its old seed and repeats its draw. User 5 gets a new seed."""
    rows = lambda *numbers: chips.put_input(ints(numbers, ttnn.uint32))
    draws = []
    for seeds in ((11, 12), (11, 13)):
        ttnn.manual_seed(rows(*seeds), user_ids=rows(3, 5), sub_core_grids=cores(32))
        draws.append(torch.stack([sample(chips) for _ in range(4)]))
    assert torch.equal(draws[0][:, 3], draws[1][:, 3])
    assert not torch.equal(draws[0][:, 5], draws[1][:, 5])


def test_a_seed_repeats_its_samples(chips):
    first, again, other = (sample(chips, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(first, again) and not torch.equal(first, other)
