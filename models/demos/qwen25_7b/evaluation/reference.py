"""Hugging Face's model in float32 as the judge of texts, in memory that does not grow with the vocabulary.

The logits of 2,048 tokens over 152,064 words are 1.2 GB. So only what the LM head reads is kept of each token, and logits are
made of it a few rows at a time, when they are compared.
"""

from pathlib import Path
from typing import Sequence

import torch
from transformers import AutoModelForCausalLM

BATCH = 8  # texts at a time


class HuggingFace:
    """sdpa: eager attention rounds more."""

    def __init__(self, directory: Path):
        self.model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        ).eval()

    @torch.no_grad()
    def read(self, texts: Sequence[Sequence[int]]) -> "Reading":
        """texts: token ids. Whatever has followed a token in its text has no say in what is expected after it."""
        states = []
        for start in range(0, len(texts), BATCH):
            part = texts[start : start + BATCH]
            longest = max(map(len, part))
            padded = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in part])
            for ids, state in zip(part, self.model.model(padded).last_hidden_state):
                states.append(state[: len(ids)].clone())
        return Reading(self.model.lm_head, states)


class Reading:
    """What a model made of texts. states: of each text, what the LM head reads, [tokens, hidden]."""

    def __init__(self, lm_head: torch.nn.Linear, states: list[torch.Tensor]):
        self.lm_head, self.states = lm_head, states

    @torch.no_grad()
    def logits(self, texts: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """[rows, vocab_size]: row r is what follows the token at positions[r] of texts[r]."""
        return self.lm_head(torch.stack([self.states[text][at] for text, at in zip(texts, positions)]))
