"""Softmax: plain, in place, and with attention's scale and mask."""

import math

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import EXACT, Put, assert_near, bf16, examples

WIDE, ODD, SCORES, IN_TILES = (1, 1, 32, 64), (1, 2, 33, 45), (2, 4, 33, 96), (1, 2, 64, 64)
QUERIES = (2, 4, 64, 96)
APPROXIMATE_EXP = 0.03  # ttnn's default: within 3 % a value
HOW = dict(compute_kernel_config=EXACT)


def large():
    return 3 * bf16(*ODD)


def mask(users: int = 2, width: int = 96):
    """[users, 1, 1, width]: some keys hidden, others made less likely."""

    def draw():
        values = bf16(users, 1, 1, width)
        values[..., 3:9] = -math.inf
        return values

    return draw


def causal():
    return torch.full((64, 64), -math.inf).triu(1).expand(2, 1, 64, 64).contiguous()


TWO = {"steps": 2}
EXAMPLES = {
    "ttnn.softmax(x, dim=-1, **HOW)": ("x.softmax(-1)", large, TWO),
    "ttnn.softmax(x, dim=2, **HOW)": ("x.softmax(2)", large, TWO),
    "ttnn.softmax_in_place(x, **HOW)": ("x.softmax(-1)", IN_TILES, TWO | {"in_place": True}),
    # A float32 tensor takes the exact exp.
    "ttnn.softmax(x, dim=-1)":
        ("x.softmax(-1)", Put(lambda: 3 * bf16(*WIDE), ttnn.float32), TWO | {"to": ttnn.bfloat16}),
    # Over another dim than the last the maximum is always subtracted.
    "ttnn.softmax(x, dim=-2, numeric_stable=False)": ("x.softmax(-2)", lambda: bf16(*WIDE) + 200, {"error": 5e-3}),
    # So do these kernels.
    "ttnn.softmax_in_place(x)": ("x.softmax(-1)", torch.full((1, 1, 32, 32), 200.0), {"error": 0, "in_place": True}),
    "ttnn.transformer.attention_softmax_(x, head_size=1, attention_mask=y)":
        ("x.softmax(-1)", torch.full((1, 1, 32, 32), 200.0), torch.zeros(1, 1, 32, 32), {"error": 0, "in_place": True}),
    # Scores may have three dimensions.
    "ttnn.scale_mask_softmax(x, 0.25, y, **HOW)":
        ("(x * 0.25 + y[0]).softmax(-1)", (4, 32, 64), mask(1, 64), {"error": 5e-3}),
    "ttnn.transformer.attention_softmax(x, head_size=None, attention_mask=y)": ("(x + y).softmax(-1)", QUERIES, mask()),
    "ttnn.transformer.attention_softmax_(x, head_size=64, attention_mask=y)":
        ("(x / 8 + y).softmax(-1)", QUERIES, mask(), {"in_place": True}),
    "ttnn.transformer.attention_softmax(x, head_size=None)": ("x.softmax(-1)", QUERIES),
    "ttnn.transformer.attention_softmax(x, head_size=64)": ("(x / 8).softmax(-1)", QUERIES),
    "ttnn.scale_mask_softmax_in_place(x, 0.5, y, is_causal_mask=True, **HOW)":
        ("(x * 0.5 + y).softmax(-1)", (2, 4, 64, 64), causal, {"error": 5e-3, "in_place": True}),
}  # fmt: skip
for name in ("scale_mask_softmax", "scale_mask_softmax_in_place"):
    in_place = {"in_place": name.endswith("in_place")}
    exact = in_place | {"error": 5e-3}
    EXAMPLES |= {
        f"ttnn.{name}(x, None, y, **HOW)": ("(x + y).softmax(-1)", SCORES, mask(), exact),
        f"ttnn.{name}(x, 0.25, y, **HOW)": ("(x * 0.25 + y).softmax(-1)", SCORES, mask(), exact),
        f"ttnn.{name}(x)": ("x.softmax(-1)", SCORES, in_place),
    }

test_examples = examples(EXAMPLES, globals(), error=APPROXIMATE_EXP)


def test_softmax_of_float32_sees_eleven_bits(chips):
    """64 and 64 + 1/64 give equal results."""
    x = torch.full((1, 1, 32, 32), 64.0)
    x[..., ::2] += 1 / 64
    for got in chips.get(ttnn.softmax(chips.put(x, ttnn.float32), dim=-1)):
        assert (got == got[0, 0, 0, 0]).all()


def test_the_scale_is_cut_to_bfloat16(chips):
    """1 / sqrt(80) is 0.4 % too small, which shows in the odds of two keys 64 apart."""
    x = torch.zeros(1, 1, 32, 32)
    x[..., 0] = 64
    scale = torch.tensor(80**-0.5).item()  # ttnn takes no number that float32 does not hold
    zeros = chips.put(torch.zeros(1, 1, 1, 32))
    first = chips.get(ttnn.scale_mask_softmax(chips.put(x), scale, zeros, **HOW))[0][0, 0, 0]
    odds = math.log(first[0].float() / first[1].float())
    assert odds == pytest.approx(64 * 0.111328, abs=0.01)  # not 64 * 0.111803


def test_a_causal_mask_has_a_row_for_every_query(chips):
    """It need not be square where no core has two rows of tiles."""
    softmax = ttnn.scale_mask_softmax_in_place
    with pytest.raises(GoldenError, match="is_causal_mask=True"):
        softmax(chips.put(bf16(2, 4, 64, 64)), 0.5, chips.put(causal()), **HOW)
    for rows, columns in ((96, 64), (64, 96)):
        x, causal_mask = bf16(2, 4, rows, columns), bf16(2, 1, rows, columns)
        given, place = chips.put(x), chips.put(causal_mask)
        softmax(given, 0.5, place, is_causal_mask=True, **HOW)
        assert_near(given, torch.softmax(x * 0.5 + causal_mask, -1), 5e-3)
        with pytest.raises(GoldenError, match="causal mask"):
            many = chips.put(bf16(2, 32, rows, columns))
            softmax(many, 0.5, place, is_causal_mask=True, **HOW)


def test_without_the_stable_form_large_scores_overflow(chips):
    """In place that is ttnn's default. Infinity times 1 / infinity is 0 on a chip."""
    x = torch.zeros(1, 1, 32, 32)
    x[..., 0] = 100
    finite = lambda got: [bool(g.isfinite().all()) for g in chips.get(got)]
    in_place, stable = chips.put(x), chips.put(x)
    ttnn.scale_mask_softmax_in_place(in_place)
    assert not any(got.any() for got in chips.get(in_place))
    ttnn.scale_mask_softmax_in_place(stable, numeric_stable=True)
    assert all(finite(stable) + finite(ttnn.scale_mask_softmax(chips.put(x))))
    assert all(finite(ttnn.softmax(chips.put(x), dim=-1)))
