"""What stands for vLLM and its plugin in CI, which has neither.

tests/server/check_stand_ins.py compares each class with the real one.
"""

import os  # noqa: F401 - for grammars
import time  # noqa: F401 - for grammars
from types import SimpleNamespace

import torch


class Keys:
    """vLLM's AuthenticationMiddleware inside another layer. Its 401 is left out."""

    def __init__(self, app, key: str):
        self._inner, self._key = app, key

    def verify_token(self, headers) -> bool:
        return headers.get("Authorization") == f"Bearer {self._key}"

    async def __call__(self, scope, receive, send):
        await self._inner(scope, receive, send)


def sampling(**changes) -> SimpleNamespace:
    """vLLM's SamplingParams, as far as they are checked."""
    defaults = dict(n=1, seed=None, repetition_penalty=1.0, stop_token_ids=None, thinking_token_budget=None)
    return SimpleNamespace(**defaults | dict(logprob_token_ids=None, allowed_token_ids=None, bad_words=None) | changes)


class Backend:
    """vLLM's GuidanceBackend. A grammar is a program that says what happens when it compiles."""

    def compile_grammar(self, kind, grammar):
        exec(grammar, globals())
        return self

    def allocate_token_bitmask(self, rows):
        return torch.zeros(rows, 3, dtype=torch.int32)

    error, accepts = "", True

    @property
    def ll_matcher(self):
        return SimpleNamespace(get_error=lambda: self.error, is_stopped=lambda: False)

    def fill_bitmask(self, mask, row):
        mask[row, 1] = -(1 << 31)  # token 63

    def accept_tokens(self, _, tokens):
        assert tokens == [63]
        return self.accepts


class Busy(Exception):
    """vLLM's GenerationError."""
