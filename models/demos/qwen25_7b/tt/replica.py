"""Replica: one model on its row of chips, with the tensors that a step reads and the trace that runs it."""
from typing import Sequence

import torch
import ttnn

from models.demos.qwen25_7b.tt.decode_plan import MAX_USERS
from models.demos.qwen25_7b.tt.grids import TILE, padded_prompt
from models.demos.qwen25_7b.tt.placement import host_replicated, replicate
from models.demos.qwen25_7b.tt.transformer import DecodeInputs, PrefillInputs, TtTransformer


class Replica:
    """Decode is launched and read apart, so that all replicas of a mesh work at once.

    traced: capture a step the first time and replay it from then on (not possible in slow dispatch).
    """

    def __init__(self, model: TtTransformer, *, traced: bool):
        self.model, self.mesh_device, self.traced = model, model.mesh_device, traced
        self.batch = model.decode.batch
        nobody = torch.stack([model.pages.table([])] * self.batch)
        self._placed = self._host_inputs([0] * self.batch, [0] * self.batch, nobody)
        self.inputs = DecodeInputs(
            *(ttnn.to_device(t, self.mesh_device, memory_config=ttnn.DRAM_MEMORY_CONFIG) for t in self._placed)
        )
        self.trace = None
        self.logits: list[ttnn.Tensor] = []

    def prefill(self, tokens: Sequence[int], blocks: Sequence[int]) -> torch.Tensor:
        """Fill `blocks` (the user's, in order) of all layers' caches with a prompt; its last token's logits [vocab_size]."""
        rows = padded_prompt(len(tokens))
        padded = torch.zeros(1, 1, 1, rows, dtype=torch.int32)
        padded[..., : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        inputs = PrefillInputs(
            tokens=self._replicated(padded, ttnn.uint32),
            positions=self._replicated(torch.arange(rows, dtype=torch.int32)[None], ttnn.uint32),
            page_table=self._replicated(self.model.pages.table(blocks)[None], ttnn.int32),  # padding: nobody's block
        )
        last = len(tokens) - 1
        pieces = self.model.forward_prefill(inputs, last)
        logits = self.model.read_logits(pieces)[last % TILE]
        for tensor in (*inputs, *pieces):
            ttnn.deallocate(tensor)
        return logits

    def place(self, tokens: Sequence[int], positions: Sequence[int], page_table: torch.Tensor) -> None:
        """Where the next step starts: tokens[u] goes to positions[u] for each user of the batch.

        page_table: [batch, table_width] int32. Needed when users come or go; else the device goes on by itself.
        """
        self._placed = self._host_inputs(tokens, positions, page_table)
        self._send_placed()

    def place_tokens(self, tokens: Sequence[int]) -> None:
        """The next step's tokens; positions have advanced by themselves."""
        ttnn.copy_host_to_device_tensor(self._host_tokens(tokens), self.inputs.tokens)

    def launch(self) -> None:
        """Start a decode step; `read` waits for it."""
        if not self.traced:
            for piece in self.logits:
                ttnn.deallocate(piece)
            self.logits = self._step()
            return
        if self.trace is None:
            self._capture()
        ttnn.execute_trace(self.mesh_device, self.trace, cq_id=0, blocking=False)

    def read(self) -> torch.Tensor:
        """Logits [batch, vocab_size] of the step that was launched last."""
        return self.model.read_logits(self.logits)[: self.batch]

    def close(self) -> None:
        """Release the trace; the model's tensors go with the mesh."""
        if self.trace is not None:
            ttnn.release_trace(self.mesh_device, self.trace)
            self.trace = None

    def _step(self) -> list[ttnn.Tensor]:
        logits = self.model.forward_decode(self.inputs)
        ttnn.plus_one(self.inputs.positions)
        ttnn.plus_one(self.inputs.rotary_positions)
        return logits

    def _capture(self) -> None:
        """Compile with a run of its own (a capture may not), go back to where it started, and capture.

        The run leaves in the cache just what the first replay writes there again.
        """
        for piece in self._step():
            ttnn.deallocate(piece)
        self._send_placed()
        self.trace = ttnn.begin_trace_capture(self.mesh_device, cq_id=0)
        self.logits = self._step()
        ttnn.end_trace_capture(self.mesh_device, self.trace, cq_id=0)

    def _send_placed(self) -> None:
        for source, target in zip(self._placed, self.inputs, strict=True):
            ttnn.copy_host_to_device_tensor(source, target)

    def _host_inputs(self, tokens, positions, page_table: torch.Tensor) -> tuple[ttnn.Tensor, ...]:
        """The tensors of DecodeInputs, in its order, on the host."""
        at = torch.tensor(positions, dtype=torch.int32)
        rotary = at.repeat(self.model.decode.rotary_users // self.batch)[None]
        others = ((at, ttnn.int32), (rotary, ttnn.uint32), (page_table, ttnn.int32))
        return self._host_tokens(tokens), *(host_replicated(v, self.mesh_device, dtype) for v, dtype in others)

    def _host_tokens(self, tokens: Sequence[int]) -> ttnn.Tensor:
        row = torch.zeros(1, 1, 1, MAX_USERS, dtype=torch.int32)
        row[..., : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        return host_replicated(row, self.mesh_device, ttnn.uint32)

    def _replicated(self, tensor: torch.Tensor, dtype: ttnn.DataType) -> ttnn.Tensor:
        return replicate(tensor, self.mesh_device, dtype, ttnn.ROW_MAJOR_LAYOUT)
