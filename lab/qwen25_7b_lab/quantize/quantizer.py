"""One run of the tool: layer by layer, from a checkpoint to the directory of another."""

import hashlib
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from torch.nn import Module
from tqdm import trange

from models.demos.qwen25_7b.cli.terminal import say
from models.demos.qwen25_7b.config import DecoderConfig, Recipe
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import read_text
from models.demos.qwen25_7b.reference.hf import hf_config
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.weights.checkpoint import EMBEDDING, Checkpoint, small_files, tensor_shapes

from ..evaluation.model import file_states
from .layer import Mlp, Streams, rounded_layer
from .output import Output
from .rounding import rounded

METHOD = 3  # raise it with every change of the results: a run of another method is not resumed
SEQUENCE = 512  # tokens of a sequence


def quantize(checkpoint: Checkpoint, calibration: Path, out: Path, recipe: Recipe, tokens: int, steps: int = 0) -> None:
    """Write the checkpoint, with its MLP in the formats of `recipe`, to `out`.

    calibration: a text file. steps: of learned rounding, 0 for none. UserError: bad input, before anything is computed.
    """
    text = read_text(calibration, "--calibration")
    config = checkpoint.config
    layers = config.num_hidden_layers
    recipe.check_layers(layers)
    check_mlp(checkpoint)
    recipes = [recipe.of_layer(i) for i in range(layers)]
    ids = sequences(text, f"--calibration {calibration}", checkpoint, tokens)
    settings = {
        "model": hashlib.sha256(repr((f"{checkpoint.directory}", file_states(checkpoint))).encode()).hexdigest(),
        "calibration text": hashlib.sha256(ids.numpy().tobytes()).hexdigest(),
        "formats": [[of_layer.mlp_in.format, of_layer.mlp_out.format] for of_layer in recipes],
        "steps": steps,
        "method": METHOD,
    }
    small = small_files(checkpoint.directory)
    output = Output(out, settings, files=layers + 1)
    output.open()
    done, streams = output.resume()
    if done:
        say(f"{out}: {done} of {layers} layers are done; resuming")
    if streams is None:
        embedded = checkpoint.tensor(EMBEDDING)[ids].float()
        streams = Streams(embedded, embedded)
    rotary = type(_empty_model(config).rotary_emb)(hf_config(config))
    rotation = rotary(streams.exact, torch.arange(ids.shape[1])[None])
    shapes = tensor_shapes(config)
    for i in trange(done, layers, initial=done, total=layers, desc="layers", leave=False, disable=None):
        prefix = f"model.layers.{i}."
        names = (name.removeprefix(prefix) for name in shapes if name.startswith(prefix))
        tensors = {name: checkpoint.tensor(prefix + name) for name in names}
        layer = _empty_model(config).layers[0]
        layer.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, assign=True)
        mlp, streams = rounded_layer(layer.eval(), streams, rotation, recipes[i], steps)
        tensors |= _named(mlp, recipes[i])
        output.keep_layer(i, {prefix + name: tensor for name, tensor in tensors.items()}, streams)
    rest = {name: checkpoint.tensor(name) for name in shapes if not name.startswith("model.layers.")}
    output.finish(rest, small)


def check_mlp(checkpoint: Checkpoint) -> None:
    """UserError: an MLP has a tensor that is not read here. The MLP's columns are sorted, and it would not be."""
    read = tuple(f".mlp.{name}_proj.weight" for name in Mlp._fields)
    for name in (*checkpoint.headers, *tensor_shapes(checkpoint.config)):
        if ".mlp." in name and not name.endswith(read):
            raise UserError(
                f"--model {checkpoint.directory}: `quantize` sorts the columns of an MLP's weights and does not read "
                f"{name}: use a recipe without 4-bit weights"
            )


def sequences(text: str, name: str, checkpoint: Checkpoint, limit: int) -> torch.Tensor:
    """[sequences, SEQUENCE] token ids from the beginning of `text`, `limit` tokens at most.

    name: the text's option and file, for messages. UserError: the text is too short.
    """
    config = checkpoint.config
    length = min(SEQUENCE, config.context)
    ids = ChatTokenizer(checkpoint.directory, instruct=False).hf.encode(text, add_special_tokens=False)
    count = min(len(ids), limit) // length
    if count * length < config.hidden_size:
        raise UserError(
            f"{name}: gives {count} sequences of {length} tokens, of {len(ids)} tokens in all and {limit} to be used; "
            f"{-(-config.hidden_size // length)} are needed, since a weight has {config.hidden_size} inputs and "
            "rounding pushes its errors to inputs that the text never shows: give a longer text, or more --tokens"
        )
    return torch.tensor(ids[: count * length]).view(count, length)


def _empty_model(config: DecoderConfig) -> Module:
    """Hugging Face's model of the family with one layer, without weights."""
    with torch.device("meta"):
        return getattr(transformers, config.architecture)(hf_config(replace(config, num_hidden_layers=1))).model


def _named(mlp: Mlp, recipe: Recipe) -> dict[str, torch.Tensor]:
    """Hugging Face's names and layout, [out, in], in bfloat16, which holds every block float."""
    named = {}
    for name, weight in mlp._asdict().items():
        format = (recipe.mlp_out if name == "down" else recipe.mlp_in).format
        assert rounded(weight, format).equal(weight), f"{name}: a value is not one of {format}"
        named[f"mlp.{name}_proj.weight"] = weight.t().bfloat16()
    return named
