"""TtRotary equals Hugging Face's rotary embedding on every head, at many positions."""

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.plans.rotary_pairs import to_interleaved
from models.demos.qwen25_7b.tt.inputs import expand_rotary_positions
from models.demos.qwen25_7b.tt.placement import rectangle, replicate
from models.demos.qwen25_7b.tt.rotary import TtRotary
from tests.pcc.bench import FEW_CORES, Bench, assert_module
from tests.pcc.reference import bf16

PCC = 0.99998


def heads(count, tokens, head_dim, seed):
    """Return random heads [count, tokens, head_dim] in Hugging Face's order."""
    return bf16(torch.randn(count, tokens, head_dim, generator=torch.Generator().manual_seed(seed)))


def some_positions(count, end):
    """Return `count` random positions below `end`. Two or more include the first and the last."""
    generator = torch.Generator().manual_seed(count)
    positions = torch.randint(1, end - 1, (count,), generator=generator)
    positions[-1], positions[0] = end - 1, 0 if count > 1 else end - 1
    return positions[torch.randperm(count, generator=generator)]


@pytest.mark.parametrize("batch, cores", ((1, None), (7, None), (MAX_USERS, None), (MAX_USERS, FEW_CORES)))
def test_decode_rotates_each_user_by_its_position(mesh_device, reference, batch, cores):
    bench = Bench(mesh_device, reference, batch=batch, cores=cores)
    end = bench.config.max_position_embeddings
    rotary = TtRotary(mesh_device, bench.model_config(BFP8, end))
    positions = some_positions(batch, end)
    q = heads(bench.plan.q_heads, batch, bench.config.head_dim, seed=1)
    k = heads(bench.plan.kv_heads, batch, bench.config.head_dim, seed=2)
    k_first_core = batch if bench.decode.fused_qk else 0

    def put(x, first_core):
        grid = bench.decode.grid
        start = ttnn.CoreCoord(first_core % grid.x, first_core // grid.x)
        cores = ttnn.num_cores_to_corerangeset_in_subcoregrids(start, batch, rectangle(grid), row_wise=True)
        layout = ttnn.TensorMemoryLayout.HEIGHT_SHARDED
        spec = ttnn.ShardSpec(cores, (32, bench.config.head_dim), ttnn.ShardOrientation.ROW_MAJOR)
        memory = ttnn.MemoryConfig(layout, ttnn.BufferType.L1, spec)
        users = to_interleaved(x).transpose(0, 1)[None]  # [1, batch, heads, head_dim]
        return replicate(users, mesh_device, memory_config=memory)

    rotation = rotary.rotation_decode(bench.put_ints(expand_rotary_positions(positions, bench.decode), ttnn.uint32))
    rotated = rotary.forward_decode(put(q, 0), put(k, k_first_core), rotation)

    for ours, theirs in zip(rotated, (q, k), strict=True):
        chips = [users.transpose(0, 1) for users in bench.get(ours).float()]  # [heads, batch, head_dim]
        assert_module(chips, to_interleaved(reference.rotate(theirs, positions)), pcc=PCC)


@pytest.mark.parametrize("tokens", (32, 128, 256))
def test_prefill_rotates_each_token_by_its_position(bench, reference, tokens):
    end = bench.config.max_position_embeddings
    rotary = TtRotary(bench.mesh_device, bench.model_config(BFP8, end))
    q = heads(bench.plan.q_heads, tokens, bench.config.head_dim, seed=1)
    k = heads(bench.plan.kv_heads, tokens, bench.config.head_dim, seed=2)
    positions = torch.arange(tokens)

    rotation = rotary.rotation_prefill(bench.put_ints(positions[None], ttnn.uint32))
    on_mesh = (
        replicate(to_interleaved(x)[None], bench.mesh_device, memory_config=ttnn.L1_MEMORY_CONFIG) for x in (q, k)
    )
    rotated = rotary.forward_prefill(*on_mesh, rotation)

    for ours, theirs in zip(rotated, (q, k), strict=True):
        assert_module(list(bench.get(ours).float()), to_interleaved(reference.rotate(theirs, positions)), pcc=PCC)
