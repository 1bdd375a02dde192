"""A PCC test: put inputs on a mesh, run one module of the model, compare with Hugging Face's module.

    bench = Bench(mesh_device, reference)
    mlp = TtQwenMLP(mesh_device, bench.model_config(BFP8).layer(0), bench.build, all_reduce=bench.all_reduce(BFP8))
    chips = bench.take_rows(mlp.forward_decode(bench.put_users(x)), len(x))
    assert_module(chips, reference.layer(0).mlp(x), pcc=0.999)

- Bench: plans, weights, and tensors to and from the chips.
- AttentionBench: a Bench with a paged cache, for attention alone or in a layer.
- assert_module, assert_mlp: PCC and scale of each chip's result.

tests/pcc/reference.py has Hugging Face's side, tests/pcc/paged_cache.py the cache.
"""

from dataclasses import replace
from typing import Callable, Optional, Sequence

import torch
import ttnn

from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.plans.all_reduce_plan import AllReducePlan
from models.demos.qwen25_7b.plans.blocks import INACTIVE, NO_BLOCK
from models.demos.qwen25_7b.plans.decode_plan import DecodeLayout
from models.demos.qwen25_7b.plans.grids import TILE, Grid, padded_rows
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS, ParallelPlan
from models.demos.qwen25_7b.plans.planner import fit_prefill
from models.demos.qwen25_7b.plans.prefill_plan import PrefillPlan
from models.demos.qwen25_7b.tt.attention import CORES_PER_KV_HEAD, TtQwenAttention
from models.demos.qwen25_7b.tt.inputs import (
    ChunkedPrefillInputs,
    DecodeInputs,
    PrefillInputs,
    expand_rotary_positions,
    prefill_key_rows,
)
from models.demos.qwen25_7b.tt.linear import TtAllReduce
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.placement import chip_of, memory_config, replicate, row_topology
from models.demos.qwen25_7b.tt.rotary import TtRotary
from tests.metrics import assert_close
from tests.pcc.paged_cache import PagedCache
from tests.pcc.reference import Case, Reference

CONTEXT = 1024  # tokens that a user's blocks hold
POSITIONS = 0, 31, 32, 127, 1023  # of a decode step: the ends of blocks and of the context
FEW_CORES = 63  # too few for the fused ops on q and k, or k and v, of 32 users

# Allowed relative errors in a result's scale. Low precision hardly changes the scale.
GAIN = 0.003
# by tp: a sum of two bfloat16 is up to 0.08 % too large, and more chips add more sums
GAIN_OF_A_ROW = {4: 0.004, 8: 0.005}
# bfloat16 sums that a prefill rounds to bfloat8_b before their all-gather, on simulated chips
GATHERED_GAIN = 0.0028
LOFI_GAIN = 0.0065  # LoFi: gate and up are 0.28 % smaller each, silu(gate) by up to 1.1 times that
APPROXIMATE_GAIN = 0.008  # simulated chips give scales of 0.992 to 0.994
# The approximate exp makes large weights too small. Values around a bias hide it: there the result is nearly their
# mean.
APPROXIMATE_GAIN_WITHOUT_BIAS = 0.018
# Cores that share a KV head join their results in pairs. The engine's sum of two bfloat16 is up to 0.08 % too large,
# and the sum of the weights is not. On simulated chips one user's attention at tp 8 and position 1023 has 1.0051.
JOIN_GAIN = 0.0013
UPDATE_GAIN = 0.0053  # bfloat16 rows written into an 8-bit cache, on simulated chips


def mixed(batch: int) -> tuple[int, ...]:
    """Return a position of POSITIONS for each user, in random order."""
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(batch))
    return tuple(POSITIONS[i % len(POSITIONS)] for i in order.tolist())


