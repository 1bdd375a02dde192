"""One run of the tool: layer by layer, from a checkpoint to the directory of another."""

import hashlib
import os
from pathlib import Path
from typing import Callable, Sequence

import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RotaryEmbedding

from models.common.errors import UserError
from models.common.golden_mesh.rounding import BLOCK
from models.common.terminal import say
from models.demos.qwen25_7b.config import QwenConfig
from models.demos.qwen25_7b.quantize.calibration import read_text, sequences
from models.demos.qwen25_7b.quantize.formats import rounded
from models.demos.qwen25_7b.quantize.layer import Mlp, Streams, rounded_layer
from models.demos.qwen25_7b.quantize.output import Output
from models.demos.qwen25_7b.reference.hf import hf_config
from models.demos.qwen25_7b.weights import Checkpoint
from models.demos.qwen25_7b.weights.checkpoint import EMBEDDING, tensor_shapes

Progress = Callable[[int, int], None]  # layers done, layers in all
METHOD = (
    1  # raise it with every change of the values that come out: an unfinished run of another method is not gone on with
)


def quantise(
    model: str, calibration: Path, out: Path, groups: Sequence[str], tokens: int, progress: Progress = lambda *_: None
) -> None:
    """UserError for what cannot be, before anything is computed."""
    checkpoint = Checkpoint.open(model)
    config = checkpoint.config
    check_blocks(config)
    ids = sequences(read_text(calibration), f"--calibration {calibration}", checkpoint.directory, config, tokens)
    settings = {
        "model": _identity(checkpoint),
        "calibration text": hashlib.sha256(ids.numpy().tobytes()).hexdigest(),
        "groups": sorted(groups),
        "method": METHOD,
    }
    output = Output(out, settings, files=config.num_hidden_layers + 1)
    output.open()
    done, streams = output.resume()
    if done:
        say(f"{out}: {done} of {config.num_hidden_layers} layers are done; going on")
    if streams is None:
        embedded = checkpoint.tensor(EMBEDDING)[ids].float()
        streams = Streams(embedded, embedded)
    rotation = Qwen2RotaryEmbedding(hf_config(config))(streams.exact, torch.arange(ids.shape[1])[None])
    progress(done, config.num_hidden_layers)
    for i in range(done, config.num_hidden_layers):
        tensors = _layer_tensors(checkpoint, i)
        mlp, streams = rounded_layer(_layer(config, i, tensors), streams, rotation, frozenset(groups))
        output.keep_layer(
            i, {f"model.layers.{i}.{name}": t for name, t in (tensors | _named(mlp, groups)).items()}, streams
        )
        progress(i + 1, config.num_hidden_layers)
    rest = [name for name in tensor_shapes(config) if not name.startswith("model.layers.")]
    output.finish({name: checkpoint.tensor(name) for name in rest}, checkpoint.directory)


def check_blocks(config: QwenConfig) -> None:
    for name in ("hidden_size", "intermediate_size"):
        if getattr(config, name) % BLOCK:
            raise UserError(
                f"{name} must be a multiple of {BLOCK}, values that share an exponent, got {getattr(config, name)}"
            )


def _identity(checkpoint: Checkpoint) -> str:
    """Of a checkpoint's files: where they are, their sizes and when they were written."""
    files = sorted({header.file for header in checkpoint.headers.values()})
    stats = [(f"{file}", os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
    return hashlib.sha256(repr(stats).encode()).hexdigest()


def _layer_tensors(checkpoint: Checkpoint, i: int) -> dict[str, torch.Tensor]:
    """By their names in the layer."""
    prefix = f"model.layers.{i}."
    names = [name for name in tensor_shapes(checkpoint.config) if name.startswith(prefix)]
    return {name.removeprefix(prefix): checkpoint.tensor(name) for name in names}


def _layer(config: QwenConfig, i: int, tensors: dict[str, torch.Tensor]) -> Qwen2DecoderLayer:
    """Hugging Face's layer in float32."""
    with torch.device("meta"):
        layer = Qwen2DecoderLayer(hf_config(config), i)
    layer.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, assign=True)
    return layer.eval()


def _named(mlp: Mlp, groups: Sequence[str]) -> dict[str, torch.Tensor]:
    """As Hugging Face has them: [out, in], in bfloat16, which holds every block float."""
    named = {}
    for name, weight in mlp._asdict().items():
        format = "bfloat4_b" if name in groups else "bfloat8_b"
        assert rounded(weight, format).equal(weight), f"{name}: not all values are those of {format}"
        named[f"mlp.{name}_proj.weight"] = weight.t().bfloat16()
    return named
