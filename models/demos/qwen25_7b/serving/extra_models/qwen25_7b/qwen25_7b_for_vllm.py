"""What vllm_metadata.json names. The plugin puts this folder on sys.path, and not the repository that it is part of."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[6]))

from models.demos.qwen25_7b.serving.generator_vllm import QwenForCausalLM  # noqa: E402

__all__ = ["QwenForCausalLM"]
