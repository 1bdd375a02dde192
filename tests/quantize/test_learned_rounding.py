"""Learned rounding on random numbers, and in the tool."""

import torch
from qwen25_7b_lab.quantize.__main__ import main
from qwen25_7b_lab.quantize.layer import FOUR_BITS, Mlp, arranged, fitted_down, hidden, rounded_inputs, with_inputs
from qwen25_7b_lab.quantize.learned import learned_inputs
from qwen25_7b_lab.quantize.rounding import rounded

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint
from tests.quantize.conftest import TOKENS

HIDDEN, MLP, SAMPLES = 64, 128, 2000


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs_like_activations(tokens, seed):
    """[tokens, HIDDEN]: few directions, noise, one outlier channel."""
    x = normal(tokens, 8, seed=seed) @ normal(8, HIDDEN, seed=0)
    x += 0.3 * normal(tokens, HIDDEN, seed=seed + 1)
    x[:, 3] *= 5
    return x / 3


def test_learned_rounding_makes_less_error_on_new_inputs():
    """Down is fitted after both. The learned values are of bfloat4_b, and a second run gives them again."""
    weights = [normal(*s, seed=i) for i, s in enumerate([(HIDDEN, MLP), (HIDDEN, MLP), (MLP, HIDDEN)])]
    mlp = arranged(Mlp(*(0.2 * weight for weight in weights)))
    x, new, counts = inputs_like_activations(SAMPLES, 11), inputs_like_activations(500, 21), torch.ones(SAMPLES,
        1)  # fmt: skip
    wanted = hidden(x, mlp) @ mlp.down
    compensated, before = rounded_inputs(mlp, x, FOUR_BITS)

    def new_error(some: Mlp) -> float:
        down, _ = fitted_down(some, x, wanted, counts)
        return float((hidden(new, some) @ down - hidden(new, mlp) @ mlp.down).pow(2).sum())

    down, _ = fitted_down(compensated, x, wanted, counts)
    with torch.no_grad():  # as in the tool
        first, second = (learned_inputs(before, down, x, wanted, counts, steps=50) for _ in range(2))
    assert rounded(first, FOUR_BITS).equal(first) and first.equal(second)
    ratio = new_error(with_inputs(mlp, first)) / new_error(compensated)
    assert ratio < 0.95, ratio


def test_the_tool_learns_with_steps(quantized, calibration, tmp_path):
    """`quantized` is of no step. Values of two steps differ from it, and fit their formats, too."""
    common = "--model", SMALL_CHECKPOINT, "--calibration", calibration, "--tokens", TOKENS
    out = tmp_path / "model"
    main([f"{a}" for a in (*common, "--out", out, "--steps", 2)])
    for matrix, format in ("gate", FOUR_BITS), ("up", FOUR_BITS), ("down", "bfloat8_b"):
        name = f"model.layers.0.mlp.{matrix}_proj.weight"
        learned, before = (Checkpoint.open(d).tensor(name).t().float() for d in (out, quantized))
        assert rounded(learned.contiguous(), format).equal(learned), name
        assert not learned.equal(before), name
