"""The single steps of the tool on random numbers, and its learned rounding."""

import pytest
import torch
from qwen25_7b_lab.quantize.__main__ import main
from qwen25_7b_lab.quantize.layer import FOUR_BITS, Mlp, arranged, fitted_down, hidden, rounded_inputs, with_inputs
from qwen25_7b_lab.quantize.learned import learned_inputs
from qwen25_7b_lab.quantize.rounding import compensated, hessian, nearest_codes, refitted, rounded

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint
from tests.quantize.conftest import TOKENS


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def correlated(tokens, size, seed, outlier=50):
    """Return inputs [tokens, size] like activations: few directions, noise, one outlier channel."""
    x = normal(tokens, 8, seed=seed) @ normal(8, size) + 0.3 * normal(tokens, size, seed=seed + 1)
    x[:, 3] *= outlier
    return x


def test_rounded_values_survive_packing_and_are_no_farther_than_packings():
    """Blocks hold values of every size, zeros, and ends of a power of two."""
    rows = normal(200, 64) * torch.exp2(6 * normal(200, 64, seed=1))
    rows[0], rows[1] = 0, 0.9999999
    rows[2], rows[3, ::16] = torch.linspace(-8, 8, 64), 1e-30
    codes, packing = nearest_codes(rows), rounded(rows, "bfloat4_b")
    assert rounded(codes, "bfloat4_b").equal(codes)
    assert (squared_error(rows, codes) <= squared_error(rows, packing) * (1 + 1e-6)).all()
    rows = normal(200, 64)
    assert squared_error(rows, nearest_codes(rows)).sum() < 0.93 * squared_error(rows, rounded(rows, "bfloat4_b")).sum()


def squared_error(rows, codes):
    """Return the squared error of each block of 16 values."""
    return (rows - codes).unflatten(-1, (-1, 16)).pow(2).sum(-1)


def test_later_rows_compensate_a_rows_rounding_error():
    """On new inputs, the squared error is less than half of that of plain rounding."""
    weight = normal(96, 128)
    codes = compensated(weight, hessian(correlated(1000, 96, seed=1)), nearest_codes)[0]
    assert rounded(codes, "bfloat4_b").equal(codes)
    x = correlated(300, 96, seed=7)
    error, alone = ((x @ (weight - w)).pow(2).sum() for w in (codes, nearest_codes(weight)))
    assert error < 0.5 * alone, f"{error / alone:.2f} of it"


def test_the_rows_before_rounding_have_these_nearest_codes():
    weight = normal(96, 64)
    values, before = compensated(weight, hessian(correlated(500, 96, seed=1)), nearest_codes)
    assert nearest_codes(before).equal(values) and not nearest_codes(weight).equal(values)


def test_scaled_and_permuted_columns_change_no_output():
    mlp = Mlp(*(normal(24, 64, seed=1, dtype=torch.float64), normal(24, 64, seed=2, dtype=torch.float64)),
              normal(64, 24, seed=3, dtype=torch.float64))  # fmt: skip
    mlp.gate[:, 5], mlp.up[:, 9] = 0, 0
    new, x = arranged(mlp), normal(10, 24, dtype=torch.float64)
    expected = hidden(x, mlp) @ mlp.down
    assert (hidden(x, new) @ new.down - expected).abs().max() < 1e-13 * expected.abs().max()
    sizes = new.gate.norm(dim=0)
    assert (sizes.diff() >= 0).all()
    some = new.up.norm(dim=0) > 0
    assert (new.up.norm(dim=0) - sizes)[some & (sizes > 0)].abs().max() < 1e-12


@pytest.mark.parametrize("tokens", (20, 200), ids=("fewer tokens than inputs", "more"))
def test_a_refit_is_the_least_of_error_and_change(tokens):
    """The gradient of error plus change is zero at the refit, so no step makes the sum smaller."""
    inputs, missing = (normal(tokens, 50, seed=1, dtype=torch.float64), normal(tokens, 7, seed=2, dtype=torch.float64))
    weight = normal(50, 7, dtype=torch.float64)
    change = refitted(weight, inputs, missing, trust=2.0) - weight
    cost = inputs.pow(2).sum() / 50 / 2.0
    gradient = inputs.t() @ (inputs @ change - missing) + cost * change
    assert gradient.abs().max() < 1e-9
    assert change.abs().max() > 1e-2


HIDDEN, MLP, SAMPLES = 64, 128, 2000


def test_learned_rounding_makes_less_error_on_new_inputs():
    """Down is fitted after both. The learned values are of bfloat4_b, and a second run gives them again."""
    weights = [normal(*s, seed=i) for i, s in enumerate([(HIDDEN, MLP), (HIDDEN, MLP), (MLP, HIDDEN)])]
    mlp = arranged(Mlp(*(0.2 * weight for weight in weights)))
    x, new = (correlated(tokens, HIDDEN, seed, 5) / 3 for tokens, seed in ((SAMPLES, 11), (500, 21)))
    counts = torch.ones(SAMPLES, 1)
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
