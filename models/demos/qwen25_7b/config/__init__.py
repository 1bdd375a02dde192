"""The model's dims (DecoderConfig) and its number formats (Recipe)."""

from .decoder_config import QWEN25_7B, ConfigError, DecoderConfig
from .recipe import ACCURACY, BF16, BFP8, BFP8_KV8, PERFORMANCE, RECIPES, Group, Recipe, recipe_named

__all__ = [
    "ACCURACY", "BF16", "BFP8", "BFP8_KV8", "PERFORMANCE", "QWEN25_7B", "RECIPES", "ConfigError", "Group",
    "DecoderConfig", "Recipe", "recipe_named",
]  # fmt: skip
