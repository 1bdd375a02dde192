"""The place of the small checkpoint, a tiny trained Qwen2 in Hugging Face format.

Tests and demos use it without a download.
"""

from pathlib import Path

SMALL_CHECKPOINT: Path = Path(__file__).resolve().parent / "small"
