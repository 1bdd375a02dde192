"""Generator: prompts in, token ids out, step by step."""
from dataclasses import dataclass
from typing import Collection, Iterator, Sequence

import torch
import ttnn

from models.common.errors import UserError
from models.demos.qwen25_7b.tt.decode_plan import MAX_USERS
from models.demos.qwen25_7b.tt.grids import padded_prompt
from models.demos.qwen25_7b.tt.placement import host_replicated, replicate
from models.demos.qwen25_7b.tt.sampling import HostSampler, Sampling
from models.demos.qwen25_7b.tt.transformer import DecodeInputs, PrefillInputs, TtTransformer


@dataclass(frozen=True)
class Token:
    """One new token of one user."""

    user: int
    id: int
    last: bool  # a stop token, or the last that was asked for


def check_request(prompts: Sequence[Sequence[int]], max_new_tokens: int, max_seq_len: int) -> None:
    """UserError for a request that the model cannot serve; cheap, so ask before loading."""
    if not 1 <= len(prompts) <= MAX_USERS:
        raise UserError(f"a batch is 1 to {MAX_USERS} prompts, got {len(prompts)}")
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens must be 1 or more, got {max_new_tokens}")
    for user, prompt in enumerate(prompts):
        if not prompt:
            raise UserError(f"prompt {user} is empty: a prompt needs at least one token")
        if len(prompt) + max_new_tokens > max_seq_len:
            raise UserError(
                f"prompt {user} has {len(prompt)} tokens; with {max_new_tokens} new ones that is more than the context "
                f"of {max_seq_len}: shorten it, or ask for fewer new tokens"
            )


class Generator:
    """Runs a TtTransformer: pads and places prompts, deals out cache blocks, keeps positions, samples on the host."""

    def __init__(self, model: TtTransformer):
        self.model = model
        self.mesh_device = model.mesh_device
        batch = model.decode.batch
        idle = self._host_inputs([0] * batch, [0] * batch, torch.stack([model.pages.table([])] * batch))
        self._device = DecodeInputs(
            *(ttnn.to_device(t, self.mesh_device, memory_config=ttnn.DRAM_MEMORY_CONFIG) for t in idle)
        )

    def prefill(self, tokens: Sequence[int], blocks: Sequence[int]) -> torch.Tensor:
        """Fill `blocks` (the user's, in order) of all layers' caches with a prompt; its last token's logits [vocab_size]."""
        rows = padded_prompt(len(tokens))
        padded = torch.zeros(1, 1, 1, rows, dtype=torch.int32)
        padded[..., : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        mine = self.model.pages.table(blocks)  # rows of padding go to nobody's block
        inputs = PrefillInputs(
            tokens=self._replicated(padded, ttnn.uint32),
            positions=self._replicated(torch.arange(rows, dtype=torch.int32)[None], ttnn.uint32),
            page_table=self._replicated(mine[None], ttnn.int32),
        )
        last = len(tokens) - 1
        logits = self.model.forward_prefill(inputs, last)
        row = self._read(logits)[last % 32]
        for tensor in (inputs.tokens, inputs.positions, inputs.page_table):
            ttnn.deallocate(tensor)
        return row

    def decode(self, tokens: Sequence[int], positions: Sequence[int], page_table: torch.Tensor) -> torch.Tensor:
        """One step: token tokens[u] at positions[u] for each user of the batch -> logits [batch, vocab_size].

        page_table: [batch, table_width] int32.
        """
        for host, device in zip(self._host_inputs(tokens, positions, page_table), self._device_tensors(), strict=True):
            ttnn.copy_host_to_device_tensor(host, device)
        return self._read(self.model.forward_decode(self._device))[: self.model.decode.batch]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        stop_ids: Collection[int] = (),
        sampling: Sampling = Sampling(),
    ) -> Iterator[Token]:
        """New tokens as they come, a prompt's first one right after its prefill; stop tokens are among them.

        Iterating to the end or closing the iterator leaves the generator ready for another call.
        """
        model = self.model
        if len(prompts) > model.decode.batch:
            raise UserError(f"the model was built for {model.decode.batch} users, got {len(prompts)} prompts")
        check_request(prompts, max_new_tokens, model.max_seq_len)
        sample = HostSampler(sampling, len(prompts))
        batch = model.decode.batch
        tokens, positions = [0] * batch, [0] * batch
        tables = torch.stack([model.pages.table([])] * batch)
        left = [max_new_tokens if user < len(prompts) else 0 for user in range(batch)]

        def take(user: int, logits: torch.Tensor) -> Token:
            tokens[user] = sample(user, logits)
            left[user] = 0 if tokens[user] in stop_ids else left[user] - 1
            return Token(user, tokens[user], last=not left[user])

        for user, prompt in enumerate(prompts):
            logits = self.prefill(prompt, model.pages.blocks_of(user, len(prompt)))
            tables[user] = model.pages.table(model.pages.blocks_of(user, len(prompt) + max_new_tokens))
            positions[user] = len(prompt)
            yield take(user, logits)
        while any(left):
            logits = self.decode(tokens, positions, tables)
            for user in range(len(prompts)):
                if left[user]:  # who is done stays where it is, its row computed and not read
                    positions[user] += 1
                    yield take(user, logits[user])

    def _host_inputs(self, tokens, positions, page_table: torch.Tensor) -> tuple[ttnn.Tensor, ...]:
        """The tensors of DecodeInputs, in its order, on the host."""
        row = torch.zeros(1, 1, 1, MAX_USERS, dtype=torch.int32)
        row[..., : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        at = torch.tensor(positions, dtype=torch.int32)
        rotary = at.repeat(self.model.decode.rotary_users // len(positions))[None]
        dtypes = (ttnn.uint32, ttnn.int32, ttnn.uint32, ttnn.int32)
        values = (row, at, rotary, page_table)
        return tuple(host_replicated(v, self.mesh_device, dtype) for v, dtype in zip(values, dtypes))

    def _device_tensors(self) -> tuple[ttnn.Tensor, ...]:
        d = self._device
        return d.tokens, d.positions, d.rotary_positions, d.page_table

    def _replicated(self, tensor: torch.Tensor, dtype: ttnn.DataType) -> ttnn.Tensor:
        return replicate(tensor, self.mesh_device, dtype, ttnn.ROW_MAJOR_LAYOUT)

    def _read(self, logits: ttnn.Tensor) -> torch.Tensor:
        """[1, 1, 32, vocab] of each chip -> [32, vocab_size] on the host; frees the device's."""
        composer = ttnn.ConcatMeshToTensor(self.mesh_device, dim=3)
        host = ttnn.to_torch(logits, mesh_composer=composer)[0, 0, :, : self.model.config.vocab_size]
        ttnn.deallocate(logits)
        return host
