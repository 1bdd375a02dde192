"""A decode matmul of the 7B gives one result at every width of its blocks of x: within a core's shard, and over
several.

Columns share no sums, so one tile of columns for each reader of a DRAM bank stands for all. The plans have all columns.
"""

from dataclasses import replace
from itertools import product

import pytest
import torch
import ttnn

from golden_mesh import exact_sums
from models.demos.qwen25_7b.config import BFP8, PERFORMANCE, QWEN25_7B
from models.demos.qwen25_7b.plans.chip import BLACKHOLE, WORMHOLE
from models.demos.qwen25_7b.plans.decode_plan import DecodeMatmul
from models.demos.qwen25_7b.plans.grids import TILE, width_sharded
from models.demos.qwen25_7b.plans.parallel_plan import SPLITS
from models.demos.qwen25_7b.tt.linear import compute_config, decode_program
from models.demos.qwen25_7b.tt.placement import chip_of, dram_width_sharded, memory_config, replicate
from tests.families import table_of
from tests.metrics import assert_close
from tests.pcc.bench import assert_module


def matmuls():
    """Where each x and format is multiplied: architecture, [(tp, recipe, name)]. A device plans for its own grid."""
    found = {}
    for chip, tp, recipe in product((WORMHOLE, BLACKHOLE), SPLITS, (BFP8, PERFORMANCE)):
        for name, plan in table_of(QWEN25_7B, tp, recipe, chip).decode_matmuls.items():
            key = chip.architecture, plan.k_tiles, plan.in_cores, plan.weight
            found.setdefault(key, []).append((tp, recipe, name))
    names = lambda uses: ", ".join(dict.fromkeys(f"tp {tp} {name}" for tp, _, name in uses))
    return [pytest.param(key[0], uses, id=names(uses)) for key, uses in found.items()]


def operands(mesh_device, plan: DecodeMatmul) -> tuple[ttnn.Tensor, ttnn.Tensor]:
    """Random x and weight, as the plan has them."""
    chip, rows, columns = plan.chip, TILE * plan.k_tiles, TILE * plan.n_tiles
    torch.manual_seed(0)
    memory = dram_width_sharded(mesh_device, rows, plan.bank_shard * TILE)
    values = torch.randn(1, 1, rows, columns) * rows**-0.5
    weight = replicate(values, mesh_device, getattr(ttnn, plan.weight), memory_config=memory)
    x_memory = memory_config(width_sharded(rows, chip.grid, plan.in_cores))
    return replicate(torch.randn(1, 1, TILE, rows), mesh_device, memory_config=x_memory), weight


@pytest.mark.chips(1)
@pytest.mark.parametrize("architecture, uses", matmuls())
def test_every_width_of_a_block_gives_one_result(mesh_device, architecture, uses):
    chip = chip_of(mesh_device)
    if chip.architecture != architecture:
        pytest.skip("plans of another architecture")
    plan, *others = (table_of(QWEN25_7B, tp, recipe, chip).decode_matmuls[name] for tp, recipe, name in uses)
    widths = {width for other in (plan, *others) if other.in_cores == plan.in_cores for width in other.widths}
    n_tiles = chip.banks * chip.readers_per_bank
    put, weight = operands(mesh_device, replace(plan, n_tiles=n_tiles))
    exact = ttnn.to_torch(put).double() @ ttnn.to_torch(weight).double()

    def result(width: int) -> torch.Tensor:
        block = replace(plan, n_tiles=n_tiles, per_core_n=1, in0_block_w=width)
        how = dict(program_config=decode_program(block), memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG)
        how |= dict(dtype=ttnn.float32, compute_kernel_config=compute_config())
        return ttnn.to_torch(ttnn.linear(put, weight, **how))

    with exact_sums():  # on a golden mesh: block by block, as the kernel adds them
        first, *others = map(result, sorted(widths))
    assert_module([first], exact.float(), pcc=0.99999, gain=1e-3)
    for other in others:
        assert (other - first).norm() < 1e-6 * first.norm(), "only the order of float32 sums may differ"


@pytest.mark.few_cores
@pytest.mark.chips(1)
def test_a_result_of_few_cores_is_that_of_the_columns_that_readers_stream(mesh_device):
    """Of 72 tiles a core holds nine, and five are a reader's, were the last bank's second reader not without any."""
    chip = chip_of(mesh_device)
    plan = DecodeMatmul(8, 72, 8, 1, 9, "bfloat8_b", chip)
    put, weight = operands(mesh_device, plan)
    how = dict(program_config=decode_program(plan), memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG)
    y = ttnn.linear(put, weight, **how, compute_kernel_config=compute_config())
    exact = ttnn.to_torch(put).float() @ ttnn.to_torch(weight).float()
    assert_close(ttnn.to_torch(y), exact, pcc=0.9999)
