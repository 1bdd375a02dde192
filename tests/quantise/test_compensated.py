"""The steps of the tool by themselves, on made-up numbers."""

import pytest
import torch

from models.demos.qwen25_7b.quantize import compensated as compensated_module
from models.demos.qwen25_7b.quantize.compensated import compensated, hessian
from models.demos.qwen25_7b.quantize.formats import nearest_codes, rounded
from models.demos.qwen25_7b.quantize.layer import Mlp, arranged, hidden
from models.demos.qwen25_7b.quantize.refit import refitted


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def correlated(tokens, size, seed):
    """Inputs [tokens, size] of a few directions and a little noise, as activations are, one channel loud."""
    x = normal(tokens, 8, seed=seed) @ normal(8, size) + 0.3 * normal(tokens, size, seed=seed + 1)
    x[:, 3] *= 50
    return x


def test_codes_are_values_that_the_packing_keeps_and_no_farther_than_its_own():
    """For values of every size in a block, zeros and the ends of a power of two with them."""
    rows = normal(200, 64) * torch.exp2(6 * normal(200, 64, seed=1))
    rows[0], rows[1] = 0, 0.9999999
    rows[2], rows[3, ::16] = torch.linspace(-8, 8, 64), 1e-30
    codes, packing = nearest_codes(rows), rounded(rows, "bfloat4_b")
    assert rounded(codes, "bfloat4_b").equal(codes)
    assert (squared_error(rows, codes) <= squared_error(rows, packing) * (1 + 1e-6)).all()
    rows = normal(200, 64)
    assert squared_error(rows, nearest_codes(rows)).sum() < 0.93 * squared_error(rows, rounded(rows, "bfloat4_b")).sum()


def squared_error(rows, codes):
    """Of each block."""
    return (rows - codes).unflatten(-1, (-1, 16)).pow(2).sum(-1)


def test_what_a_row_loses_is_made_up_for_by_the_rows_after_it():
    """On inputs that the rounding did not see: less than half of the squared error of rounding alone."""
    weight = normal(96, 128)
    codes = compensated(weight, hessian(correlated(1000, 96, seed=1)), nearest_codes)
    assert rounded(codes, "bfloat4_b").equal(codes)
    x = correlated(300, 96, seed=7)
    error, alone = ((x @ (weight - w)).pow(2).sum() for w in (codes, nearest_codes(weight)))
    assert error < 0.5 * alone, f"{error / alone:.2f} of it"


def test_rows_hear_of_all_errors_before_them_however_many_are_rounded_at_once(monkeypatch):
    weight, second = normal(96, 64, dtype=torch.float64), hessian(correlated(500, 96, seed=1).double())
    results = []
    for rows in (7, 96):
        monkeypatch.setattr(compensated_module, "ROWS", rows)
        results.append(compensated(weight, second, nearest_codes))
    assert results[0].equal(results[1])


def test_columns_may_be_scaled_and_change_places_without_a_change():
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
    """No step from it makes the sum of both smaller: its gradient is zero."""
    inputs, missing = normal(tokens, 50, seed=1, dtype=torch.float64), normal(tokens, 7, seed=2, dtype=torch.float64)
    weight = normal(50, 7, dtype=torch.float64)
    change = refitted(weight, inputs, missing, trust=2.0) - weight
    cost = inputs.pow(2).sum() / 50 / 2.0
    gradient = inputs.t() @ (inputs @ change - missing) + cost * change
    assert gradient.abs().max() < 1e-9
    assert change.abs().max() > 1e-2
