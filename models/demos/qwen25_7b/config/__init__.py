"""The model's dims (QwenConfig), its split over chips (ParallelPlan) and its formats (Recipe)."""

from .parallel_plan import MAX_USERS, SPLITS, TILE, ParallelPlan
from .qwen_config import QWEN25_7B, ConfigError, QwenConfig
from .recipe import ACCURACY, BF16, BFP8, BFP8_KV8, PERFORMANCE, RECIPES, Group, Recipe
from .recipe_file import recipe_named

__all__ = [
    "ACCURACY", "BF16", "BFP8", "BFP8_KV8", "MAX_USERS", "PERFORMANCE", "QWEN25_7B", "RECIPES", "SPLITS", "TILE", "ConfigError", "Group",
    "ParallelPlan", "QwenConfig", "Recipe", "recipe_named",
]  # fmt: skip
