"""What fits a chip: the sums that refuse a model before it is loaded, against what the real allocator gives out.

The whole 7B is allocated, 28 layers with their caches, without a value: weights are meta tensors, and what would be sent to the
device is only allocated there.
"""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import ttnn

from models.common.errors import UserError
from models.demos.qwen25_7b.config import BF16, BFP8, BFP8_KV8, PERFORMANCE, QWEN25_7B, ParallelPlan
from models.demos.qwen25_7b.perf.capture import capture_passes
from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import worker_grid
from models.demos.qwen25_7b.plans.memory_budget import memory_budget
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.tt import placement
from models.demos.qwen25_7b.tt.collectives import TtAllReduce
from models.demos.qwen25_7b.tt.kv_cache import allocate_caches
from models.demos.qwen25_7b.tt.placement import dtype_of
from models.demos.qwen25_7b.tt.rotary import TtRotary
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights import ModelWeights

SEMAPHORES = 10_000  # bytes of L1 that collectives of decode may take, beside L1_SMALL
USERS = 32
LARGEST = {1: 2048, 2: 8192, 4: 16384, 8: 32768}  # tokens a user that tp chips are meant to serve, with an 8-bit cache


class Shapes:
    """A PieceSource of pieces without bytes."""

    def host(self, piece):
        layout = ttnn.TILE_LAYOUT if piece.tiled else ttnn.ROW_MAJOR_LAYOUT
        return [1, 1, *piece.part.shape], dtype_of(piece.format), layout


@contextmanager
def allocating_only(monkeypatch):
    """Inside, tensors sent to a device are allocated there and nothing is computed for them."""

    def from_torch(tensor, *, dtype, layout, mesh_mapper, device=None, memory_config=None):
        shape = list(tensor.shape)
        for extent, dim in mesh_mapper:
            shape[dim] //= extent
        host = shape, dtype, layout
        return host if device is None else to_device(host, device, memory_config=memory_config)

    def to_device(host, device, *, memory_config):
        return ttnn.empty(*host, device, memory_config)

    def split(mesh_device, mesh_shape, dims):
        return [(extent, dim) for extent, dim in zip(mesh_shape, dims) if dim is not None]

    with monkeypatch.context() as patched, torch.device("meta"):
        patched.setattr(ttnn, "from_torch", from_torch)
        patched.setattr(placement, "on_rows", lambda pieces, mesh_device, dim: pieces[0])
        patched.setattr(ttnn, "to_device", to_device)
        patched.setattr(ttnn, "zeros", lambda shape, *args: ttnn.empty(shape, *args))
        patched.setattr(ttnn, "ReplicateTensorToMesh", lambda mesh_device: [])
        patched.setattr(ttnn, "ShardTensor2dMesh", split)
        yield


def allocated(mesh_device) -> int:
    """Bytes of a chip's DRAM that are given out."""
    view = ttnn.get_memory_view(mesh_device, ttnn.BufferType.DRAM)
    return view.num_banks * view.total_bytes_allocated_per_bank


def build(mesh_device, config, recipe, users, tokens, monkeypatch):
    """A model and its caches."""
    plan = ParallelPlan.make(config, mesh_device.get_num_devices())
    with allocating_only(monkeypatch):
        weights = ModelWeights({}, config, plan, Shapes())
        model = TtTransformer(mesh_device, weights, config, plan, recipe, batch=users, max_seq_len=tokens)
        return model, allocate_caches(mesh_device, config, plan, recipe, blocks_for(users, tokens, BLOCK), BLOCK)


def budget_of(config, plan, recipe, users, tokens):
    return memory_budget(config, plan, recipe, tokens, blocks_for(users, tokens, BLOCK))


