"""A PCC test: put inputs on a mesh, run one module of the model, compare with Hugging Face's module.

    bench = Bench(mesh_device, reference)
    mlp = TtQwenMLP(mesh_device, bench.model_config(BFP8).layer(0), bench.build, all_reduce=bench.all_reduce(BFP8))
    assert_module(bench.run(mlp, x), reference.layer(0).mlp(x), pcc=0.999)

- Bench: plans, weights, and tensors to and from the chips.
- AttentionBench: a Bench with a paged cache, for attention alone or in a layer.
- assert_module, assert_mlp: PCC and scale of each chip's result.

tests/pcc/reference.py has Hugging Face's side, tests/pcc/paged_cache.py the cache.
"""

from dataclasses import replace
from itertools import accumulate
from typing import Any, Callable, Optional, Sequence

import torch
import ttnn

from models.demos.qwen25_7b.config import BF16, Recipe
from models.demos.qwen25_7b.engine.prefill_batch import PrefillBatch, PrefillChunk, Prompt, prefill_inputs
from models.demos.qwen25_7b.plans.all_reduce_plan import AllReducePlan
from models.demos.qwen25_7b.plans.blocks import INACTIVE
from models.demos.qwen25_7b.plans.decode_plan import DecodeLayout
from models.demos.qwen25_7b.plans.grids import Grid, ceil_div, padded_rows
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS, ParallelPlan
from models.demos.qwen25_7b.plans.planner import fit_prefill
from models.demos.qwen25_7b.plans.prefill_plan import PrefillPlan
from models.demos.qwen25_7b.tt.attention import CORES_PER_KV_HEAD, TtQwenAttention
from models.demos.qwen25_7b.tt.inputs import DecodeInputs
from models.demos.qwen25_7b.tt.linear import TtAllReduce
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.placement import chip_of, memory_config, replicate, row_topology
from models.demos.qwen25_7b.tt.rotary import TtRotary
from tests.metrics import assert_close
from tests.pcc.paged_cache import PagedCache
from tests.pcc.reference import Case, Reference, attention

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

    def put(self, rows: torch.Tensor, plan: Optional[PrefillPlan] = None) -> ttnn.Tensor:
        """Send users' rows [users, hidden] as [1, 1, 32, hidden] to the residual cores, or by a plan [1, 1, S, hidden].

        Rows after them hold large noise.
        """
        count = plan.rows if plan else MAX_USERS
        padded = 1e3 * torch.randn(1, 1, count, rows.shape[1], generator=torch.Generator().manual_seed(0))
        padded[0, 0, : len(rows)] = rows
        memory = memory_config((plan or self.decode).residual_memory)
        return replicate(padded, self.mesh_device, memory_config=memory)

    def run(self, module, x: torch.Tensor, plan: Optional[PrefillPlan] = None) -> list[torch.Tensor]:
        """Run a decode step of users' rows x [users, hidden], or a prefill by a plan. Return [rows, hidden] by chip."""
        put = self.put(x, plan)
        return self.take_rows(module.forward_prefill(put, plan) if plan else module.forward_decode(put), len(x), plan)

    def put_ints(self, ints: torch.Tensor, dtype: ttnn.DataType) -> ttnn.Tensor:
        """Send token ids, positions or page tables to every chip, row-major."""
        return replicate(ints.int(), self.mesh_device, dtype, ttnn.ROW_MAJOR_LAYOUT)

    def get(self, tensor: ttnn.Tensor, dim: int = 0) -> torch.Tensor:
        """Return the chips' shards side by side along `dim`."""
        composer = ttnn.ConcatMeshToTensor(self.mesh_device, dim=dim)
        return ttnn.to_torch(tensor, mesh_composer=composer)

    def take_rows(self, tensor: ttnn.Tensor, count: int, plan: Optional[PrefillPlan] = None) -> list[torch.Tensor]:
        """Return the first `count` rows [count, width] of each chip's residual stream, and free the tensor."""
        assert tensor.memory_config() == memory_config((plan or self.decode).residual_memory)
        chips = list(self.get(tensor)[:, 0, :count].float())
        ttnn.deallocate(tensor)
        return chips


