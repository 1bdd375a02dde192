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
from typing import Any, Callable, Optional, Sequence

import torch
import ttnn

if not __package__:  # the checks run this file by its path
    folder = Path(__file__).resolve().parents[1]
    sys.path.append(f"{folder.parent}")
    __package__ = f"{folder.name}.tt"
    importlib.import_module(__package__)

from ..config import recipe_named
from ..engine.generator import Generator
from ..engine.prefill_batch import Prompt, pack_prompts
from ..engine.replica import Replica
from ..engine.trace import can_trace
from ..plans.blocks import attention_tables, equal_shares
from ..plans.grids import ceil_div
from ..plans.parallel_plan import MAX_USERS
from ..reference.small import SMALL_CHECKPOINT
from ..text.request import check_request
from ..text.tokenizer import ChatTokenizer
from ..weights.cache import open_checkpoint

CONTEXT = 4096  # tokens, unless the caller asks for another


class ReadinessGenerator:
    """`generate` serves one sequence. prefill_forward and decode_forward serve a row of page_table for each."""

    def __init__(self, replica: Replica, tokenizer: ChatTokenizer, stop_ids: set[int]):
        self.replica = replica
        self.mesh_device = replica.mesh_device
        self.tokenizer = tokenizer.hf
        self.stop_ids = stop_ids
        self.kv_cache = replica.caches
        self.page_table = torch.tensor([list(own) for own in equal_shares(replica.blocks, replica.users)])

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_new_tokens: int,
        *,
        next_input: Optional[Callable[[int, int], int]] = None,
        stop_on_eos: bool = True,
        **_: Any,
    ) -> list[int]:
        """Return greedy predictions. next_input(step, prediction): the token to read in the prediction's place."""
        prompt = [int(token) for token in prompt_token_ids]
        if next_input is None:
            stop_ids = self.stop_ids if stop_on_eos else ()
            return [
                token.id for token in Generator([self.replica]).generate([prompt], max_new_tokens, stop_ids=stop_ids)
            ]
        model_config = self.replica.model.model_config
        check_request([prompt], max_new_tokens, model_config.max_seq_len, vocab_size=model_config.config.vocab_size)
        for batch in self._batches([prompt], self.page_table, [0]):
            self.replica.prefill(batch)
        predictions: list[int] = []
        for step in range(max_new_tokens):
            predictions.append(self.replica.read_tokens()[0])
            token = next_input(step, predictions[-1])
            if step + 1 < max_new_tokens:
                self._launch_decode([token], [len(prompt) + step], self.page_table)
        return predictions

    def prefill_forward(
        self,
        tokens: torch.Tensor,
        *,
        page_table: Optional[torch.Tensor] = None,
        kv_cache: Optional[Sequence] = None,
        prompt_lens: Sequence[int],
        start_pos: Optional[Sequence[int]] = None,
        return_all_logits: bool = False,
        **_: Any,
    ) -> torch.Tensor:
        """Return logits [rows, 1, vocab_size] after each prompt, or those after each token of a single one.

        kv_cache: `self.kv_cache`, in which the caller gives blocks to sequences by page_table; None: `self.page_table`
        does.
        """
        table = self.page_table if kv_cache is None else page_table
        rows = [row[: int(end)].tolist() for row, end in zip(tokens, prompt_lens)]
        logits = torch.zeros(len(rows), 1, self.replica.model.model_config.config.vocab_size)
        every = []
        for batch in self._batches(rows, table, start_pos or [0] * len(rows)):
            if return_all_logits:
                every += self._logits_of_rows(batch)
                continue
            self.replica.prefill(batch)
            if batch.sampled_slots:
                self.replica.read_tokens()
                logits[batch.sampled_slots, 0] = self.replica.read_logits()[batch.sampled_slots].float()
        return torch.cat(every)[None] if return_all_logits else logits

    def decode_forward(
        self,
        tokens: torch.Tensor,
        start_pos: torch.Tensor,
        *,
        page_table: Optional[torch.Tensor] = None,
        kv_cache: Optional[Sequence] = None,
        **_: Any,
    ) -> torch.Tensor:
        """Return logits [rows, vocab_size] after tokens [rows, 1] at start_pos [rows]."""
        table = self.page_table if kv_cache is None else page_table
        self._launch_decode(tokens.flatten().tolist(), [int(position) for position in start_pos], table)
        self.replica.read_tokens()
        return self.replica.read_logits()[: len(tokens)].float()

    def reset(self) -> None:
        """Positions and tables are written for each sequence, and no sequence reads what it has not written."""
        while self.replica.in_flight:
            self.replica.read_tokens()

    def teardown(self) -> None:
        self.replica.close()

    def _batches(self, prompts: list[list[int]], table: torch.Tensor, starts: Sequence[int]) -> list:
        block = self.replica.block
        blocks = [row[: ceil_div(len(prompt), block)].tolist() for row, prompt in zip(table, prompts)]
        packed = [Prompt(slot, *rest) for slot, rest in enumerate(zip(prompts, map(int, starts), blocks))]
        return pack_prompts(packed, self.replica.model.max_prefill_rows, block)

    def _logits_of_rows(self, batch) -> list[torch.Tensor]:
        """Logits after each token of a batch. A prefill returns 32 rows, so the batch runs once for each 32."""
        (chunk,) = batch.chunks
        logits = []
        for first in range(chunk.num_cached, chunk.end, MAX_USERS):
            rows = range(first - chunk.start, min(first + MAX_USERS, chunk.end) - chunk.start)
            self.replica.prefill(replace(batch, sampled_rows=tuple(rows)))
            self.replica.read_tokens()
            logits.append(self.replica.read_logits()[: len(rows)].float())
        return logits

    def _launch_decode(self, tokens: list[int], positions: list[int], table: torch.Tensor) -> None:
        replica = self.replica
        rows = [row[: replica.width].tolist() for row in table[: len(tokens)]]
        tables = attention_tables(rows + [[]] * (replica.slots - len(rows)), replica.width)
        replica.inputs.write_slots(tokens + [0] * (replica.slots - len(tokens)), positions, tables)
        replica.launch_decode()


def build_generator(
    model_dir: str | Path,
    mesh_device: ttnn.MeshDevice,
    *,
    checkpoint: Optional[str] = None,
    recipe: str = "bfp8",
    users: int = 1,
    max_seq_len: Optional[int] = None,
    **_: Any,
) -> ReadinessGenerator:
    """Load a model on an open mesh of one row. checkpoint: a directory or hub id; default: the variable HF_MODEL."""
    opened = open_checkpoint(checkpoint or os.environ.get("HF_MODEL") or SMALL_CHECKPOINT)
    tokenizer = ChatTokenizer(opened.directory, instruct=False)
    length = max_seq_len or min(CONTEXT, opened.config.context)
    options = dict(users=users, max_seq_len=length, traced=can_trace(mesh_device))
    replica = Replica.load(mesh_device, opened, opened.config, recipe_named(recipe), **options)
    return ReadinessGenerator(replica, tokenizer, tokenizer.stop_ids | set(opened.config.eos_token_ids))
