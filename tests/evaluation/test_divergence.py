"""KL, agreement and NLL on small distributions, against values computed by hand."""

import math

import pytest
import torch
from qwen25_7b_lab.evaluation.divergence import Score, compare


def logs(*rows) -> torch.Tensor:
    """Return logits of these probabilities. Rows may be shifted, because softmax ignores it."""
    return torch.tensor(rows).log() + torch.arange(len(rows))[:, None]


def test_kl_is_from_the_reference_to_ours():
    reference, ours = (logs([0.5, 0.25, 0.125, 0.0625, 0.0625]), logs([0.25, 0.5, 0.125, 0.0625, 0.0625]))
    score = compare(ours, reference, torch.tensor([0]))
    assert float(score.kl) == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2))
    skewed = compare(logs([0.1, 0.6, 0.1, 0.1, 0.1]), logs([0.2, 0.2, 0.2, 0.2, 0.2]), torch.tensor([0]))
    assert float(skewed.kl) == pytest.approx(0.8 * math.log(2) + 0.2 * math.log(1 / 3)), "the direction matters here"
    assert float(skewed.nll) == pytest.approx(-math.log(0.1)) and float(skewed.reference_nll) == pytest.approx(
        math.log(5)
    )


def test_equal_logits_have_a_kl_of_zero():
    logits = torch.randn(64, 5000) * 8
    score = compare(logits + 3, logits, torch.zeros(64, dtype=torch.long))
    assert (score.kl >= 0).all() and score.kl.max() < 1e-6 and score.top(1) == 1


def test_our_first_choice_has_a_rank_among_the_references():
    reference = torch.arange(0.0, -200, -1).expand(4, -1)
    ours = torch.nn.functional.one_hot(torch.tensor([0, 4, 99, 100]), 200).float()
    score = compare(ours, reference, torch.zeros(4, dtype=torch.long))
    assert score.rank.tolist() == [0, 4, 99, 100] and [score.top(n) for n in (1, 5, 100)] == [0.25, 0.5, 0.75]


def test_a_summary_averages_over_tokens_and_not_over_texts():
    torch.manual_seed(0)
    logits, reference, following = torch.randn(7, 20), torch.randn(7, 20), torch.randint(20, (7,))
    whole = compare(logits, reference, following).summary()
    parts = [compare(logits[some], reference[some], following[some]) for some in (slice(0, 1), slice(1, 7))]
    assert Score.join(parts).summary() == whole
    assert whole["tokens"] == 7 and whole["kl_max"] > whole["kl_99th_percentile"] > whole["kl_median"]
