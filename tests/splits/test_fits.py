"""The memory budget that refuses a model before loading agrees with the real allocator, and the table of a model with
the shards that it builds, in its order.

The whole 7B is allocated, 28 layers of zeros with their caches. On a golden mesh tensors have no values.
"""

import re
from dataclasses import replace
from typing import NamedTuple

import pytest
import ttnn
from qwen25_7b_lab.perf.capture import constant_shard

from models.demos.qwen25_7b.config import BF16, BFP8, BFP8_KV8, PERFORMANCE, QWEN25_7B
from models.demos.qwen25_7b.engine.prefill_batch import Prompt, pack_prompts
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
from models.demos.qwen25_7b.plans.memory_budget import memory_budget, smaller_sizes, weight_bytes
from models.demos.qwen25_7b.plans.slices import WeightShard
from models.demos.qwen25_7b.tt.attention import TtKVCache, allocate_caches
from models.demos.qwen25_7b.tt.linear import TtAllReduce
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.placement import chip_of
from models.demos.qwen25_7b.tt.rotary import TtRotary
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from tests.families import cut, table_of

SEMAPHORES = 10_000  # bytes of L1 that decode's collectives may take, beside L1_SMALL
USERS = 32
LARGEST = {1: 2048, 2: 8192, 4: 16384, 8: 32768}  # tp -> planned tokens a user, with an 8-bit cache


def allocated(mesh_device) -> int:
    """Return the allocated bytes of a chip's DRAM."""
    view = ttnn.get_memory_view(mesh_device, ttnn.BufferType.DRAM)
    return view.num_banks * view.total_bytes_allocated_per_bank


class Built(NamedTuple):
    model: TtTransformer
    caches: list[TtKVCache]
    requested: list[WeightShard]  # by the model, with tensors of the checkpoint
    bytes: int  # of a chip's DRAM, without the caches


@pytest.fixture
def build(mesh_device, host_alone, monkeypatch):
    """build(config, recipe, users, tokens): allocate a model of zeros, which are not sent, and its caches."""

    def to_device(host, device, *, memory_config):
        return ttnn.empty(host.shape, host.dtype, host.layout, device, memory_config)

    def build(config, recipe, users, tokens) -> Built:
        requested, before = [], allocated(mesh_device)

        def zeros(shard: WeightShard) -> ttnn.Tensor:
            requested.append(shard)
            return constant_shard(shard, mesh_device, config.centered_layers)

        with host_alone(), monkeypatch.context() as patched:
            patched.setattr(ttnn, "to_device", to_device)
            patched.setattr(ttnn, "zeros", ttnn.empty)
            model_config = TtModelConfig.make(mesh_device, config, recipe, min_slots=users, max_seq_len=tokens)
            model, taken = TtTransformer(mesh_device, zeros, model_config), allocated(mesh_device) - before
            caches = allocate_caches(mesh_device, model_config, blocks_for(users, tokens, BLOCK), BLOCK)
        return Built(model, caches, [shard for shard in requested if shard.slice.tensors], taken)

    return build


def budget_of(table, users, tokens):
    return memory_budget(table, tokens, blocks_for(users, tokens, BLOCK))


@pytest.fixture
def table_here(mesh_device):
    """table_here(config, recipe): the table of a model on this mesh."""
    return lambda config, recipe: table_of(config, mesh_device.get_num_devices(), recipe, chip_of(mesh_device))


@pytest.mark.galaxy
def test_the_whole_7b_fits_with_the_largest_cache(mesh_device, build, table_here):
    """32 users have 2048 tokens each on one chip, 8192 on two, 32768 on eight.

    The logits of a step are allocated beside the caches.
    """
    tokens, table = LARGEST[mesh_device.get_num_devices()], table_here(QWEN25_7B, BFP8_KV8)
    before = allocated(mesh_device)
    built = build(QWEN25_7B, BFP8_KV8, USERS, tokens)
    budget = budget_of(table, USERS, tokens)
    assert budget.weights + budget.cache == pytest.approx(allocated(mesh_device) - before, rel=0.005)
    logits = ttnn.empty((1, 1, 32, table.parallel.vocab), ttnn.bfloat16, ttnn.TILE_LAYOUT, mesh_device)
    assert budget.total == pytest.approx(allocated(mesh_device) - before, rel=0.005)
    assert logits and built  # alive until here


FIRST_DIFFERS = replace(BFP8_KV8, name="bfp8-kv8, layer 0 bf16", different=((0, BF16),))


@pytest.mark.parametrize("recipe", [BF16, BFP8, PERFORMANCE, FIRST_DIFFERS], ids=lambda recipe: recipe.name)
def test_the_budget_is_what_layers_take(mesh_device, recipe, build, table_here):
    config = replace(QWEN25_7B, num_hidden_layers=2)
    before = allocated(mesh_device)
    model, caches, *_ = build(config, recipe, 7, 300)
    budget = budget_of(table_here(config, recipe), 7, 300)
    assert budget.weights + budget.cache == pytest.approx(allocated(mesh_device) - before, rel=0.005)
    for i, layer, cache in zip(range(2), model.layers, caches, strict=True):
        its, held = recipe.of_layer(i), (layer.mlp.down.weight, layer.attention.o.weight, cache.keys)
        formats = its.mlp_out.format, its.attention.format, its.kv_cache
        assert [tensor.dtype for tensor in held] == [getattr(ttnn, name) for name in formats]