class Bench:
    """`batch` users of the reference's model on all chips of a mesh.

    cores: of a chip, at most. The grid loses rows, as in worker dispatch: ops lay heads on rows as wide as the device.
    """

    def __init__(
        self, mesh_device: ttnn.MeshDevice, reference: Reference, *, batch: int = MAX_USERS, cores: Optional[int] = None
    ):
        self.mesh_device, self.reference, self.config = mesh_device, reference, reference.config
        self.plan = ParallelPlan.make(self.config, mesh_device.get_num_devices())
        chip = chip_of(mesh_device)
        if cores:
            chip = replace(chip, grid=Grid(chip.grid.x, cores // chip.grid.x))
        self.decode = DecodeLayout.make(self.config, self.plan, chip, batch, topology=row_topology(mesh_device))
        self.build = reference.build

    def model_config(self, recipe: Recipe, max_seq_len: int = CONTEXT) -> TtModelConfig:
        sums = AllReducePlan.make(
            self.plan.tp, self.decode.all_reduce.topology, self.config.hidden_size, recipe.all_reduce_dtype
        )
        decode = replace(self.decode, all_reduce=sums)
        return TtModelConfig(self.config, self.plan, recipe, decode.chip, decode, max_seq_len)

    def all_reduce(self, recipe: Recipe) -> TtAllReduce:
        return TtAllReduce(self.mesh_device, self.model_config(recipe))

    def prefill_plan(self, rows: int, recipe: Recipe) -> PrefillPlan:
        return fit_prefill(self.model_config(recipe).layer(0), rows, self.decode.layer_l1)

    def prefill_gain(self, recipe: Recipe) -> float:
        """Allowed relative error in the scale of a prefill's all-reduce."""
        rounded = self.plan.tp > 1 and recipe.all_reduce_dtype == "bfloat8_b"
        return usual_gain(self.plan.tp) + (GATHERED_GAIN if rounded else 0)

    def put_users(self, rows: torch.Tensor) -> ttnn.Tensor:
        """Send rows [users, hidden] as [1, 1, 32, hidden] to the residual cores."""
        return self._put_rows(rows, MAX_USERS, memory_config(self.decode.residual_memory))

    def put_tokens(self, rows: torch.Tensor, plan: PrefillPlan) -> ttnn.Tensor:
        """Send rows [tokens, hidden] as [1, 1, plan.rows, hidden], block-sharded in L1."""
        return self._put_rows(rows, plan.rows, memory_config(plan.residual_memory))

    def _put_rows(self, rows: torch.Tensor, count: int, memory: ttnn.MemoryConfig) -> ttnn.Tensor:
        """Rows after those of users or tokens hold large noise."""
        generator = torch.Generator().manual_seed(0)
        padded = 1e3 * torch.randn(1, 1, count, rows.shape[1], generator=generator)
        padded[0, 0, : len(rows)] = rows
        return replicate(padded, self.mesh_device, memory_config=memory)

    def put_ints(self, ints: torch.Tensor, dtype: ttnn.DataType) -> ttnn.Tensor:
        """Send token ids, positions or page tables to every chip, row-major."""
        return replicate(ints.int(), self.mesh_device, dtype, ttnn.ROW_MAJOR_LAYOUT)

    def rotary_positions(self, positions: torch.Tensor) -> torch.Tensor:
        return expand_rotary_positions(positions, self.decode)

    def get(self, tensor: ttnn.Tensor, dim: int = 0) -> torch.Tensor:
        """Return the chips' shards side by side along `dim`."""
        composer = ttnn.ConcatMeshToTensor(self.mesh_device, dim=dim)
        return ttnn.to_torch(tensor, mesh_composer=composer)

    def take_rows(self, tensor: ttnn.Tensor, count: int) -> list[torch.Tensor]:
        """Return the first `count` rows of each chip's [1, 1, rows, width], and free the tensor.

        Each result is [count, width].
        """
        chips = list(self.get(tensor)[:, 0, :count].float())
        ttnn.deallocate(tensor)
        return chips


class AttentionBench(Bench):
    """A bench with attention modules of the tested layers. They share one cache."""

    def __init__(
        self,
        mesh_device: ttnn.MeshDevice,
        reference: Reference,
        recipe: Recipe,
        *,
        batch: int,
        cores: Optional[int] = None,
        block: int = 32,
        context: int = CONTEXT,
    ):
        super().__init__(mesh_device, reference.kept_in(recipe), batch=batch, cores=cores)
        self.recipe = recipe
        config = self.model_config(recipe, context)
        self.rotary = TtRotary(mesh_device, config)
        self.on_chips = config
        self.cache = PagedCache(mesh_device, config, block)
        all_reduce = self.all_reduce(recipe)
        self.attention = {
            i: TtQwenAttention(
                mesh_device, config.layer(i), self.build, config, rotary=self.rotary, all_reduce=all_reduce
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
        cores = self.decode.grid.cores // (self.decode.slots * self.plan.kv_heads)
        joins = (max(1, min(cores, CORES_PER_KV_HEAD)) - 1).bit_length()  # in pairs
        exact = self.plan.exact_decode_attention
        approximate = APPROXIMATE_GAIN if self.config.qkv_bias else APPROXIMATE_GAIN_WITHOUT_BIAS
        once = usual_gain(self.plan.tp) if exact else approximate
        return larger + joins * JOIN_GAIN + once

    def fill(self, i: int, users: Sequence[int], cases: Sequence[Case]) -> None:
        """Write the past of these users' cases of layer i into the cache. The other users have none."""
        past = dict(zip(users, (case.past[0] for case in cases)))
        self.cache.fill([past.get(user) or self.reference.history(i, 0, 0) for user in range(self.decode.slots)])

    def run_decode(self, module, x: torch.Tensor, positions: Sequence[int]) -> list[torch.Tensor]:
        """Run a decode step of attention or a layer. User u's token x[u] stands at positions[u].

        Returns [batch, hidden] of each chip.
        """
        inactive = [INACTIVE] * (self.decode.slots - len(positions))
        values = DecodeInputs.of([], [*positions, *inactive], self.cache.page_table, self.on_chips)
        inputs = values.to_host(self.mesh_device).to_device(self.mesh_device)
        rotation = self.rotary.rotation_decode(inputs.rotary_positions)
        y = module.forward_decode(self.put_users(x), rotation, inputs, self.cache.on_chips)
        assert y.memory_config() == memory_config(self.decode.residual_memory)
        return self.take_rows(y, len(x))

    def run_prompts(self, module, prompts: Sequence[torch.Tensor], users: Sequence[int]) -> list[list[torch.Tensor]]:
        """Prefill prompts [tokens, hidden] side by side in one prefill batch.

        Returns [tokens, hidden] of each chip, for each prompt. Each prompt starts at a row where a block begins.
        """
        padded = [-(-len(x) // self.cache.block) * self.cache.block for x in prompts]
        starts = [sum(padded[:i]) for i in range(len(prompts) + 1)]
        plan = self.prefill_plan(padded_rows(starts[-1]), self.recipe)
        generator = torch.Generator().manual_seed(1)
        rows = 1e2 * torch.randn(plan.rows, prompts[0].shape[1], generator=generator)
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
            key_rows=self.put_ints(prefill_key_rows(positions[None], self.on_chips), ttnn.uint32),
            fill_table=self.put_ints(self.cache.fill_table(blocks, plan.rows), ttnn.int32),
            logits_indices=None,
            window_starts=self.put_ints(windows, ttnn.int32),
        )
        rotation, x = self.rotary.rotation_prefill(inputs.positions), self.put_tokens(rows, plan)
        y = module.forward_prefill(x, rotation, inputs, self.cache.on_chips, plan)
        return self._take_parts(y, plan, [(start, len(x)) for x, start in zip(prompts, starts)])

    def run_chunks(
        self, module, chunks: Sequence[torch.Tensor], users: Sequence[int], start: int, rows_each: int = 0
    ) -> list[list[torch.Tensor]]:
        """Prefill chunks [tokens, hidden] of several users' sequences in one prefill batch.

        Returns [tokens, hidden] of each chip, for each chunk. All chunks begin at position `start`, and the cache
        holds the tokens before it. The batch has a power of two of equal shares of rows: `rows_each`, or the fewest.
        """
        rows_each = rows_each or padded_rows(max(map(len, chunks)))
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
            key_rows=self.put_ints(prefill_key_rows(positions, self.on_chips, sequences), ttnn.uint32),
            fill_table=self.put_ints(fill, ttnn.int32),
            logits_indices=None,
            start=self.put_ints(torch.tensor([start]), ttnn.int32),
            page_table=self.put_ints(pages, ttnn.int32),
            sequences=self.put_ints(torch.arange(sequences), ttnn.int32),
        )
        rotation, x = self.rotary.rotation_prefill(inputs.positions), self.put_tokens(rows, plan)
        y = module.forward_prefill(x, rotation, inputs, self.cache.on_chips, plan)
        return self._take_parts(y, plan, [(i * rows_each, len(x)) for i, x in enumerate(chunks)])

    def _take_parts(self, y: ttnn.Tensor, plan: PrefillPlan, parts: list[tuple[int, int]]) -> list[list[torch.Tensor]]:
        """parts: (first row, rows) of each sequence."""
        assert y.memory_config() == memory_config(plan.residual_memory)
        chips = self.take_rows(y, plan.rows)
        return [[chip[start : start + count] for chip in chips] for start, count in parts]


def newest(kind: type, mesh_device: ttnn.MeshDevice, reference: Reference) -> Callable[..., AttentionBench]:
    """Return world_of(recipe, batch, cores=None), a bench of `kind`. The last one is cached."""
    last = {}

    def world_of(recipe, batch, cores=None):
        key = recipe, batch, cores
        if key not in last:
            last.clear()  # first: L1 has room for one world's buffers beside a prompt's matmuls
            last[key] = kind(mesh_device, reference, recipe, batch=batch, cores=cores)
        return last[key]

    return world_of


def assert_module(
    chips: list[torch.Tensor],
    expected: torch.Tensor,
    *,
    pcc: float,
    in_format: Optional[torch.Tensor] = None,
    gain: Optional[float] = None,
) -> None:
    """Assert that each chip's result is close to Hugging Face's by `pcc`, and has the right scale.

    in_format: Hugging Face's result with weights in the chips' formats. It is the reference for the
    scale, because a format's error may change the scale by chance.
    """
    gain = usual_gain(len(chips)) if gain is None else gain
    right = (expected if in_format is None else in_format).flatten().double()
    for actual in chips:
        assert_close(actual, expected, pcc=pcc)
        scale = float(actual.flatten().double() @ right / right.pow(2).sum())
        assert abs(scale - 1) <= gain, f"the result is {scale:.4f} times what it should be"


def assert_mlp(
    chips: list[torch.Tensor],
    recipe: Recipe,
    expected: torch.Tensor,
    in_format: torch.Tensor,
    *,
    pcc: float,
    gain: Optional[float] = None,
) -> None:
    """Apply assert_module to the result of an MLP, or of a layer with one.

    With gate and up in 4 bits, the only reference is Hugging Face with 4-bit weights.
    KL judges the loss of that format (docs/quantization.md).
    """
    if recipe.mlp_in.format != "bfloat4_b":
        assert_module(chips, expected, in_format=in_format, pcc=pcc, gain=gain)
        return
    gain = usual_gain(len(chips)) if gain is None else gain
    assert_module(chips, in_format, pcc=pcc, gain=gain + LOFI_GAIN)


def usual_gain(chips: int) -> float:
    """Return the allowed relative error in the scale of a sum over `chips` chips."""
    return GAIN_OF_A_ROW.get(chips, GAIN)


def evened(x: torch.Tensor, like: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Divide x [rows, channels] by the RMS of `like` over a dim: large channels or rows count no more than others."""
    return x / like.pow(2).mean(dim, keepdim=True).sqrt()
