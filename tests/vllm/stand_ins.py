"""What stands for vLLM and its plugin in CI, which has neither.

tests/server/check_stand_ins.py compares each class with the real one.
"""

import os  # noqa: F401 - for grammars
import time  # noqa: F401 - for grammars
from types import SimpleNamespace

import torch


class BatchUpdateBuilder:
    """vLLM's, as far as the plugin uses it."""

    def __init__(self):
        self._removed, self.added = [], []

    def get_and_reset(self, batch_size):
        update = SimpleNamespace(removed=self._removed, added=self.added)
        self._removed, self.added = [], []
        return update


class InputBatch:
    """The plugin's, without penalties."""

    no_penalties = True

    def __init__(self):
        builder = BatchUpdateBuilder()
        self.sampling = SimpleNamespace(batch_update_builder=builder, bad_words_token_ids={})
        self.num_prompt_tokens = [3]


class TTWorker:
    """The plugin's, with one batch and a cache of 544 blocks of 10 bytes."""

    def __init__(self, blocks=None):
        self.cache_config = SimpleNamespace(num_gpu_blocks_override=blocks)

    def determine_available_memory(self):
        self.cache_config.num_gpu_blocks_override = 544
        return 5440

    def initialize_from_config(self, _):
        self.model_runner = SimpleNamespace(input_batch=InputBatch(), model=SimpleNamespace())


class TTScheduler:
    """The plugin's: the output of a prefill without room is dropped. vLLM empties both sets in each."""

    def __init__(self):
        self.finished_req_ids, self.reset_preempted_req_ids = set(), set()
        self.room = 0

    def schedule(self):
        output = self._schedule_prefill_only()
        return output if output.total_num_scheduled_tokens else self._output(1)

    def _schedule_prefill_only(self):
        return self._output(self.room)

    def _output(self, tokens):
        ended, preempted = self.finished_req_ids, self.reset_preempted_req_ids
        self.finished_req_ids, self.reset_preempted_req_ids = set(), set()
        return SimpleNamespace(
            total_num_scheduled_tokens=tokens, finished_req_ids=ended, preempted_req_ids=preempted or None
        )


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
    return SimpleNamespace(**defaults | dict(logprob_token_ids=None, logit_bias=None, bad_words=None) | changes)


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
