"""Reference predictions: Hugging Face's float32 model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence

import torch
from tqdm import tqdm

from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.reference.hf import hf_checkpoint

from ..rounded import round_model

BATCH = 8  # texts that Hugging Face reads at a time


class HuggingFace:
    """The model in float32. recipe: round the weights alone to its formats, as chips hold them."""

    def __init__(self, directory: Path, recipe: Optional[Recipe] = None):
        self.model = hf_checkpoint(directory)
        if recipe:
            round_model(self.model, recipe)

    @torch.no_grad()
    def read(self, texts: Sequence[Sequence[int]]) -> "Reading":
        """texts: token ids. Texts are padded at the end: attention is causal, so padding changes nothing."""
        states = []
        for start in tqdm(range(0, len(texts), BATCH), "Hugging Face", leave=False, disable=None):
            part = texts[start : start + BATCH]
            longest = max(map(len, part))
            padded = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in part])
            for ids, state in zip(part, self.model.model(padded).last_hidden_state):
                states.append(state[: len(ids)].clone())
        return Reading(self.model.lm_head, states)


@dataclass(frozen=True)
class Reading:
    """Hidden states of texts, from which logits are computed when they are compared.

    Logits of 2,048 tokens over 152,064 words take 1.2 GB. The LM head's inputs take 29 MB.
    """

    lm_head: torch.nn.Linear
    states: list[torch.Tensor]  # for each text the LM head's input, [tokens, hidden]

    @torch.no_grad()
    def logits(self, texts: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """[rows, vocab_size]: row r follows the token at positions[r] of texts[r]."""
        return self.lm_head(torch.stack([self.states[text][at] for text, at in zip(texts, positions)]))
