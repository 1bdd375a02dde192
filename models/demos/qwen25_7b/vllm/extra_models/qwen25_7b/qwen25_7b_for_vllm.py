"""What vllm_metadata.json names. The plugin puts this folder on sys.path, and not the repository that it is part of."""

import sys
from pathlib import Path

PACKAGE = "models.demos.qwen25_7b"

# In its own repository, this file finds the repository. A copy elsewhere needs it on PYTHONPATH.
for folder in Path(__file__).resolve().parents:
    if (folder / PACKAGE.replace(".", "/") / "serving").is_dir():
        sys.path.append(str(folder))  # after the user's own paths
        break

try:
    from models.demos.qwen25_7b.vllm.generator_vllm import QwenForCausalLM
except ModuleNotFoundError as missing:
    if not f"{PACKAGE}.".startswith(f"{missing.name}."):
        raise
    raise ModuleNotFoundError(
        f"{__file__}: {PACKAGE} was not found: put the root of its repository first on PYTHONPATH"
    ) from missing

__all__ = ["QwenForCausalLM"]
