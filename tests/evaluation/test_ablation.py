"""A variant differs from its base in exactly one place."""

from dataclasses import replace

import pytest

from models.demos.qwen25_7b.config import BF16, BFP8
from models.demos.qwen25_7b.evaluation.recipes import GROUPS, LAYER_GROUPS, ablations_by

LAYERS = 3
WEIGHTS = {"attention", "mlp_in", "mlp_out"}
FORMATS = ["bfloat8_b", "bfloat4_b"]


def changes(variant, base) -> set[tuple[str, int, str]]:
    """Return (group, layer, format) of every difference. The LM head is layer -1."""
    places = [(group, i) for group in LAYER_GROUPS for i in range(LAYERS)]
    found = {(g, i, f"{getattr(variant.recipe.of_layer(i), g)}") for g, i in places} - {
        (g, i, f"{getattr(base.of_layer(i), g)}") for g, i in places
    }
    if variant.recipe.lm_head.format != base.lm_head.format:
        found.add(("lm_head", -1, variant.recipe.lm_head.format))
    return found


@pytest.mark.parametrize(
    "base", [BF16, replace(BF16, different=((1, BFP8),))], ids=["alike", "a layer differs"]
)
def test_each_variant_changes_one_place(base):
    for variant in ablations_by("group", base, ["bfloat4_b"], LAYERS):
        everywhere = [-1] if variant.group == "lm_head" else range(LAYERS)
        assert changes(variant, base) == {(variant.group, i, "bfloat4_b") for i in everywhere}
    for variant in ablations_by("layer", base, ["bfloat4_b"], LAYERS):
        assert changes(variant, base) == {(g, variant.layer, "bfloat4_b") for g in WEIGHTS}
    for variant in ablations_by("cell", base, ["bfloat4_b"], LAYERS):
        assert changes(variant, base) == {(variant.group, variant.layer, "bfloat4_b")}


def test_every_use_of_a_format_is_ablated():
    groups = [(v.group, v.format) for v in ablations_by("group", BF16, FORMATS, LAYERS)]
    assert groups == [
        (g, f) for f in FORMATS for g in GROUPS if (g, f) != ("kv_cache", "bfloat4_b")
    ]
    assert len(ablations_by("layer", BF16, FORMATS, LAYERS)) == 2 * LAYERS
    assert len(ablations_by("cell", BF16, FORMATS, LAYERS)) == (4 + 3) * LAYERS
    names = [
        v.recipe.name
        for v in (
            *ablations_by("group", BF16, FORMATS, LAYERS),
            *ablations_by("cell", BF16, FORMATS, LAYERS),
        )
    ]
    assert len(set(names)) == len(names)
