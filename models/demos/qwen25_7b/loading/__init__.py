"""Load a model onto the chips, from a checkpoint or from the tile cache."""

from pathlib import Path

from models.common.cache_directory import user_cache

CACHE_NAME = "qwen25-7b-ttnn"


def default_root() -> Path:
    """Return the default place of the tile cache."""
    return user_cache(CACHE_NAME)
