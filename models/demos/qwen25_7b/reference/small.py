"""The small checkpoint: a tiny trained Qwen2 in Hugging Face format, for tests and demos without a download."""

from pathlib import Path

SMALL_CHECKPOINT: Path = Path(__file__).resolve().parent / "small"
