"""The host's sampler draws from the distribution that temperature, top-k and top-p define, and from nothing else."""

import math

import pytest
import torch

from models.common.errors import UserError
from models.demos.qwen25_7b.config.sampling import Sampling
from models.demos.qwen25_7b.serving.sampling import HostSampler

LOGITS = torch.tensor([1.0, 3.0, -2.0, 2.5, 0.0, 2.9, -1.0, 0.5])


def brute_force(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """Each token's probability by the definition, in plain Python: keep the top_k best, then the fewest of the best
    whose probabilities (among those kept) reach top_p, then share out their odds anew."""
    odds = [math.exp((x - max(logits)) / temperature) for x in logits]
    order = sorted(range(len(odds)), key=lambda token: -odds[token])[: top_k or None]
    whole, kept, mass = sum(odds[t] for t in order), [], 0.0
    for token in order:
        kept.append(token)
        mass += odds[token] / whole
        if mass >= top_p:
            break
    whole = sum(odds[t] for t in kept)
    return [odds[t] / whole if t in kept else 0.0 for t in range(len(odds))]


def frequencies(sampling: Sampling, logits: torch.Tensor, draws: int = 1500) -> torch.Tensor:
    sampler = HostSampler([sampling])
    tokens = torch.tensor([sampler(0, logits) for _ in range(draws)])
    return torch.bincount(tokens, minlength=len(logits)) / draws


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("top_k, top_p", [(0, 1.0), (3, 1.0), (0, 0.8), (5, 0.6), (1, 1.0), (0, 1e-6), (100, 0.9)])
def test_draws_follow_the_definition(temperature, top_k, top_p):
    wanted = torch.tensor(brute_force(LOGITS.tolist(), temperature, top_k, top_p))
    got = frequencies(Sampling(temperature, top_k, top_p, seed=5), LOGITS)
    assert not got[wanted == 0].any(), "a token was drawn that is left out"
    spread = (wanted * (1 - wanted) / 1500).sqrt()  # standard deviation of a frequency
    assert ((got - wanted).abs() <= 4.5 * spread + 1e-9).all(), f"{got} for {wanted}"


def test_equal_logits_are_equally_likely():
    got = frequencies(Sampling(temperature=1.0, seed=1), torch.zeros(4))
    assert (got - 0.25).abs().max() < 0.05


def test_a_tie_at_the_border_keeps_just_top_k_tokens():
    tied = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])
    got = frequencies(Sampling(temperature=1.0, top_k=2, seed=1), tied, draws=500)
    assert (got > 0).sum() == 2 and got[0] == 0


def test_a_tie_at_the_border_of_top_p_keeps_just_enough():
    tied = torch.zeros(10)
    got = frequencies(Sampling(temperature=1.0, top_p=0.35, seed=1), tied, draws=500)
    assert (got > 0).sum() == 4  # three hold 0.3, four reach 0.35


def test_greedy_takes_the_largest_logit_and_draws_nothing():
    sampler = HostSampler([Sampling(seed=3)])
    before = sampler.noise.streams[0].get_state()
    assert [sampler(0, LOGITS), sampler(0, -LOGITS), sampler(0, LOGITS.bfloat16())] == [1, 2, 1]
    assert sampler.noise.streams[0].get_state().equal(before)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1e-3, seed=0), Sampling(5.0, top_k=1, seed=0)])
def test_limits_of_sampling_are_greedy(sampling):
    sampler = HostSampler([sampling])
    assert {sampler(0, LOGITS) for _ in range(50)} == {1}


def test_a_user_draws_from_a_stream_of_its_own():
    """What a user gets does not depend on who else is there, nor on the order in which users are served."""
    sampling = Sampling(temperature=2.0, seed=9)
    alone, together = HostSampler([sampling] * 2), HostSampler([sampling] * 3)
    expected = [alone(1, LOGITS) for _ in range(40)]
    got = []
    for _ in range(40):
        together(2, LOGITS)
        got.append(together(1, LOGITS))
        together(0, LOGITS)
    assert got == expected
    assert expected != [HostSampler([sampling])(0, LOGITS) for _ in range(40)]


def test_without_a_seed_every_run_differs():
    runs = {
        tuple(s(0, torch.zeros(1000)) for _ in range(8))
        for s in (HostSampler([Sampling(1.0, top_k=0)]) for _ in range(3))
    }
    assert len(runs) == 3


def test_the_logits_are_left_as_they_are():
    logits = LOGITS.clone()
    HostSampler([Sampling(0.7, top_k=3, top_p=0.5, seed=0)])(0, logits)
    assert logits.equal(LOGITS)


@pytest.mark.parametrize(
    "option, value",
    [("temperature", -0.1), ("temperature", 1e-4), ("temperature", math.inf), ("temperature", math.nan), ("top_k", -1), ("top_p", 0.0),
     ("top_p", 1.01), ("top_p", math.nan), ("seed", -1), ("seed", 1 << 32)],
)  # fmt: skip
def test_impossible_options_are_refused(option, value):
    with pytest.raises(UserError) as caught:
        Sampling(**{option: value})
    assert option in str(caught.value) and str(value) in str(caught.value)
