"""What a generator can be asked; cheap to check, so ask before a model is loaded."""

from numbers import Integral
from typing import Any, Collection, Optional, Sequence

from models.common.errors import UserError

MOST_TOKENS = 8  # of a text in a step: each takes an update of the cache in every layer, used or not


def check_request(
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    max_seq_len: int,
    *,
    vocab_size: Optional[int] = None,
    stop_ids: Collection[int] = (),
) -> None:
    """UserError, naming the prompt and the limit, for a request that the model cannot serve."""
    if not isinstance(stop_ids, Collection) or not all(map(_is_id, stop_ids)):
        raise UserError(f"stop_ids must be a collection of token ids (empty for none), got {stop_ids!r}")
    if not prompts:
        raise UserError("there must be a prompt, got none")
    check_new_tokens(max_new_tokens)
    if max_seq_len < 1:
        raise UserError(f"max_seq_len must be 1 token or more, got {max_seq_len}")
    for user, prompt in enumerate(prompts):
        if not isinstance(prompt, Sequence):
            raise UserError(f"prompt {user} must be a list of token ids, got {prompt!r}")
        if len(prompt) == 0:
            raise UserError(f"prompt {user} is empty: a prompt needs at least one token")
        if len(prompt) + max_new_tokens > max_seq_len:
            raise UserError(
                f"prompt {user} has {len(prompt)} tokens; with {max_new_tokens} new ones that is more than the context "
                f"of {max_seq_len}: shorten it, or ask for fewer new tokens"
            )
        _check_ids(user, prompt, vocab_size)


def check_new_tokens(max_new_tokens: int) -> None:
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens must be 1 or more, got {max_new_tokens}")


def check_stop(stop: Sequence[str]) -> None:
    """UserError for what cannot end a text."""
    if isinstance(stop, str) or not isinstance(stop, Sequence) or not all(isinstance(s, str) and s for s in stop):
        raise UserError(f"stop must be a list of strings of one character or more, got {stop!r}")


def check_speculate(speculate: int, *, on_host: bool) -> None:
    """UserError for a number of tokens a step that cannot be."""
    if not _is_id(speculate) or not 1 <= speculate <= MOST_TOKENS:
        raise UserError(f"speculate must be 1 (off) to {MOST_TOKENS} tokens of a text in a step, got {speculate}")
    if speculate > 1 and on_host:
        raise UserError(
            "speculate is for tokens that the chips choose, and these are to be chosen on the host: leave out one of the two"
        )


def _check_ids(user: int, prompt: Sequence[int], vocab_size: Optional[int]) -> None:
    for place, token in enumerate(prompt):
        if not _is_id(token):
            raise UserError(f"prompt {user}: token {place} must be a token id, got {token!r}")
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            most = "" if vocab_size is None else f" to {vocab_size - 1}"
            raise UserError(
                f"prompt {user}: token {place} is {token}, the model's ids are 0{most}: is the tokenizer this model's?"
            )


def _is_id(token: Any) -> bool:
    return isinstance(token, Integral) and not isinstance(token, bool)