def test_a_model_that_does_not_fit_is_refused_before_anything_is_loaded(mesh_device):
    class Unread:
        def tensor(self, name):
            pytest.fail(f"{name} was read")

    before = allocated(mesh_device)
    with pytest.raises(UserError, match=r"weights .* GB \+ cache .* GB \+ activations .* GB"):
        Replica.load(mesh_device, Unread(), QWEN25_7B, BF16, users=32, max_seq_len=32768, traced=False)
    assert allocated(mesh_device) == before


@pytest.mark.parametrize(
    "users, tokens, room, sizes",
    [(32, 16384, 12e9, 2), (1, 32768, 5.5e9, 1), (32, 1024, 4e9, 0)],
    ids=["fewer users or a shorter context", "one user", "weights that do not fit"],
)
def test_a_refusal_names_the_largest_sizes_that_fit(users, tokens, room, sizes):
    table = table_of(QWEN25_7B, 2)
    text = smaller_sizes(table, users, tokens, BLOCK, room)
    found = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) users of (\d+) tokens", text)]
    assert len(found) == sizes
    for fitting in found:
        larger = [value + (value != most) for value, most in zip(fitting, (users, tokens))]
        assert budget_of(table, *fitting).total <= room
        assert budget_of(table, *larger).total > room


def test_persistent_l1_buffers_leave_prefill_one_contiguous_range(mesh_device, host_alone):
    """The library alone places the tensors, without golden values. A hole would be lost."""
    config = TtModelConfig.make(mesh_device, QWEN25_7B, BFP8, min_slots=USERS, max_seq_len=64)

    def l1():
        return ttnn.get_memory_view(mesh_device, ttnn.BufferType.L1)

    before = l1()
    with host_alone():
        stays = [TtRotary(mesh_device, config), *(TtAllReduce(mesh_device, config) for _ in range(2))]
    after = l1()
    taken = after.total_bytes_allocated_per_bank - before.total_bytes_allocated_per_bank
    free = before.largest_contiguous_bytes_free_per_bank
    assert after.largest_contiguous_bytes_free_per_bank >= free - taken, "a hole was made"
    assert after.total_bytes_per_bank - taken - SEMAPHORES >= config.decode.layer_l1, (
        "prefill may take more than there is"
    )
    assert stays


@pytest.mark.make_test_on("N150", "N300", "N150x4", "T3K", "T3K-tp4")
@pytest.mark.parametrize("recipe", [BFP8, PERFORMANCE], ids=lambda recipe: recipe.name)
def test_a_prefill_of_1024_rows_fits_l1(mesh_device, recipe, build, host_alone):
    """Buffers of matmuls clash neither with tensors above a hole nor with L1 that reduce-scatter keeps."""
    config, tokens = replace(QWEN25_7B, num_hidden_layers=2), 1024
    model, caches, *_ = build(config, recipe, 1, tokens)
    with host_alone():
        replica = Replica(model, caches, traced=False, users=1)
        batches = pack_prompts([Prompt(0, range(tokens), 0, range(replica.blocks))], model.max_prefill_rows, BLOCK)
        for batch in batches:
            replica.prefill(batch)
        replica.close()
    assert sum(batch.rows for batch in batches) == tokens


# The 7B's dims, with fewer layers and a smaller vocabulary.
# Joining, padding and sharding are the 7B's.
CONFIG = cut("7B", layers=2, vocab_size=33_000)
FAMILIES = {size: cut(size, layers=2, vocab_size=33_000) for size in ("Qwen3-8B", "Llama-3.1-8B")}
CONTEXT, SPARE = 64, 10_000


# The first layer has another recipe.
MIXED = replace(PERFORMANCE, name="mixed", different=((0, BF16),))


@pytest.mark.make_test_on("N150", "N300", "N150x4", "T3K")  # as its shorter rows
@pytest.mark.parametrize(
    "model, recipe",
    [
        *(pytest.param(CONFIG, recipe, id=recipe.name) for recipe in (BF16, BFP8, MIXED)),
        *(pytest.param(config, BFP8, id=name) for name, config in FAMILIES.items()),
    ],
)
def test_a_model_requests_its_table_and_a_layer_takes_the_planned_bytes(table_here, model, recipe, build):
    """A bias that a plan forgets, or counts without need, is more than SPARE."""
    tables = [table_here(replace(model, num_hidden_layers=layers), recipe) for layers in (1, 2)]
    one, two = (build(table.dims, recipe, 1, CONTEXT) for table in tables)
    assert two.requested == tables[1].shards
    planned = [weight_bytes(table, CONTEXT) for table in tables]
    assert abs(planned[1] - planned[0] - (two.bytes - one.bytes)) < SPARE
