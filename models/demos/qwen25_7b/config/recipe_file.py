"""Recipes by name or from a JSON file."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from ..errors import UserError
from ..files import read_json
from .recipe import RECIPES, AllReduceDtype, CacheFormat, Fidelity, Format, Group, Recipe

GROUPS = ("attention", "mlp_in", "mlp_out", "lm_head")
PLAIN = {"kv_cache": CacheFormat, "all_reduce_dtype": AllReduceDtype}
OF_A_LAYER = ("attention", "mlp_in", "mlp_out", "kv_cache")
KNOWN = f"{', '.join(RECIPES)} or a JSON file"


def recipe_named(named: str, option: str = "recipe") -> Recipe:
    """Return the recipe of a name, or of a .json file, which then names the recipe.

    option: the option that gives the name, for error messages.

    A file is a JSON object. Its keys are optional:
      "base": the name of the recipe that the other keys change (default: bfp8)
      "attention", "mlp_in", "mlp_out", "lm_head": a format, or {"format": ..., "fidelity": "LoFi", "HiFi2" or "HiFi3"}
      "kv_cache": a format
      "all_reduce_dtype": bfloat16 or bfloat8_b, the narrowest format that chips send in an all-reduce
      "layers": {"0": {the keys above without base, lm_head and all_reduce_dtype}, ...}
    UserError: no recipe has this name, or the file is not such an object.
    """
    if named in RECIPES:
        return RECIPES[named]
    file = Path(named)
    if file.suffix != ".json":
        raise UserError(f"{option} knows {KNOWN}; got {named!r}")
    return _recipe(file, read_json(file, "recipe"))


def _recipe(file: Path, content: Any) -> Recipe:
    content = _object(f"recipe {file}", content, ("base", *GROUPS, *PLAIN, "layers"))
    base = content.pop("base", "bfp8")
    if not isinstance(base, str) or base not in RECIPES:
        raise UserError(f"recipe {file}, base: there are {', '.join(RECIPES)}; got {base!r}")
    layers = content.pop("layers", {})
    recipe = replace(_changed(RECIPES[base], f"recipe {file}", content), name=file.stem)
    different = []
    for i, of_layer in _object(f"recipe {file}, layers", layers).items():
        place = f"recipe {file}, layer {i}"
        if not i.isdecimal():
            raise UserError(f"{place}: must be a layer's number, such as 0 or 27")
        different.append((int(i), _changed(recipe, place, _object(place, of_layer, OF_A_LAYER))))
    return replace(recipe, different=tuple(sorted(different, key=lambda pair: pair[0])))


def _changed(recipe: Recipe, place: str, content: dict[str, Any]) -> Recipe:
    changes = {}
    for key, value in content.items():
        where = f"{place}, {key}"
        changes[key] = _one_of(where, value, PLAIN[key]) if key in PLAIN else _group(where, value)
    return replace(recipe, **changes)


def _group(place: str, value: Any) -> Group:
    if isinstance(value, str):
        return Group(_one_of(place, value, Format))
    value = _object(place, value, ("format", "fidelity"))
    if "format" not in value:
        raise UserError(f"{place}: has no format")
    fidelity = _one_of(place, value["fidelity"], Fidelity) if "fidelity" in value else None
    return Group(_one_of(place, value["format"], Format), fidelity)


def _one_of(place: str, value: Any, kind: Any) -> Any:
    if value not in get_args(kind):
        raise UserError(f"{place}: must be one of {', '.join(get_args(kind))}; got {value!r}")
    return value


def _object(place: str, value: Any, known: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{place}: a JSON object was expected, got {value!r}")
    for key in value:
        if known and key not in known:
            raise UserError(f"{place}: knows {', '.join(known)}; got {key!r}")
    return dict(value)
