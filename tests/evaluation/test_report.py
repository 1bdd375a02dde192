"""The plots are drawn for any measured values."""

import pytest
import torch

from models.demos.qwen25_7b.config import BF16
from models.demos.qwen25_7b.evaluation.divergence import compare
from models.demos.qwen25_7b.evaluation.recipes import ablations_by
from models.demos.qwen25_7b.evaluation.report import plot_ablation, plot_recipes

FORMATS = ["bfloat8_b", "bfloat4_b"]
SCORE = compare(torch.randn(9, 20), torch.randn(9, 20), torch.zeros(9, dtype=torch.long))
SAME = compare(
    torch.ones(9, 20), torch.ones(9, 20), torch.zeros(9, dtype=torch.long)
)  # KL 0, full agreement


@pytest.mark.parametrize("scores", [[SCORE], [SAME, SCORE]])
def test_recipes(tmp_path, scores):
    plot_recipes(
        tmp_path / "a/b.png", "a title that is long " * 20, [(BF16.name, score) for score in scores]
    )
    assert (tmp_path / "a/b.png").stat().st_size > 5000


@pytest.mark.parametrize(
    "ablations",
    [
        ablations_by("group", BF16, FORMATS, 3),
        ablations_by("layer", BF16, FORMATS, 3),
        ablations_by("cell", BF16, FORMATS, 3),
        ablations_by("cell", BF16, FORMATS[:1], 30),
    ],
)
def test_ablation_of_any_kind(tmp_path, ablations):
    plot_ablation(
        tmp_path / "c.png",
        "title",
        SCORE.summary(),
        [(ablation, SCORE.summary()) for ablation in ablations],
    )
    assert (tmp_path / "c.png").stat().st_size > 5000
