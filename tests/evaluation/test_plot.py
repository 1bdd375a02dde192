"""Pictures are drawn of whatever was measured."""

import pytest
import torch

from models.demos.qwen25_7b.config import BF16
from models.demos.qwen25_7b.evaluation.ablation import by_cell, by_group, by_layer
from models.demos.qwen25_7b.evaluation.plot import plot_ablation, plot_recipes
from models.demos.qwen25_7b.evaluation.score import compare

FORMATS = ["bfloat8_b", "bfloat4_b"]
SCORE = compare(torch.randn(9, 20), torch.randn(9, 20), torch.zeros(9, dtype=torch.long))
SAME = compare(torch.ones(9, 20), torch.ones(9, 20), torch.zeros(9, dtype=torch.long))  # no KL, all agreed


@pytest.mark.parametrize("scores", [[SCORE], [SAME, SCORE]])
def test_recipes(tmp_path, scores):
    plot_recipes(tmp_path / "a/b.png", "a title that is long " * 20, [(BF16, score) for score in scores])
    assert (tmp_path / "a/b.png").stat().st_size > 5000


@pytest.mark.parametrize(
    "variants",
    [by_group(BF16, FORMATS), by_layer(BF16, FORMATS, 3), by_cell(BF16, FORMATS, 3), by_cell(BF16, FORMATS[:1], 30)],
)
def test_ablation_of_any_kind(tmp_path, variants):
    plot_ablation(tmp_path / "c.png", "title", SCORE.summary(), [(variant, SCORE.summary()) for variant in variants])
    assert (tmp_path / "c.png").stat().st_size > 5000
