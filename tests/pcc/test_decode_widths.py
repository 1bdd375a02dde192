"""A decode matmul gives one result at every width of its blocks of x: within a core's shard, and over several shards."""

from dataclasses import replace

import pytest
import ttnn

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.plans.decode_plan import MATMUL_L1
from models.demos.qwen25_7b.plans.grids import divisors
from models.demos.qwen25_7b.tt.layouts import decode_program
from models.demos.qwen25_7b.tt.linear import TtLinear
from tests.pcc.bench import assert_module


@pytest.mark.make_test_on("N300", "T3K")
def test_every_width_of_a_block_gives_the_projection(mesh_device, bench):
    cores, weight = bench.decode.residual.cores, bench.weights.attention(0).qkv
    grid, head_dim = bench.decode.grid.cores, bench.config.head_dim
    how = dict(group=BFP8.attention, in_cores=cores, out_cores=grid, head_dim=head_dim)
    linear = TtLinear(mesh_device, weight, **how)
    x = bench.reference.normed(0, 32)
    plan, results = linear.decode_matmul, {}
    shard = plan.k_tiles // plan.in_cores
    for width in divisors(plan.k_tiles):
        block = replace(plan, in0_block_w=width)
        if (shard % width and width % shard) or block.l1_bytes > MATMUL_L1:
            continue
        linear.decode_program = decode_program(block)
        put = bench.put_users(x)
        results[width] = bench.take_rows(linear.forward_decode(put), 32)
        ttnn.deallocate(put)
    assert len(results) > 2 and plan.in0_block_w in results
    first, *others = results.values()
    for chips in others:
        for one, other in zip(first, chips, strict=True):
            assert_module([other], one, pcc=0.99999, gain=2e-4)
