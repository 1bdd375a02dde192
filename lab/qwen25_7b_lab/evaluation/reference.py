"""Reference predictions: Hugging Face's float32 model, whole or a layer at a time."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Optional, Sequence

import torch
import torch.nn.functional as F
import transformers
from tqdm import tqdm
from transformers import PreTrainedModel

from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.reference.hf import hf_checkpoint, hf_config
from models.demos.qwen25_7b.weights.checkpoint import EMBEDDING, LM_HEAD, Checkpoint, tensor_shapes

from ..rounded import formats_of, in_format, round_model, rounded_layer

BATCH = 8  # texts that a whole model reads at a time
TOKENS = 8192  # that a model reads with one layer in memory: its MLP then takes 2 GB
WHOLE = 1 << 30  # parameters: a larger model has one layer in memory


class HuggingFace:
    """The model in float32. recipe: round the weights alone to its formats, as chips hold them.

    whole: whether all of it is in memory; default: up to 1.1 billion parameters.
    """

    def __init__(self, directory: Path, recipe: Optional[Recipe] = None, whole: Optional[bool] = None):
        checkpoint = Checkpoint.open(directory)
        self.whole = parameters(checkpoint) <= WHOLE if whole is None else whole
        if not self.whole:
            self.model = streamed_model(checkpoint, recipe)
            return
        self.model = hf_checkpoint(directory)
        if recipe:
            round_model(self.model, recipe)

    @torch.no_grad()
    def read(self, texts: Sequence[Sequence[int]]) -> "Reading":
        """texts: token ids. Texts are padded at the end: attention is causal, so padding changes nothing."""
        batch = BATCH if self.whole else max(1, TOKENS // max(map(len, texts)))
        starts, layers = range(0, len(texts), batch), self.model.model.layers
        states = []
        with tqdm(total=len(starts) * len(layers), desc="Hugging Face", unit="layer", leave=False, disable=None) as bar:
            hooks = [layer.register_forward_hook(lambda *_: bar.update() and None) for layer in layers]
            for start in starts:
                part = texts[start : start + batch]
                longest = max(map(len, part))
                padded = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in part])
                for ids, state in zip(part, self.model.model(padded, use_cache=False).last_hidden_state):
                    states.append(state[: len(ids)].clone())
            for hook in hooks:
                hook.remove()
        return Reading(self.model.lm_head, states)


def parameters(checkpoint: Checkpoint) -> int:
    return sum(torch.Size(shape).numel() for shape in tensor_shapes(checkpoint.config).values())


def streamed_model(checkpoint: Checkpoint, recipe: Optional[Recipe] = None) -> PreTrainedModel:
    """Hugging Face's model, of which a layer has weights only while it runs. Embedding and LM head stay in the file."""
    config = hf_config(checkpoint.config)
    with torch.device("meta"):
        model = getattr(transformers, checkpoint.config.architecture)(config)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    head = checkpoint.tensor(LM_HEAD)
    model.lm_head = FileHead(in_format(head, recipe.lm_head.format).bfloat16() if recipe else head)
    own = {
        "embed_tokens.weight": checkpoint.tensor(EMBEDDING),
        "norm.weight": checkpoint.tensor("model.norm.weight").float(),
    }
    model.model.load_state_dict(own, strict=False, assign=True)
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, rows: rows.float())
    for i, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(partial(_fill, checkpoint, recipe, i))
        layer.register_forward_hook(_empty)
    return model.eval()


def _fill(checkpoint: Checkpoint, recipe: Optional[Recipe], number: int, layer: torch.nn.Module, inputs) -> None:
    names = layer.state_dict()
    layer.load_state_dict(
        {name: checkpoint.tensor(f"model.layers.{number}.{name}").float() for name in names}, assign=True
    )
    if recipe:
        rounded = rounded_layer(layer, checkpoint.config.centering_rope(number), *formats_of(recipe, number))
        layer.load_state_dict(rounded.state_dict(), assign=True)


def _empty(layer: torch.nn.Module, inputs, result) -> None:
    layer.to("meta")


class FileHead(torch.nn.Module):
    """An LM head in float32 whose weight stays as it is in the file, [vocab, hidden]."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([F.linear(x, rows.float()) for rows in self.weight.split(1024)], -1)


@dataclass(frozen=True)
class Reading:
    """Hidden states of texts, from which logits are computed when they are compared.

    Logits of 2,048 tokens over 152,064 words take 1.2 GB. The LM head's inputs take 29 MB.
    """

    lm_head: torch.nn.Module
    states: list[torch.Tensor]  # for each text the LM head's input, [tokens, hidden]

    @torch.no_grad()
    def logits(self, texts: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """[rows, vocab_size]: row r follows the token at positions[r] of texts[r]."""
        return self.lm_head(torch.stack([self.states[text][at] for text, at in zip(texts, positions)]))
