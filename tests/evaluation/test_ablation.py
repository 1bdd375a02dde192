"""A variant differs from its base in one place and in nothing else."""

from dataclasses import replace

import pytest

from models.demos.qwen25_7b.config import BF16, BFP8
from models.demos.qwen25_7b.evaluation.ablation import GROUPS, LAYER_GROUPS, by_cell, by_group, by_layer

LAYERS = 3
WEIGHTS = {"attention", "mlp_in", "mlp_out"}
FORMATS = ["bfloat8_b", "bfloat4_b"]


def changes(variant, base) -> set[tuple[str, int, str]]:
    """(group, layer, format) of every difference; the LM head counts as layer -1."""
    places = [(group, i) for group in LAYER_GROUPS for i in range(LAYERS)]
    found = {(g, i, f"{getattr(variant.recipe.of_layer(i), g)}") for g, i in places} - {
        (g, i, f"{getattr(base.of_layer(i), g)}") for g, i in places
    }
    if variant.recipe.lm_head.format != base.lm_head.format:
        found.add(("lm_head", -1, variant.recipe.lm_head.format))
    return found


@pytest.mark.parametrize("base", [BF16, replace(BF16, different=((1, BFP8),))], ids=["alike", "a layer differs"])
def test_each_variant_changes_one_place(base):
    for variant in by_group(base, ["bfloat4_b"]):
        everywhere = [-1] if variant.group == "lm_head" else range(LAYERS)
        assert changes(variant, base) == {(variant.group, i, "bfloat4_b") for i in everywhere}
    for variant in by_layer(base, ["bfloat4_b"], LAYERS):
        assert changes(variant, base) == {(g, variant.layer, "bfloat4_b") for g in WEIGHTS}
    for variant in by_cell(base, ["bfloat4_b"], LAYERS):
        assert changes(variant, base) == {(variant.group, variant.layer, "bfloat4_b")}


def test_all_that_a_format_can_be_used_for_is_tried():
    groups = [(v.group, v.format) for v in by_group(BF16, FORMATS)]
    assert groups == [(g, f) for f in FORMATS for g in GROUPS if (g, f) != ("kv_cache", "bfloat4_b")]
    assert len(by_layer(BF16, FORMATS, LAYERS)) == 2 * LAYERS
    assert len(by_cell(BF16, FORMATS, LAYERS)) == (4 + 3) * LAYERS
    names = [v.recipe.name for v in (*by_group(BF16, FORMATS), *by_cell(BF16, FORMATS, LAYERS))]
    assert len(set(names)) == len(names)
