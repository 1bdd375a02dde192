"""Precision recipes: formats and math fidelities of weights, the cache's format, the all-reduce's format.

One object serves demo, server, evaluation, PCC and perf alike. Formats are ttnn's names; bytes a value: bfloat16 2,
bfloat8_b 1.0625 (16 neighbors share an exponent), bfloat4_b 0.5625. Activations, norms, the embedding and the QKV bias
are bfloat16 in every recipe: the K bias of layers 0 and 27 does not survive a shared exponent.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Optional, get_args

from ..errors import UserError
from ..files import read_json

Format = Literal["bfloat16", "bfloat8_b", "bfloat4_b"]
CacheFormat = Literal["bfloat16", "bfloat8_b"]
AllReduceDtype = Literal["bfloat16", "bfloat8_b"]
# HiFi4 is not among them: with sums in float32 single results come out wrong by a power of two on Wormhole (tt-metal
# issue 38306).
Fidelity = Literal["LoFi", "HiFi2", "HiFi3"]

# The multiplier splits each operand into high and low bits, and a fidelity phase multiplies one pair
# (tech_reports/matrix_engine). HiFi3 leaves out the product of the low bits: 3e-5 of a result. HiFi2 and LoFi cut an
# activation to 7 significant bits, which shrinks every result by 0.28 %; LoFi cuts a weight to 5 besides, of which
# bfloat4_b has no more than 3.
FIDELITY: dict[Format, Fidelity] = {"bfloat16": "HiFi3", "bfloat8_b": "HiFi3", "bfloat4_b": "LoFi"}


@dataclass(frozen=True)
class Group:
    """A group of weights. fidelity: of its matmuls; default: FIDELITY's."""

    format: Format
    fidelity: Optional[Fidelity] = None

    @property
    def math_fidelity(self) -> Fidelity:
        return self.fidelity or FIDELITY[self.format]

    def __str__(self) -> str:
        return f"{self.format} at {self.fidelity}" if self.fidelity else self.format


@dataclass(frozen=True)
class Recipe:
    name: str
    attention: Group  # q, k, v and o projections
    mlp_in: Group  # gate and up projections
    mlp_out: Group  # down projection
    lm_head: Group
    kv_cache: CacheFormat
    # The narrowest format that chips send in an all-reduce: partial sums in decode (AllReducePlan), finished sums in
    # the all-gather of a prefill (PrefillPlan.gathered). All layers are alike.
    all_reduce_dtype: AllReduceDtype = "bfloat16"
    different: tuple[tuple[int, "Recipe"], ...] = ()  # layers that differ, each with the recipe that it follows

    def of_layer(self, i: int) -> "Recipe":
        """What layer i follows."""
        return dict(self.different).get(i, self)

    def check_layers(self, layers: int) -> None:
        """UserError if a changed layer does not exist in a model with this number of layers."""
        for i, _ in self.different:
            if i >= layers:
                raise UserError(f"recipe {self.name}, layer {i}: the model has layers 0 to {layers - 1}")

    def __str__(self) -> str:
        """Its name, and what it is made of where that is no name of ours: what is printed with a result."""
        if RECIPES.get(self.name) == self:
            return self.name
        names = *GROUPS, *PLAIN
        kept = ", ".join(f"{name} {getattr(self, name)}" for name in names)
        others = ""
        for i, of_layer in self.different:
            different = (name for name in names if getattr(of_layer, name) != getattr(self, name))
            others += f"; layer {i}: {', '.join(f'{name} {getattr(of_layer, name)}' for name in different)}"
        return f"{self.name} ({kept}{others})"


_BFLOAT16, _BFLOAT8, _BFLOAT4 = Group("bfloat16"), Group("bfloat8_b"), Group("bfloat4_b")

BF16 = Recipe("bf16", _BFLOAT16, _BFLOAT16, _BFLOAT16, _BFLOAT16, "bfloat16")
"""For comparison with Hugging Face: nothing below bfloat16. 15.2 GB of weights: the 7B needs an N300 or more."""

BFP8 = Recipe("bfp8", _BFLOAT8, _BFLOAT8, _BFLOAT8, _BFLOAT8, "bfloat16")
"""What ships: half the bytes a token; the cache stays bfloat16."""

BFP8_KV8 = replace(BFP8, name="bfp8-kv8", kv_cache="bfloat8_b")
"""Half the cache, for long contexts and many users; plans/rotary_pairs.py keeps the K bias from spoiling it. A chip
alone needs it for 32 users of 2048 tokens."""

ACCURACY = replace(BFP8, name="accuracy", lm_head=_BFLOAT16)
"""bfp8 with the LM head in bfloat16, where 16 bits buy most: a quarter of the KL, 7 % more bytes a token (PERF.md)."""

PERFORMANCE = replace(BFP8_KV8, name="performance", mlp_in=_BFLOAT4, all_reduce_dtype="bfloat8_b")
"""The fewest bytes that keep the answers: gate and up, half of all weights, in 4 bits. For a checkpoint that
`python -m qwen25_7b_lab.quantize` has written; of any other they are rounded, which costs three times as much
KL. No layer differs: with equalized keys 0 and 27 lose no more by an 8-bit cache than others (docs/numerics.md).
"""

RECIPES = {recipe.name: recipe for recipe in (BF16, BFP8, BFP8_KV8, ACCURACY, PERFORMANCE)}

# ---- recipes by name or from a JSON file

GROUPS = ("attention", "mlp_in", "mlp_out", "lm_head")
PLAIN = {"kv_cache": get_args(CacheFormat), "all_reduce_dtype": get_args(AllReduceDtype)}
OF_A_LAYER = ("attention", "mlp_in", "mlp_out", "kv_cache")
KNOWN = f"{', '.join(RECIPES)} or a JSON file"


def recipe_named(named: str, option: str = "recipe") -> Recipe:
    """Return the recipe of a name, or of a .json file, which then names the recipe.

    A file (README.md shows one) is an object. Its keys are optional: "base", a recipe's name (default: bfp8), those of
    GROUPS and PLAIN, and "layers", which gives layers, by number, other values for OF_A_LAYER.
    option: the option that gives the name, for error messages.
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
    base = _one_of(f"recipe {file}, base", content.pop("base", "bfp8"), tuple(RECIPES))
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
    value = {"format": value} if isinstance(value, str) else _object(place, value, ("format", "fidelity"))
    fidelity = _one_of(place, value["fidelity"], get_args(Fidelity)) if "fidelity" in value else None
    return Group(_one_of(place, value.get("format"), get_args(Format)), fidelity)


def _one_of(place: str, value: Any, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise UserError(f"{place}: must be one of {', '.join(known)}; got {value!r}")
    return value


def _object(place: str, value: Any, known: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{place}: a JSON object was expected, got {value!r}")
    for key in value:
        if known and key not in known:
            raise UserError(f"{place}: knows {', '.join(known)}; got {key!r}")
    return dict(value)
