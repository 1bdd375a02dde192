"""Sampling: the token is certain with one candidate, and has the right distribution with several."""

import pytest
import torch
import ttnn

from goldens.support import assert_same, cores

USERS, WIDTH = 32, 64


def sample(chips, values, ids, *, k, p, temperature, seed=None):
    rows = lambda t, dtype: chips.put(t, dtype, ttnn.ROW_MAJOR_LAYOUT)  # noqa: E731
    return ttnn.sampling(
        chips.put(values),
        rows(ids.int(), ttnn.int32),
        k=rows(torch.full((USERS,), k).int(), ttnn.uint32),
        p=rows(torch.full((USERS,), float(p)), ttnn.bfloat16),
        temp=rows(torch.full((USERS,), 1 / temperature), ttnn.bfloat16),
        seed=seed,
    )


@pytest.mark.parametrize("settings", ({"k": 1, "p": 1.0}, {"k": 32, "p": 0.0}), ids=str)
def test_one_candidate_is_taken(chips, settings):
    values = torch.stack([torch.randperm(WIDTH) for _ in range(USERS)])[None, None].float()
    ids = torch.randint(0, 150000, (1, 1, USERS, WIDTH))
    got = sample(chips, values, ids, **settings, temperature=1.0, seed=3)
    assert_same(got, ids.gather(-1, values.argmax(-1, keepdim=True)).reshape(1, 1, 1, USERS))


def test_draws_follow_the_softmax_of_what_top_k_and_top_p_leave(chips):
    """Candidates of weight 4, 3, 2, 1: p = 0.8 needs three of them, at temperature 1."""
    values = torch.full((1, 1, USERS, WIDTH), -100.0)
    values[..., [5, 9, 20, 33]] = torch.tensor([4.0, 3.0, 2.0, 1.0]).log()
    ids = torch.arange(1000, 1000 + WIDTH).expand(1, 1, USERS, WIDTH)
    ttnn.manual_seed(1, device=chips.device)
    draws = torch.cat(
        [
            chips.get(sample(chips, values, ids, k=8, p=0.8, temperature=1.0))[0].flatten()
            for _ in range(40)
        ]
    )
    counts = torch.stack([(draws == token).sum() for token in (1005, 1009, 1020)]).double()
    assert counts.sum() == len(draws)
    assert torch.allclose(
        counts / len(draws), torch.tensor([4.0, 3.0, 2.0]).double() / 9, atol=0.05
    )


def test_manual_seed_repeats_what_follows(chips):
    values, ids = torch.zeros(1, 1, USERS, WIDTH), torch.arange(WIDTH).expand(1, 1, USERS, WIDTH)
    options = {"k": 32, "p": 1.0, "temperature": 1.0}
    draws = []
    for seed in (5, 5, 6):
        ttnn.manual_seed(seed, device=chips.device)
        draws.append(
            torch.cat([chips.get(sample(chips, values, ids, **options))[0] for _ in range(2)])
        )
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert not torch.equal(*draws[0].split(1))


def test_users_may_be_seeded_one_by_one(chips):
    """User 3 gets its old seed and repeats its draw. User 5 gets a new seed."""
    values, ids = torch.zeros(1, 1, USERS, WIDTH), torch.arange(WIDTH).expand(1, 1, USERS, WIDTH)
    rows = lambda *t: chips.put(torch.tensor(t).int(), ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT)  # noqa: E731
    draws = []
    for seeds in ((11, 12), (11, 13)):
        ttnn.manual_seed(rows(*seeds), user_ids=rows(3, 5), sub_core_grids=cores(32))
        got = [
            chips.get(sample(chips, values, ids, k=32, p=1.0, temperature=1.0))[0].flatten()
            for _ in range(4)
        ]
        draws.append(torch.stack(got))
    assert torch.equal(draws[0][:, 3], draws[1][:, 3]) and not torch.equal(
        draws[0][:, 5], draws[1][:, 5]
    )


def test_a_seed_repeats_its_samples(chips):
    values, ids = torch.zeros(1, 1, USERS, WIDTH), torch.arange(WIDTH).expand(1, 1, USERS, WIDTH)
    options = {"k": 32, "p": 1.0, "temperature": 1.0}
    first, again, other = (
        chips.get(sample(chips, values, ids, **options, seed=s))[0] for s in (7, 7, 8)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
