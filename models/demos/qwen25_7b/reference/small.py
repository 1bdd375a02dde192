"""Where the small checkpoint is: a tiny trained Qwen2 in Hugging Face format, to test and demo without a download."""

from pathlib import Path

SMALL_CHECKPOINT: Path = Path(__file__).resolve().parent / "small"
