"""What the model is (QwenConfig), how it is split over chips (ParallelPlan) and in which formats (Recipe)."""

from .parallel_plan import TILE, ParallelPlan
from .qwen_config import QWEN25_7B, ConfigError, QwenConfig
from .recipe import BF16, BFP8, BFP8_KV8, RECIPES, Recipe

__all__ = [
    "BF16", "BFP8", "BFP8_KV8", "QWEN25_7B", "RECIPES", "TILE", "ConfigError", "ParallelPlan", "QwenConfig", "Recipe",
]  # fmt: skip
