"""What vllm_metadata.json names. The plugin puts this folder on sys.path, and not the repository that it is part of."""

import sys
from importlib import import_module
from pathlib import Path

# A copy of this folder alone finds the model on PYTHONPATH.
package = "models.demos.qwen25_7b"
above = Path(__file__).resolve().parents
for folder in (*above, *(root / package.replace(".", "/") for root in above)):  # a bundle's root
    if (folder / "vllm/generator_vllm.py").is_file():
        root = folder.parents[2]
        sys.path += [str(root), f"{folder}/vllm/extra_models/qwen25_7b"]  # after the user's own paths
        package = ".".join(folder.relative_to(root).parts)
        break

if platform := sys.modules.get("vllm_tt_plugin.platform"):  # reads the name after it has imported this module
    platform.TT_SCHEDULER_CLS = "qwen25_7b_scheduler.Scheduler"
try:
    QwenForCausalLM = import_module(f"{package}.vllm.generator_vllm").QwenForCausalLM
except ModuleNotFoundError as missing:
    advice = "put the root of its repository first on PYTHONPATH"
    raise ModuleNotFoundError(f"{__file__} finds no {package} ({missing}): {advice}") from missing
