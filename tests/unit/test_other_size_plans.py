"""Every Qwen2.5 size on every split has plans within a core's L1, or is refused in one line."""

from dataclasses import replace

import pytest

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE, QWEN25_7B
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS, ParallelPlan
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import Grid, TILE
from models.demos.qwen25_7b.plans.l1 import decode_footprints, prefill_footprints
from models.demos.qwen25_7b.plans.planner import check_decode, max_prefill_rows, plan_prefill

GRIDS = {"8x8": Grid(8, 8), "8x7": Grid(8, 7)}


def sized(
    layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, head_dim: int = 128
):
    return replace(
        QWEN25_7B,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        head_dim=head_dim,
    )


# Dims from their config.json files.
SIZES = {
    "0.5B": sized(24, 896, 14, 2, 4864, head_dim=64),
    "1.5B": sized(28, 1536, 12, 2, 8960),
    "3B": sized(36, 2048, 16, 2, 11008),
    "7B": QWEN25_7B,
    "14B": sized(48, 5120, 40, 8, 13824),
    "32B": sized(64, 5120, 40, 8, 27648),
    "72B": sized(80, 8192, 64, 8, 29568),
}
# Refused combinations of (model, tp, grid, recipe). None stands for any value.
REFUSED = {
    (
        "14B",
        1,
        None,
        None,
    ): "a chip would have 40 of the model's 40 query heads, .* take 32: use more chips",
    (
        "32B",
        1,
        None,
        None,
    ): "a chip would have 40 of the model's 40 query heads, .* take 32: use more chips",
    (
        "72B",
        1,
        None,
        None,
    ): "a chip would have 64 of the model's 64 query heads, .* take 32: use more chips",
    (
        "72B",
        4,
        "8x7",
        "bf16",
    ): r"decode with tp 4: down takes [\d,]+ bytes of a core's L1, [\d,]+ are there: use more chips",
}


def refusal(*case) -> str | None:
    for pattern, message in REFUSED.items():
        if all(expected in (None, got) for expected, got in zip(pattern, case)):
            return message
    return None


@pytest.mark.parametrize("recipe", [BF16, BFP8, PERFORMANCE], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("model", SIZES)
def test_a_size_on_a_split_is_planned_or_refused(model, tp, grid, recipe):
    config, cores = SIZES[model], GRIDS[grid]
    plan = ParallelPlan.make(config, tp)
    decode = DecodePlan.make(config, plan, cores, MAX_USERS)
    if message := refusal(model, tp, grid, recipe.name):
        with pytest.raises(UserError, match=message) as caught:
            check_decode(config, plan, recipe, decode)
        assert "\n" not in str(caught.value)
        return
    check_decode(config, plan, recipe, decode)
    assert (
        max(footprint.bytes for footprint in decode_footprints(config, plan, recipe, decode))
        <= decode.l1_room
    )
    rows = max_prefill_rows(config, plan, recipe, cores, decode.l1_room)
    assert rows >= 128, "weights would be read for every few tokens"
    while rows >= TILE:
        whole = plan_prefill(config, plan, recipe, cores, rows, decode.l1_room)
        assert max(op.bytes for op in prefill_footprints(whole, recipe.kv_cache)) <= decode.l1_room
        rows //= 2
