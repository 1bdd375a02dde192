"""build_generator: the model as tt-metal's readiness checks drive it (models/common/readiness_check/contract.py).

    HF_MODEL=Qwen/Qwen2.5-7B-Instruct python -m models.common.readiness_check.run_teacher_forcing \\
        --model-dir models/demos/qwen25_7b --reference FILE.refpt --mesh-device N150

Without HF_MODEL, the small checkpoint of this repository answers. The caller opens and closes the mesh.
"""

import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
import ttnn

if not __package__:  # the checks run this file by its path
    folder = Path(__file__).resolve().parents[1]
    sys.path.append(f"{folder.parent}")
    __package__ = f"{folder.name}.tt"
    importlib.import_module(__package__)

from ..config import recipe_named
from ..engine.generator import Generator
from ..engine.prefill_batch import PrefillBatch, Prompt, pack_prompts
from ..engine.replica import Replica, load_replicas
from ..plans.blocks import attention_tables, equal_shares
from ..plans.parallel_plan import MAX_USERS
from ..reference.small import SMALL_CHECKPOINT
from ..text.request import check_request
from ..text.tokenizer import ChatTokenizer
from ..vllm.generator_vllm import DecodeState, QwenForCausalLM
from ..weights.cache import open_checkpoint

CONTEXT = 4096  # tokens, unless the caller asks for another


class ReadinessGenerator(QwenForCausalLM):
    """`generate` serves one sequence. prefill_forward and decode_forward are vLLM's, on `kv_cache`."""

    def __init__(self, replica: Replica, tokenizer: ChatTokenizer, stop_ids: set[int]):
        super().__init__(replica.model, replica.users)
        self.replica, self._state, self._can_trace = replica, DecodeState(replica), replica.traces.enabled
        self.mesh_device, self.kv_cache = replica.mesh_device, replica.caches
        self.tokenizer, self.stop_ids = tokenizer.hf, stop_ids

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_new_tokens: int,
        *,
        next_input: Optional[Callable[[int, int], int]] = None,
        enable_trace: bool = True,
        **_: Any,
    ) -> list[int]:
        """Return greedy predictions, up to a stop token.

        next_input(step, prediction): the token to read in the prediction's place. Then a stop token stops nothing.
        """
        self._enable_traces(enable_trace)
        replica, prompt = self.replica, list(map(int, prompt_token_ids))
        if next_input is None:
            tokens = Generator([replica]).generate([prompt], max_new_tokens, stop_ids=self.stop_ids)
            return [token.id for token in tokens]
        model_config = self.model.model_config
        check_request([prompt], max_new_tokens, model_config.max_seq_len, vocab_size=model_config.config.vocab_size)
        blocks = equal_shares(replica.blocks, replica.users)[0]
        tables = attention_tables([blocks, *[[]] * (replica.slots - 1)], replica.width)
        for batch in self._batches(prompt):
            replica.prefill(batch)
        predictions: list[int] = []
        for step in range(max_new_tokens):
            predictions.append(replica.read_tokens()[0])
            token = next_input(step, predictions[-1])
            if step + 1 < max_new_tokens:
                replica.inputs.write_slots([token], [len(prompt) + step], tables)
                replica.launch_decode()
        return predictions

    def prefill_forward(
        self,
        tokens: torch.Tensor,
        *,
        prompt_lens: Sequence[int],
        start_pos: Optional[Sequence[int]] = None,
        return_all_logits: bool = False,
        enable_trace: bool = True,
        **options: Any,
    ) -> torch.Tensor:
        """Return logits [rows, 1, vocab_size] after each prompt, or [1, tokens, vocab_size] after each token of one.

        The latter takes no page_table and runs the prompt once for each 32 tokens.
        """
        if return_all_logits:
            (ids,) = (row[: int(end)].tolist() for row, end in zip(tokens, prompt_lens))
            return torch.cat([*self._logits_after_each(ids)])[None]
        starts = [0] * len(tokens) if start_pos is None else start_pos
        return super().prefill_forward(
            tokens=tokens, prompt_lens=prompt_lens, start_pos=starts, enable_trace=enable_trace, **options
        )

    def _batches(self, prompt: list[int]) -> list[PrefillBatch]:
        blocks = equal_shares(self.replica.blocks, self.replica.users)[0]
        return pack_prompts([Prompt(0, prompt, 0, blocks)], self.replica.model.max_prefill_rows, self.replica.block)

    def _logits_after_each(self, prompt: list[int]) -> Iterator[torch.Tensor]:
        """[32 or fewer, vocab_size] at a time: a prefill returns 32 rows of logits."""
        for batch in self._batches(prompt):
            (chunk,) = batch.chunks
            for first in range(chunk.num_cached, chunk.end, MAX_USERS):
                rows = tuple(range(first - chunk.start, min(first + MAX_USERS, chunk.end) - chunk.start))
                self.replica.prefill(replace(batch, sampled_rows=rows))
                self.replica.read_tokens()
                yield self.replica.read_logits()[: len(rows)].float()

    def decode_forward(
        self, tokens: torch.Tensor, start_pos: torch.Tensor, *, enable_trace: bool = True, **options: Any
    ) -> torch.Tensor:
        """Return logits [rows, vocab_size] after tokens [rows, 1] at start_pos [rows]."""
        logits = super().decode_forward(tokens=tokens, start_pos=start_pos, enable_trace=enable_trace, **options)
        return logits[: len(tokens), 0]

    def reset(self) -> None:
        """Nothing is left to do: no sequence reads what it has not written."""

    teardown = QwenForCausalLM.close


def build_generator(
    model_dir: str | Path,
    mesh_device: ttnn.MeshDevice,
    *,
    recipe: str = "bfp8",
    users: int = 1,
    max_seq_len: Optional[int] = None,
    **_: Any,
) -> ReadinessGenerator:
    """Load the model that HF_MODEL names on an open mesh of one row."""
    opened = open_checkpoint(os.environ.get("HF_MODEL") or SMALL_CHECKPOINT)
    tokenizer = ChatTokenizer(opened.directory, instruct=False)
    length = max_seq_len or min(CONTEXT, opened.config.context)
    (replica,) = load_replicas([mesh_device], opened, recipe_named(recipe), users=users, max_seq_len=length, queues=1)
    return ReadinessGenerator(replica, tokenizer, tokenizer.stop_ids | set(opened.config.eos_token_ids))
