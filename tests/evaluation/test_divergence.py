"""KL, agreement and NLL on small distributions, against values computed by hand."""

import math

import pytest
import torch

from models.demos.qwen25_7b.evaluation.divergence import Score, compare


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
    assert (score.kl >= 0).all() and score.kl.max() < 1e-6 and score.top1.all()


def test_top5_counts_our_first_choice_among_the_references_five():
    reference = logs([0.3, 0.25, 0.2, 0.1, 0.08, 0.07]).expand(3, -1)
    ours = torch.zeros(3, 6)
    ours[0, 0] = ours[1, 4] = ours[2, 5] = 1
    score = compare(ours, reference, torch.tensor([0, 0, 0]))
    assert score.top1.tolist() == [True, False, False] and score.top5.tolist() == [True, True, False]


def test_a_summary_averages_over_tokens_and_not_over_texts():
    torch.manual_seed(0)
    logits, reference, following = torch.randn(7, 20), torch.randn(7, 20), torch.randint(20, (7,))
    whole = compare(logits, reference, following).summary()
    parts = [compare(logits[some], reference[some], following[some]) for some in (slice(0, 1), slice(1, 7))]
    assert Score.join(parts).summary() == whole
    assert whole.tokens == 7 and whole.kl_max > whole.kl_99th_percentile > whole.kl_median
