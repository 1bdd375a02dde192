"""The sizes of Qwen2.5 by their published config.json files, and cut ones."""

from dataclasses import replace

from models.demos.qwen25_7b.config import QwenConfig
from models.demos.qwen25_7b.perf.published_models import FAMILIES, SIZES


def cut(size: str, *, layers: int | None = None, vocab_size: int = 4096) -> QwenConfig:
    """Return a size's config with fewer layers, if given, and a smaller vocabulary."""
    layers = layers or (SIZES | FAMILIES)[size].num_hidden_layers
    tokens = dict(vocab_size=vocab_size, bos_token_id=None, eos_token_ids=())
    return replace((SIZES | FAMILIES)[size], num_hidden_layers=layers, **tokens)
