"""Checks of a request: prompts, new tokens, stop strings, speculation. They cost little, so a caller runs them before it loads a model."""

from collections import abc
from typing import Collection, Iterable, Optional

from models.common.errors import UserError, check_integer, check_text, is_integer, shown

MAX_SPECULATE = 8  # tokens of a sequence in a step: each adds a cache update to every layer


def check_request(
    prompts: Iterable[Iterable[int]],
    max_new_tokens: int,
    max_seq_len: int,
    *,
    vocab_size: Optional[int] = None,
    stop_ids: Collection[int] = (),
) -> None:
    """UserError, naming the prompt and the limit, for a request that the model cannot serve."""
    if not isinstance(stop_ids, Collection) or not all(map(is_integer, stop_ids)):
        raise UserError(
            f"stop_ids must be a collection of token ids (empty for none), got {shown(stop_ids)}"
        )
    if isinstance(prompts, str) or not isinstance(prompts, abc.Sequence):
        raise UserError(f"prompts must be a list of lists of token ids, got {shown(prompts)}")
    if not prompts:
        raise UserError("prompts must hold at least one prompt, got none")
    check_new_tokens(max_new_tokens)
    check_integer("max_seq_len", max_seq_len, 1)
    for user, prompt in enumerate(prompts):
        if not isinstance(prompt, abc.Sequence):
            raise UserError(f"prompt {user} must be a list of token ids, got {shown(prompt)}")
        if len(prompt) == 0:
            raise UserError(f"prompt {user} is empty: a prompt needs at least one token")
        if len(prompt) + max_new_tokens > max_seq_len:
            raise UserError(
                f"prompt {user} has {len(prompt)} tokens; with {max_new_tokens} new ones that is "
                f"more than the context of {max_seq_len}: shorten it, ask for fewer new tokens, or "
                "choose a longer max_seq_len"
            )
        _check_ids(user, prompt, vocab_size)


def check_new_tokens(max_new_tokens: int) -> None:
    """UserError for an impossible number of new tokens."""
    check_integer("max_new_tokens", max_new_tokens, 1)


def check_prompts(prompts: Iterable[str]) -> None:
    """UserError unless there are prompts and each is text of one character or more."""
    if isinstance(prompts, str) or not isinstance(prompts, abc.Sequence):
        raise UserError(f"prompts must be a list of strings, got {shown(prompts)}")
    if not prompts:
        raise UserError("prompts must hold at least one prompt, got none")
    for i, prompt in enumerate(prompts):
        check_text(f"prompts[{i}]", prompt)
        if not prompt.strip():
            raise UserError(f"prompts[{i}] is empty: a prompt needs at least one character")


def check_stop(stop: Iterable[str]) -> None:
    """UserError for what cannot end a text."""
    if (
        isinstance(stop, str)
        or not isinstance(stop, abc.Sequence)
        or not all(isinstance(s, str) and s for s in stop)
    ):
        raise UserError(
            f"stop must be a list of strings of one character or more, got {shown(stop)}"
        )


def check_speculate(speculate: int, *, on_host: bool) -> None:
    """UserError for a number of tokens a step that cannot be."""
    check_integer("speculate", speculate, 1, MAX_SPECULATE)
    if speculate > 1 and on_host:
        raise UserError(
            "speculate needs sampling on the chips, and this model samples on the host: leave out one of the two"
        )


def _check_ids(user: int, prompt: Iterable[int], vocab_size: Optional[int]) -> None:
    for place, token in enumerate(prompt):
        if not is_integer(token):
            raise UserError(f"prompt {user}: token {place} must be a token id, got {shown(token)}")
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            most = "" if vocab_size is None else f" to {vocab_size - 1}"
            raise UserError(
                f"prompt {user}: token {place} is {token}, the model's ids are 0{most}: is the tokenizer this model's?"
            )
