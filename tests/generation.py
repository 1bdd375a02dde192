"""The new tokens of a prompt: Hugging Face's greedy ones, and those of a Generator."""

from functools import lru_cache
from pathlib import Path

import torch


def training_chats(part: int = 0) -> str:
    """Chats of the small checkpoint's training in the chat template: part 0 has 2048 tokens, 1 and 2 have 1024 each."""
    return Path(__file__).with_name("chats.txt").read_text().split("\f")[part]


def greedy(hf, prompt, new_tokens, stop_ids, **options) -> list[int]:
    """Return the tokens of Hugging Face's greedy answer. Equal questions are computed once in a process."""
    return list(_greedy(hf, tuple(prompt), new_tokens, frozenset(stop_ids), **options))


@lru_cache(maxsize=None)
@torch.no_grad()
def _greedy(hf, prompt, new_tokens, stop_ids, **options) -> list[int]:
    out = hf.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=sorted(stop_ids),
        **options,
    )
    return out[0, len(prompt) :].tolist()


def generate(generator, prompts, new_tokens, **options) -> list[list[int]]:
    """Return the new tokens of each prompt. Exactly the last token of a sequence says that it is the last."""
    new, ended = [[] for _ in prompts], set()
    for token in generator.generate(prompts, new_tokens, **options):
        assert token.user not in ended, "a token after the last"
        new[token.user].append(token.id)
        if token.last:
            ended.add(token.user)
    assert ended == set(range(len(prompts)))
    return new


def sample(logits, params, key, position, *counts) -> int:
    """The token that the host samples from logits [vocab_size]. counts: a TokenCounts, or none."""
    from models.demos.qwen25_7b.engine.sampling import NextToken, sample_tokens  # here, since it imports ttnn

    return sample_tokens(logits[None], [NextToken(0, params, key, position, *counts)])[0]
