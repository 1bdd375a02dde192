"""Writes a random checkpoint of the 7B's shapes, 15.2 GB in shards: python lab/random_checkpoint.py DIR [LAYERS]

It shows time and memory of what needs a 7B. Its text means nothing: the tokenizer is the small checkpoint's.
"""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, f"{Path(__file__).resolve().parents[1]}")
from safetensors.torch import save_file  # noqa: E402

from models.demos.qwen25_7b.config import QWEN25_7B  # noqa: E402
from models.demos.qwen25_7b.reference.hf import hf_config, random_parts  # noqa: E402
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT  # noqa: E402
from models.demos.qwen25_7b.weights.checkpoint import INDEX_FILE, SMALL_FILES  # noqa: E402


def write(directory: Path, layers: int) -> None:
    """A shard for the embedding and the LM head, then one a layer."""
    directory.mkdir(parents=True)
    places = {}
    config = replace(QWEN25_7B, num_hidden_layers=layers)
    for i, part in enumerate(random_parts(config)):
        file = f"model-{i + 1:05}-of-{layers + 1:05}.safetensors"
        save_file(part, directory / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    (directory / INDEX_FILE).write_text(json.dumps({"weight_map": places}))
    for name in SMALL_FILES:
        if (SMALL_CHECKPOINT / name).exists() and name != "config.json":
            shutil.copyfile(SMALL_CHECKPOINT / name, directory / name)
    model_config = hf_config(config)
    model_config.architectures = [config.architecture]
    model_config.save_pretrained(directory)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int((*sys.argv[2:], QWEN25_7B.num_hidden_layers)[0]))