class AttentionBench(Bench):
    """A bench with attention modules of the tested layers. They share one cache."""

    part = staticmethod(attention)  # of a layer

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
        super().__init__(mesh_device, reference, batch=batch, cores=cores)
        self.recipe, self.on_chips = recipe, self.model_config(recipe, context)
        self.rotary = TtRotary(mesh_device, self.on_chips)
        self.cache = PagedCache(mesh_device, self.on_chips, block)
        self.cache_pcc = 0.9999 if recipe == BF16 else 0.998
        self.modules = self.make_modules()

    def make_modules(self) -> dict[int, Any]:
        """The modules by layer."""
        how = dict(rotary=self.rotary, all_reduce=self.all_reduce(self.recipe))
        device, config = self.mesh_device, self.on_chips
        layers = self.reference.layers
        return {i: TtQwenAttention(device, config.layer(i), self.build, config, **how) for i in layers}

    @property
    def prefill_gain(self) -> float:
        """Allowed relative error in the scale of a prefill's all-reduce."""
        rounded = self.plan.tp > 1 and self.recipe.all_reduce_dtype == "bfloat8_b"
        return usual_gain(self.plan.tp) + (GATHERED_GAIN if rounded else 0)

    @property
    def has_exact_exp(self) -> bool:
        """ttnn's exp of a step is approximate with 16 query heads or fewer; those of one KV head pass as a tile."""
        return self.plan.q_heads > 16 or self.plan.kv_heads == 1

    @property
    def decode_gain(self) -> float:
        """Allowed relative error in the scale of attention in a decode step.

        ttnn's approximate exp (attention.py) needs more. So does its update of an 8-bit cache,
        which enlarges rows. So do the joins of cores that share a KV head.
        """
        larger = UPDATE_GAIN if self.recipe.kv_cache == "bfloat8_b" else 0
        cores = self.decode.grid.cores // (self.decode.slots * self.plan.kv_heads)
        joins = (max(1, min(cores, CORES_PER_KV_HEAD)) - 1).bit_length()  # in pairs
        approximate = APPROXIMATE_GAIN if self.config.qkv_bias else APPROXIMATE_GAIN_WITHOUT_BIAS
        once = usual_gain(self.plan.tp) if self.has_exact_exp else approximate
        return larger + joins * JOIN_GAIN + once

    def step(self, i: int, positions: tuple[int, ...]) -> tuple[Case, list[torch.Tensor]]:
        """Run a decode step of layer i. User u's token stands at positions[u]. What it writes is compared.

        Returns Hugging Face's case, and [batch, hidden] of each chip.
        """
        case, users = self.reference.case(self.recipe, self.part, i, positions), range(len(positions))
        self.cache.fill(users, case.past)
        inactive = [INACTIVE] * (self.decode.slots - len(positions))
        values = DecodeInputs.of([], [*positions, *inactive], self.cache.page_table, self.on_chips)
        inputs = values.to_host(self.mesh_device).to_device(self.mesh_device)
        rotation = self.rotary.rotation_decode(inputs.rotary_positions)
        y = self.modules[i].forward_decode(self.put(case.x), rotation, inputs, self.cache.on_chips)
        chips = self.take_rows(y, len(positions))
        self.cache.assert_wrote(users, positions, case.written, pcc=self.cache_pcc)
        return case, chips

    def prefill(self, i: int, users: Sequence[int], lengths: Sequence[int], start: int = 0, rows_each: int = 0):
        """run_prefill. What it writes is compared."""
        results = self.run_prefill(i, users, lengths, start, rows_each)
        written = [case.written[0] for case, _ in results]
        self.cache.assert_wrote(users, [start] * len(users), written, pcc=self.cache_pcc, to_the_end=True)
        return results

    def run_prefill(
        self, i: int, users: Sequence[int], lengths: Sequence[int], start: int, rows_each: int
    ) -> list[tuple[Case, list[torch.Tensor]]]:
        """Prefill chunks of these users' sequences in one batch of layer i.

        All chunks begin at position `start`, and the cache holds the tokens before it. From 0 on they lie side by side,
        each from a row on where a block begins. Others have equal shares of rows: `rows_each`, or the fewest.
        Returns, for each user, Hugging Face's case, and [tokens, hidden] of each chip.
        """
        cases = [self.reference.case(self.recipe, self.part, i, (start,), n, user) for user, n in zip(users, lengths)]
        self.cache.fill(users, [case.past[0] for case in cases])
        block, sequences = self.cache.block, 1
        sizes = [ceil_div(n, block) * block for n in lengths]
        if start:
            sequences = 1 << (len(users) - 1).bit_length()
            sizes = [rows_each or padded_rows(max(lengths))] * sequences
        plan = self.prefill_plan(padded_rows(sum(sizes)), self.recipe)
        rows = 1e2 * torch.randn(plan.rows, cases[0].x.shape[1], generator=torch.Generator().manual_seed(1))
        chunks, places = [], []
        for user, n, case, first in zip(users, lengths, cases, accumulate(sizes, initial=0)):
            places.append(slice(first, first + n))
            rows[places[-1]] = case.x
            prompt = Prompt(user, [0] * (start + n), start, self.cache.page_table[user].tolist())
            chunks.append(PrefillChunk(prompt, start, start, start + n))
        batch = PrefillBatch(plan.rows, tuple(chunks), chunked=start > 0, sequences=sequences)
        values = prefill_inputs(batch, block, self.on_chips)
        inputs = values.to_host(self.mesh_device).to_device(self.mesh_device)
        rotation = self.rotary.rotation_prefill(inputs.positions)
        y = self.modules[i].forward_prefill(self.put(rows, plan), rotation, inputs, self.cache.on_chips, plan)
        chips = self.take_rows(y, plan.rows, plan)
        return [(case, [chip[place] for chip in chips]) for case, place in zip(cases, places)]


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
