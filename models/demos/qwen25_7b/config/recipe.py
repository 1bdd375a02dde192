"""Precision recipes: which number format each group of weights and the cache are kept in.

One object serves the speed test and the accuracy test alike. Formats are ttnn's names; bytes a value: bfloat16 2,
bfloat8_b 1.0625 (16 neighbours share an exponent), bfloat4_b 0.5625. Activations, norms, the embedding and the QKV bias
are bfloat16 in every recipe: the K bias of layers 0 and 27 does not survive a shared exponent.
"""

from dataclasses import dataclass, replace
from typing import Literal

Format = Literal["bfloat16", "bfloat8_b", "bfloat4_b"]


@dataclass(frozen=True)
class Recipe:
    name: str
    attention: Format  # q, k, v and o projections
    mlp_in: Format  # gate and up projections
    mlp_out: Format  # down projection
    lm_head: Format
    kv_cache: Literal["bfloat16", "bfloat8_b"]
    different: tuple[tuple[int, "Recipe"], ...] = ()  # layers that differ, each with the recipe that it follows

    def of_layer(self, i: int) -> "Recipe":
        """What layer i follows."""
        return dict(self.different).get(i, self)


BF16 = Recipe("bf16", "bfloat16", "bfloat16", "bfloat16", "bfloat16", "bfloat16")
"""For comparison with Hugging Face: nothing below bfloat16. 15.2 GB of weights: the 7B needs an N300 or more."""

BFP8 = Recipe("bfp8", "bfloat8_b", "bfloat8_b", "bfloat8_b", "bfloat8_b", "bfloat16")
"""What ships: half the bytes a token; the cache stays bfloat16."""

BFP8_KV8 = replace(BFP8, name="bfp8-kv8", kv_cache="bfloat8_b")
"""Half the cache, for long contexts and many users; weights/equalise.py keeps the K bias from spoiling it. A chip alone
needs it for 32 users of 2048 tokens."""

RECIPES = {recipe.name: recipe for recipe in (BF16, BFP8, BFP8_KV8)}
