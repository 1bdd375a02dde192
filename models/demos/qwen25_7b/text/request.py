"""Checks of a request. They cost little, so a caller runs them before it loads a model."""

from typing import Sequence

from ..errors import UserError, check_integer, shown

MAX_SPECULATE = 8  # tokens of a sequence in a step: each adds a cache update to every layer


def check_request(prompts: Sequence[Sequence[int]], max_new_tokens: int, max_seq_len: int, *, vocab_size: int) -> None:
    """UserError, naming the prompt and the limit, for a request that the model cannot serve."""
    check_integer("max_new_tokens", max_new_tokens, 1)
    if not prompts:
        raise UserError("prompts must hold at least one prompt, got none")
    for user, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise UserError(f"prompt {user} is empty: a prompt needs at least one token")
        if len(prompt) + max_new_tokens > max_seq_len:
            raise UserError(
                f"prompt {user} has {len(prompt)} tokens; with {max_new_tokens} new ones that is "
                f"more than the context of {max_seq_len}: shorten it, ask for fewer new tokens, or "
                "choose a longer max_seq_len"
            )
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            raise UserError(
                f"prompt {user} has token ids {min(prompt)} to {max(prompt)}, the model's are 0 to "
                f"{vocab_size - 1}: is the tokenizer this model's?"
            )


def check_strings(name: str, value: Sequence[str]) -> None:
    """UserError for a string in place of a list of strings, and for an empty string."""
    if isinstance(value, str) or not all(isinstance(text, str) and text for text in value):
        raise UserError(f"{name} must be a list of strings of one character or more, got {shown(value)}")


def check_speculate(speculate: int, *, on_host: bool) -> None:
    """UserError for a number of tokens a step that cannot be."""
    check_integer("speculate", speculate, 1, MAX_SPECULATE)
    if speculate > 1 and on_host:
        raise UserError(
            "speculate needs sampling on the chips, and this model samples on the host: leave out one of the two"
        )
