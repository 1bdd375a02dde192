"""Recipes that differ from one in a single place, to see what that place's format costs."""

from dataclasses import dataclass, replace
from typing import get_args

from models.demos.qwen25_7b.config import Group, Recipe
from models.demos.qwen25_7b.config.recipe import Format

GROUPS = ("attention", "mlp_in", "mlp_out", "lm_head", "kv_cache")
LAYER_GROUPS = ("attention", "mlp_in", "mlp_out", "kv_cache")
FORMATS = get_args(Format)
CACHE_FORMATS = ("bfloat16", "bfloat8_b")


@dataclass(frozen=True)
class Variant:
    """`group` (None: all of a layer's weights) of `layer` (None: of every layer) in `format`, the rest as in the base."""

    group: str | None
    layer: int | None
    format: str
    recipe: Recipe

    def __str__(self) -> str:
        where = self.group or "weights"
        return f"{where} of layer {self.layer}" if self.layer is not None else where


def by_group(base: Recipe, formats: list[str]) -> list[Variant]:
    """Each group in all layers."""
    pairs = [(group, format) for format in formats for group in GROUPS if _fits(group, format)]
    return [Variant(g, None, f, replace(_with(base, g, f), name=f"{g} {f}")) for g, f in pairs]


def by_layer(base: Recipe, formats: list[str], layers: int) -> list[Variant]:
    """All the weights of one layer."""
    return [Variant(None, i, f, _in_layer(base, i, None, f)) for f in formats for i in range(layers)]


def by_cell(base: Recipe, formats: list[str], layers: int) -> list[Variant]:
    """Each group of one layer."""
    cells = [(g, i, f) for f in formats for g in LAYER_GROUPS if _fits(g, f) for i in range(layers)]
    return [Variant(g, i, f, _in_layer(base, i, g, f)) for g, i, f in cells]


def _fits(group: str, format: str) -> bool:
    return group != "kv_cache" or format in CACHE_FORMATS


def _in_layer(base: Recipe, layer: int, group: str | None, format: str) -> Recipe:
    of_layer = base.of_layer(layer)
    for changed in [group] if group else ["attention", "mlp_in", "mlp_out"]:
        of_layer = _with(of_layer, changed, format)
    others = tuple((i, recipe) for i, recipe in base.different if i != layer)
    name = f"{group or 'weights'} {format} in layer {layer}"
    return replace(base, name=name, different=(*others, (layer, of_layer)))


def _with(recipe: Recipe, group: str, format: str) -> Recipe:
    """The group in this format in every layer, in those that differ, too."""
    change = {group: format if group == "kv_cache" else Group(format)}
    different = tuple((i, replace(of_layer, **change)) for i, of_layer in recipe.different)
    return replace(recipe, **change, different=different)