def test_the_whole_7b_fits_with_the_largest_cache(mesh_device, monkeypatch):
    """32 users x 2048 tokens on one chip, x 8192 on two, x 32768 on eight; a step's logits beside them."""
    tp = mesh_device.get_num_devices()
    tokens, plan = LARGEST[tp], ParallelPlan.make(QWEN25_7B, tp)
    before = allocated(mesh_device)
    built = build(mesh_device, QWEN25_7B, BFP8_KV8, USERS, tokens, monkeypatch)
    budget = budget_of(QWEN25_7B, plan, BFP8_KV8, USERS, tokens)
    assert budget.weights + budget.cache == pytest.approx(allocated(mesh_device) - before, rel=0.005)
    logits = ttnn.empty((1, 1, 32, plan.vocab), ttnn.bfloat16, ttnn.TILE_LAYOUT, mesh_device)
    assert budget.total == pytest.approx(allocated(mesh_device) - before, rel=0.005)
    assert logits and built  # alive until here


FIRST_DIFFERS = replace(BFP8_KV8, name="bfp8-kv8, layer 0 bf16", different=((0, BF16),))


@pytest.mark.parametrize("recipe", [BF16, BFP8, PERFORMANCE, FIRST_DIFFERS], ids=lambda recipe: recipe.name)
def test_the_budget_is_what_layers_take(mesh_device, recipe, monkeypatch):
    config = replace(QWEN25_7B, num_hidden_layers=2)
    plan = ParallelPlan.make(config, mesh_device.get_num_devices())
    before = allocated(mesh_device)
    model, caches = build(mesh_device, config, recipe, 7, 300, monkeypatch)
    budget = budget_of(config, plan, recipe, 7, 300)
    assert budget.weights + budget.cache == pytest.approx(allocated(mesh_device) - before, rel=0.005)
    of_layers = [recipe.of_layer(i) for i in range(2)]
    assert [layer.mlp.down.weight.dtype for layer in model.layers] == [dtype_of(r.mlp_out.format) for r in of_layers]
    assert [layer.attention.o.weight.dtype for layer in model.layers] == [
        dtype_of(r.attention.format) for r in of_layers
    ]
    assert [cache.keys.dtype for cache in caches] == [dtype_of(r.kv_cache) for r in of_layers]


def test_what_does_not_fit_is_refused_before_anything_is_loaded(mesh_device):
    class Unread:
        def tensor(self, name):
            pytest.fail(f"{name} was read")

    before = allocated(mesh_device)
    with pytest.raises(UserError, match=r"weights .* GB \+ cache .* GB \+ activations .* GB"):
        Replica.load(mesh_device, Unread(), QWEN25_7B, BF16, users=32, max_seq_len=32768, traced=False)
    assert allocated(mesh_device) == before


def test_what_stays_in_l1_leaves_prefill_its_room_in_one_piece(mesh_device, host_alone):
    """As the library itself places tensors, without a golden mesh's values: a hole among them would be lost."""
    config, plan = QWEN25_7B, ParallelPlan.make(QWEN25_7B, mesh_device.get_num_devices())
    decode = DecodePlan.make(config, plan, worker_grid(mesh_device), USERS)

    def l1():
        return ttnn.get_memory_view(mesh_device, ttnn.BufferType.L1)

    before = l1()
    with host_alone():
        stays = [
            TtRotary(mesh_device, config, decode, 64),
            *(TtAllReduce(mesh_device, decode, "bfloat16") for _ in range(2)),
        ]
    after = l1()
    taken = after.total_bytes_allocated_per_bank - before.total_bytes_allocated_per_bank
    free = before.largest_contiguous_bytes_free_per_bank
    assert after.largest_contiguous_bytes_free_per_bank >= free - taken, "a hole was made"
    assert after.total_bytes_per_bank - taken - SEMAPHORES >= decode.l1_room, "prefill may take more than there is"
    assert stays


def test_a_pass_of_1024_rows_leaves_the_lm_head_its_room(mesh_device, host_alone):
    """What reduce-scatter keeps of L1 must not lie where the tensors of its pass ended: below them the LM head has no room."""
    with host_alone():
        passes = capture_passes(mesh_device, QWEN25_7B, PERFORMANCE, 1024)
    assert sum(work.rows for work, _ in passes) == 1024
