"""Test bench for attention, alone or in a layer: paged cache, rotary factors, users' positions."""

from typing import Optional, Sequence

import torch
import ttnn

from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.plans.blocks import NO_BLOCK
from models.demos.qwen25_7b.plans.grids import TILE, Grid, padded_rows
from models.demos.qwen25_7b.tt.attention import CORES_PER_KV_HEAD, TtQwenAttention
from models.demos.qwen25_7b.tt.inputs import ChunkedPrefillInputs, DecodeInputs, PrefillInputs
from models.demos.qwen25_7b.tt.rotary import TtRotary
from tests.pcc.bench import CONTEXT, Bench, usual_gain
from tests.pcc.paged_cache import PagedCache
from tests.pcc.reference import Reference

APPROXIMATE_GAIN = 0.008  # simulated chips give scales of 0.992 to 0.994
# Cores that share a KV head join their results in pairs. The engine's sum of two bfloat16 is up to 0.08 % too large, and
# the sum of the weights is not. On simulated chips one user's attention at tp 8 and position 1023 has 1.0051.
JOIN_GAIN = 0.0013
UPDATE_GAIN = 0.0053  # bfloat16 rows written into an 8-bit cache, on simulated chips
POSITIONS = (
    0,
    31,
    32,
    127,
    1023,
)  # critical positions of a decode step: the ends of blocks and of the context


def mixed(batch: int) -> tuple[int, ...]:
    """Return a position of POSITIONS for each user, in random order."""
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(batch))
    return tuple(POSITIONS[i % len(POSITIONS)] for i in order.tolist())


