"""The checkpoint's tokenizer by its own file's rules: vllm serve ... --tokenizer-mode checkpoint.

vLLM's own mode takes AutoTokenizer, which replaces the rules of some files (text/tokenizer_file.py).
"""

from importlib import import_module
from typing import Any, Optional

from qwen25_7b_for_vllm import package
from vllm.tokenizers.hf import get_cached_tokenizer


class CheckpointTokenizer:
    @classmethod
    def from_pretrained(
        cls, name: str, *_: Any, revision: Optional[str] = None, truncation_side: str = "left", **__: Any
    ) -> Any:
        """name: a directory or hub id. The other arguments are vLLM's for AutoTokenizer."""
        checkpoint = import_module(f"{package}.weights.checkpoint")
        directory = checkpoint.local_directory(name, checkpoint.READ_FILES, revision)
        tokenizer = import_module(f"{package}.text.tokenizer_file").load_tokenizer(directory)
        tokenizer.truncation_side = truncation_side
        return get_cached_tokenizer(tokenizer)
