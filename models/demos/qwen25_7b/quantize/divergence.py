"""How far one model's next tokens are from another's, on a text."""

from typing import NamedTuple

import torch
from transformers import Qwen2ForCausalLM


class Divergence(NamedTuple):
    kl: float  # of the next token's distribution from the reference's, nats a token
    agreement: float  # how often both find the same token the likeliest


@torch.no_grad()
def divergence(reference: Qwen2ForCausalLM, model: Qwen2ForCausalLM, ids: torch.Tensor) -> Divergence:
    """ids [sequences, tokens]; both models in float32."""
    kl = agreement = 0.0
    for sequence in ids.split(1):
        expected, found = (m(sequence).logits[0].log_softmax(-1) for m in (reference, model))
        kl += float((expected.exp() * (expected - found)).sum())
        agreement += int((expected.argmax(-1) == found.argmax(-1)).sum())
    return Divergence(kl / ids.numel(), agreement / ids.numel())