class AttentionWorld(Bench):
    """A bench with attention modules of the tested layers. They share one cache."""

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        reference: Reference,
        recipe: Recipe,
        *,
        batch: int,
        grid: Optional[Grid] = None,
        block: int = 32,
        context: int = CONTEXT,
    ):
        super().__init__(mesh_device, reference.kept_in(recipe), batch=batch, grid=grid)
        self.recipe = recipe
        config = self.model_config(recipe, context)
        self.rotary = TtRotary(mesh_device, config)
        self.key_table = config.key_table
        self.cache = PagedCache(self, recipe, block, context)
        all_reduce = self.all_reduce(recipe)
        self.attention = {
            i: TtQwenAttention(
                mesh_device,
                self.weights.attention(i),
                config,
                rotary=self.rotary,
                all_reduce=all_reduce,
            )
            for i in reference.layers
        }

    @property
    def decode_gain(self) -> float:
        """Allowed relative error in the scale of attention in a decode step.

        ttnn's approximate exp (attention.py) needs more. So does its update of an 8-bit cache,
        which enlarges rows. So do the joins of cores that share a KV head.
        """
        larger = UPDATE_GAIN if self.recipe.kv_cache == "bfloat8_b" else 0
        cores = self.decode.grid.cores // (self.decode.batch * self.plan.kv_heads)
        joins = (max(1, min(cores, CORES_PER_KV_HEAD)) - 1).bit_length()  # in pairs
        return (
            larger
            + joins * JOIN_GAIN
            + (usual_gain(self.plan.tp) if self.plan.exact_decode_attention else APPROXIMATE_GAIN)
        )

    def run_decode(self, module, x: torch.Tensor, positions: Sequence[int]) -> list[torch.Tensor]:
        """Run a decode step of attention or a layer. User u's token x[u] stands at positions[u].

        Returns [batch, hidden] of each chip.
        """
        positions = torch.tensor(positions)
        rotary_positions = self.put_ints(self.rotary_positions(positions), ttnn.uint32)
        inputs = DecodeInputs(
            tokens=None,
            positions=self.put_ints(positions, ttnn.int32),
            rotary_positions=rotary_positions,
            key_rows=self.put_ints(self.key_table.decode_rows(positions), ttnn.uint32),
            page_table=self.put_ints(self.cache.page_table, ttnn.int32),
        )
        rotation = self.rotary.rotation_decode(rotary_positions)
        y = module.forward_decode(self.put_users(x), rotation, inputs, self.cache.on_chips)
        assert y.memory_config() == self.decode.residual_memory
        return self.take_rows(y, len(x))

    def run_prefill(self, module, x: torch.Tensor, user: int) -> list[torch.Tensor]:
        """Prefill a user's prompt x [tokens, hidden]. Returns [tokens, hidden] of each chip."""
        return self.run_prompts(module, [x], [user])[0]

    def run_prompts(
        self, module, prompts: Sequence[torch.Tensor], users: Sequence[int]
    ) -> list[list[torch.Tensor]]:
        """Prefill prompts side by side in one prefill batch. Returns each prompt's result.

        Each prompt starts at a row where a block begins.
        """
        padded = [-(-len(x) // self.cache.block) * self.cache.block for x in prompts]
        starts = [sum(padded[:i]) for i in range(len(prompts) + 1)]
        plan = self.prefill_plan(padded_rows(starts[-1]), self.recipe)
        rows = 1e2 * torch.randn(
            plan.rows, prompts[0].shape[1], generator=torch.Generator().manual_seed(1)
        )
        positions, blocks = torch.zeros(plan.rows), []
        for x, user, start in zip(prompts, users, starts):
            rows[start : start + len(x)] = x
            positions[start : start + len(x)] = torch.arange(len(x))
            blocks += self.cache.blocks_of(user, 0, len(x))
        windows = torch.full((plan.rows // TILE + 1,), plan.rows)
        windows[: len(starts)] = torch.tensor(starts)
        inputs = PrefillInputs(
            tokens=None,
            positions=self.put_ints(positions[None], ttnn.uint32),
            key_rows=self.put_ints(self.key_table.prefill_rows(positions[None]), ttnn.uint32),
            fill_table=self.put_ints(self.cache.fill_table(blocks, plan.rows), ttnn.int32),
            logits_indices=None,
            window_starts=self.put_ints(windows, ttnn.int32),
        )
        rotation = self.rotary.rotation_prefill(inputs.positions)
        x = self.put_tokens(rows, plan)
        y = module.forward_prefill(x, rotation, inputs, self.cache.on_chips, plan)
        assert y.memory_config() == plan.residual_memory
        chips = self.take_rows(y, plan.rows)
        return [
            [chip[start : start + len(x)] for chip in chips] for x, start in zip(prompts, starts)
        ]

    def run_chunked_prefill(
        self, module, x: torch.Tensor, user: int, start: int
    ) -> list[torch.Tensor]:
        """Prefill a chunk x [tokens, hidden] of a user's sequence from position `start`.

        The cache holds the tokens before `start`. Returns [tokens, hidden] of each chip.
        """
        return self.run_chunks(module, [x], [user], start)[0]

    def run_chunks(
        self, module, chunks: Sequence[torch.Tensor], users: Sequence[int], start: int
    ) -> list[list[torch.Tensor]]:
        """Prefill chunks [tokens, hidden] of several users' sequences in one prefill batch. Returns each chunk's result.

        All chunks begin at position `start`. The batch has a power of two of equal shares of rows.
        """
        rows_each = padded_rows(max(map(len, chunks)))
        sequences = 1 << (len(chunks) - 1).bit_length()
        plan = self.prefill_plan(sequences * rows_each, self.recipe)
        rows = torch.zeros(plan.rows, chunks[0].shape[1])
        positions = torch.zeros(1, rows_each)
        fill = torch.full((sequences, -(-rows_each // self.cache.block)), NO_BLOCK)
        pages = self.cache.attention_table(users[0], rows_each).repeat(sequences, 1)
        for i, (x, user) in enumerate(zip(chunks, users)):
            end = start + len(x)
            rows[i * rows_each : i * rows_each + len(x)] = x
            positions[0, : len(x)] = torch.arange(start, end)
            blocks = self.cache.blocks_of(user, start, end)
            fill[i : i + 1] = self.cache.fill_table(blocks, rows_each)
            pages[i : i + 1] = self.cache.attention_table(user, rows_each)
        inputs = ChunkedPrefillInputs(
            tokens=None,
            positions=self.put_ints(positions, ttnn.uint32),
            key_rows=self.put_ints(self.key_table.prefill_rows(positions, sequences), ttnn.uint32),
            fill_table=self.put_ints(fill, ttnn.int32),
            logits_indices=None,
            start=self.put_ints(torch.tensor([start]), ttnn.int32),
            page_table=self.put_ints(pages, ttnn.int32),
            sequences=self.put_ints(torch.arange(sequences), ttnn.int32),
        )
        rotation = self.rotary.rotation_prefill(inputs.positions)
        y = module.forward_chunked_prefill(
            self.put_tokens(rows, plan), rotation, inputs, self.cache.on_chips, plan
        )
        assert y.memory_config() == plan.residual_memory
        chips = self.take_rows(y, plan.rows)
        return [
            [chip[i * rows_each : i * rows_each + len(x)] for chip in chips]
            for i, x in enumerate(chunks)
        ]
