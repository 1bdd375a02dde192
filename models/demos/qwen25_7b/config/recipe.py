"""Precision recipes: formats and math fidelities of weights, the cache's format, the all-reduce's format.

One object serves demo, server, evaluation, PCC and perf alike. Formats are ttnn's names; bytes a value: bfloat16 2,
bfloat8_b 1.0625 (16 neighbors share an exponent), bfloat4_b 0.5625. Activations, norms, the embedding and the QKV bias
are bfloat16 in every recipe: the K bias of layers 0 and 27 does not survive a shared exponent.
"""

from dataclasses import dataclass, replace
from typing import Literal, Optional

from ..errors import UserError

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
        names = "attention", "mlp_in", "mlp_out", "lm_head", "kv_cache", "all_reduce_dtype"
        kept = ", ".join(f"{name} {getattr(self, name)}" for name in names)
        others = "".join(f"; layer {i}: {_differences(of_layer, self, names)}" for i, of_layer in self.different)
        return f"{self.name} ({kept}{others})"


def _differences(of_layer: Recipe, recipe: Recipe, names: tuple[str, ...]) -> str:
    return ", ".join(f"{n} {getattr(of_layer, n)}" for n in names if getattr(of_layer, n) != getattr(recipe, n))


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
`python -m models.demos.qwen25_7b.quantize` has written; of any other they are rounded, which costs three times as much
KL. No
layer differs: with their keys equalized layers 0 and 27 lose no more by an 8-bit cache than others (docs/numerics.md).
"""

RECIPES = {recipe.name: recipe for recipe in (BF16, BFP8, BFP8_KV8, ACCURACY, PERFORMANCE)}
