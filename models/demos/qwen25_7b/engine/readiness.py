"""The model as tt-metal's readiness checks drive it (models/common/readiness_check/contract.py)."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
import ttnn

from ..config import recipe_named
from ..plans.blocks import attention_tables, equal_shares
from ..plans.grids import ceil_div
from ..plans.parallel_plan import MAX_USERS
from ..text.request import check_request
from ..text.tokenizer import ChatTokenizer
from ..weights.cache import open_checkpoint
from .generator import Generator
from .prefill_batch import Prompt
from .replica import Replica, load_replicas

CONTEXT = 4096  # tokens, unless the caller asks for another
SMALL_CHECKPOINT = Path(__file__).parents[1] / "reference/small"


class ReadinessGenerator:
    """`generate` serves one sequence. prefill_forward and decode_forward work on `kv_cache`, by the caller's blocks."""

    def __init__(self, replica: Replica, tokenizer: ChatTokenizer, stop_ids: set[int]):
        self.replica, self.mesh_device, self.kv_cache = replica, replica.mesh_device, replica.caches
        self.tokenizer, self.stop_ids = tokenizer.hf, stop_ids
        self._can_trace = replica.traces.enabled

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
        replica, prompt = self._with_traces(enable_trace), list(map(int, prompt_token_ids))
        if next_input is None:
            tokens = Generator([replica]).generate([prompt], max_new_tokens, stop_ids=self.stop_ids)
            return [token.id for token in tokens]
        model_config = replica.model.model_config
        check_request([prompt], max_new_tokens, model_config.max_seq_len, vocab_size=model_config.dims.vocab_size)
        blocks = equal_shares(replica.blocks, replica.users)[0]
        tables = attention_tables([blocks, *[[]] * (replica.slots - 1)], replica.width)
        for batch in replica.batches([Prompt(0, prompt, 0, blocks)]):
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
        page_table: Optional[torch.Tensor] = None,
        start_pos: Optional[Sequence[int]] = None,
        return_all_logits: bool = False,
        enable_trace: bool = True,
        **_: Any,
    ) -> torch.Tensor:
        """Return logits [rows, 1, vocab_size] after each prompt, or [1, tokens, vocab_size] after each token of one.

        The latter takes no page_table and runs the prompt once for each 32 tokens.
        """
        replica = self._with_traces(enable_trace)
        ids = [row[: int(end)].tolist() for row, end in zip(tokens, prompt_lens)]
        if return_all_logits:
            return torch.cat([logits for _, logits in logits_after_each(replica, *ids)])[None].float()
        starts = [0] * len(ids) if start_pos is None else map(int, start_pos)
        blocks = self._blocks(page_table, [len(own) for own in ids])
        return replica.prefill_logits(list(map(Prompt, range(len(ids)), ids, starts, blocks)))[:, None]

    def decode_forward(
        self,
        tokens: torch.Tensor,
        start_pos: torch.Tensor,
        *,
        page_table: torch.Tensor,
        enable_trace: bool = True,
        **_: Any,
    ) -> torch.Tensor:
        """Return logits [rows, vocab_size] after tokens [rows, 1] at start_pos [rows]."""
        replica, positions = self._with_traces(enable_trace), start_pos.tolist()
        blocks = self._blocks(page_table, [position + 1 for position in positions])
        tables = attention_tables([*blocks, *[[]] * (replica.slots - len(blocks))], replica.width)
        replica.inputs.write_slots(tokens.flatten().tolist(), positions, tables)
        replica.launch_decode()
        replica.read_tokens()
        return replica.read_logits()[: len(positions)].float()

    def reset(self) -> None:
        """Nothing is left to do: no sequence reads what it has not written."""

    def teardown(self) -> None:
        self.replica.close()

    def _with_traces(self, asked: bool) -> Replica:
        self.replica.traces.enabled = asked and self._can_trace
        return self.replica

    def _blocks(self, page_table: torch.Tensor, lengths: Sequence[int]) -> list[list[int]]:
        """Of each row the blocks of its own tokens; the table goes on with others'."""
        return [row[: ceil_div(n, self.replica.block)].tolist() for row, n in zip(page_table, lengths)]


def logits_after_each(
    replica: Replica, tokens: Sequence[int], first: int = 0
) -> Iterator[tuple[Sequence[int], torch.Tensor]]:
    """Yield (positions, logits [positions, vocab_size]) after each token from position `first` on, by prefills.

    A prefill returns 32 rows of logits, so a chunk runs once for each 32.
    """
    blocks = equal_shares(replica.blocks, replica.users)[0]
    for batch in replica.batches([Prompt(0, tokens, 0, blocks)]):
        (chunk,) = batch.chunks
        for at in range(max(chunk.num_cached, first), chunk.end, MAX_USERS):
            positions = range(at, min(at + MAX_USERS, chunk.end))
            replica.prefill(replace(batch, sampled_rows=tuple(position - chunk.start for position in positions)))
            replica.read_tokens()
            yield positions, replica.read_logits()[: len(positions)]
        if first >= chunk.end:
            replica.prefill(batch)


def build_generator(
    model_dir: str | Path,
    mesh_device: ttnn.MeshDevice,
    *,
    recipe: str = "bfp8",
    users: int = 1,
    max_seq_len: Optional[int] = None,
    **_: Any,
) -> ReadinessGenerator:
    """Load the model that HF_MODEL names, else the small checkpoint, on an open mesh of one row."""
    opened = open_checkpoint(os.environ.get("HF_MODEL") or SMALL_CHECKPOINT)
    tokenizer = ChatTokenizer(opened.directory, instruct=False)
    length = max_seq_len or min(CONTEXT, opened.config.context)
    (replica,) = load_replicas([mesh_device], opened, recipe_named(recipe), users=users, max_seq_len=length, queues=1)
    return ReadinessGenerator(replica, tokenizer, tokenizer.stop_ids | set(opened.config.eos_token_ids))
