"""Products: what they mean (tests/test_vectors.py: how chips compute them), also sparse ones and
those fused with a collective.
"""

from types import SimpleNamespace

import pytest
import torch
import ttnn

from golden_mesh import exact_sums
from golden_mesh.arithmetic import aligned
from golden_mesh.errors import GoldenError
from golden_mesh.goldens.matmul_blocks import Choice
from golden_mesh.mesh.buffers import Chip
from golden_mesh.registry import GOLDENS
from goldens.support import ROW_MAJOR, Put, assert_close, assert_same, bf16, dram_sharded, examples, kernel, sharded

E, HOW = ttnn.experimental, dict(compute_kernel_config=kernel())
SILU = ttnn.UnaryWithParam(ttnn.UnaryOpType.SILU)
X, W, ODD, ODD_W = (1, 1, 32, 64), (1, 1, 64, 64), (1, 1, 33, 64), (1, 1, 64, 45)
BATCH, SQUARE = (2, 3, 33, 64), (64, 64)
TWO, THREE = {"steps": 2}, {"steps": 3}


def in_one_row(columns: int, **options):
    """Of a product of one row of tiles, a column of tiles a core."""
    return ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=(columns, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1, per_core_M=1,
        per_core_N=1, mcast_in0=True, **options,
    )  # fmt: skip


ACTIVATED = in_one_row(4, fuse_batch=True, fused_activation=SILU)


SILU_IN_DEST = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
    compute_with_storage_grid_size=(2, 6), in0_block_w=2, out_subblock_h=1, out_subblock_w=1, per_core_M=1,
    per_core_N=1, transpose_mcast=False, fused_activation=SILU,
)  # fmt: skip


def bias(*shape: int):
    """Large: its rounding would show."""
    return Put(lambda: 50 * bf16(*shape))


EXAMPLES = {
    # The bias is added before rounding.
    "ttnn.linear(x, y, bias=z, **HOW)  # [45]": ("x @ y + z", ODD, ODD_W, bias(45), TWO),
    "ttnn.linear(x, y, bias=z, **HOW)  # [1, 45]": ("x @ y + z", ODD, ODD_W, bias(1, 45), TWO),
    "ttnn.linear(x, y, bias=z, **HOW)  # [1, 1, 1, 45]": ("x @ y + z", ODD, ODD_W, (1, 1, 1, 45), TWO),
    "ttnn.linear(x, y, bias=z, **HOW)  # a row for each": ("x @ y + z", X, W, (1, 1, 32, 64), TWO),
    "ttnn.linear(x, y, bias=z, activation=SILU, **HOW)": ("F.silu(x @ y + z)", X, W, (1, 64), THREE),
    "ttnn.linear(x, y, program_config=ACTIVATED, **HOW)": ("F.silu(x @ y)", X, (1, 1, 64, 128)),
    "ttnn.linear(x, y, transpose_b=True, **HOW)": ("x @ y.mT", ODD, (1, 1, 96, 64)),
    # A float32 result is not rounded to bfloat16.
    "ttnn.linear(x, y, dtype=ttnn.float32, **HOW)": ("x @ y", (1, 1, 32, 70), (1, 1, 70, 96), {"to": ttnn.float32}),
    "ttnn.matmul(x, y, activation='silu', **HOW)": ("F.silu(x @ y)", X, (1, 1, 64, 96), TWO),
    "E.minimal_matmul(x, y, bias_tensor=z, fused_activation=None, **HOW)":
        ("x @ y + z", (1, 1, 64, 96), (1, 1, 96, 128), (1, 1, 1, 128), TWO),
    "E.minimal_matmul(x, y, bias_tensor=z, fused_activation=SILU, **HOW)":
        ("F.silu(x @ y + z)", (1, 1, 64, 96), (1, 1, 96, 128), (1, 1, 1, 128), TWO),
    "E.minimal_matmul_split(x, y, chunks=3, **HOW)": ("(x @ y).chunk(3, -1)", W, (1, 1, 64, 192)),
    "E.dit_minimal_matmul_addcmul_fused(x, y, 2.0, z, u, **HOW)":
        ("z + 2 * (x @ y) * u", SQUARE, SQUARE, SQUARE, (1, 64)),
    "ttnn.addmm(x, y, z, alpha=0.5, beta=-2.0, **HOW)":
        ("torch.addmm(x, y, z, alpha=0.5, beta=-2)", (32, 96), (32, 64), (64, 96), {"error": 4e-3}),
}  # fmt: skip
# The kernel adds a bias of one tile of rows, to dest. ttnn.add adds any other, to the packed product.
THREE_TIMES, ON_CORES = (1, 3, 64, 64), HOW | dict(core_grid=ttnn.CoreGrid(x=2, y=2))
for b, shapes in (
    (W, ((1, 1, 64, 64), (64, 64), (1, 3, 1, 64), (1, 3, 64, 1), (1, 1, 1, 1))),
    (THREE_TIMES, ((64,), (1, 1, 1, 64), (1, 3, 1, 64), (1, 3, 64, 64), (1, 1, 64, 64))),
):
    for shape in shapes:
        call = f"ttnn.linear(x, y, bias=z, **HOW)  # {list(b)} and {list(shape)}"
        EXAMPLES[call] = "x @ y + z", THREE_TIMES, b, bias(*shape), TWO
for shape in ((1, 64), (64, 64), (1, 3, 1, 64)):
    call = f"ttnn.linear(x, y, bias=z, activation='silu', **ON_CORES)  # {list(shape)}"
    EXAMPLES[call] = "F.silu(x @ y + z)", THREE_TIMES, W, shape, THREE
for shape, order in (
    ((1, 64), "F.silu(x @ y + z)"),
    ((64, 64), "F.silu(x @ y) + z"),
    ((1, 3, 1, 64), "F.silu(x @ y) + z"),
):
    call = f"ttnn.linear(x, y, bias=z, program_config=SILU_IN_DEST, **HOW)  # {list(shape)}"
    EXAMPLES[call] = order, THREE_TIMES, W, bias(*shape), THREE
for rows in (1, 33):
    for inner, columns in ((70, 45), (200, 96)):
        call, b = f"ttnn.linear(x, y, **HOW)  # {rows} rows of {inner}", (1, 1, inner, columns)
        EXAMPLES[call] = "x @ y", (1, 1, rows, inner), b
for turn_a in (False, True):
    for turn_b in (False, True):
        call = f"ttnn.matmul(x, y, transpose_a={turn_a}, transpose_b={turn_b}, **HOW)"
        a, x = ("x.mT", (2, 3, 64, 33)) if turn_a else ("x", BATCH)
        b, y = ("y.mT", (2, 3, 40, 64)) if turn_b else ("y", (2, 3, 64, 40))
        EXAMPLES[call] = f"{a} @ {b}", x, y
for a in ((70, 64), (3, 33, 64), BATCH):
    for b in ((64, 40), (1, 1, 64, 40)):
        inputs = (Put(lambda shape=shape: bf16(*shape)) for shape in (a, b))
        EXAMPLES[f"ttnn.matmul(x, y, **HOW)  # {a} by {b}"] = "x @ y", *inputs
test_examples = examples(EXAMPLES, globals())


# An interleaved bias alone comes out to the bit: the operands are zeros.
@pytest.mark.parametrize("bias_is_sharded, scale, error", ((True, 1, None), (False, 1, None), (False, 0, 0)))
def test_dram_sharded_linear_with_a_bias_of_one_tile_a_bank(chips, bias_is_sharded, scale, error):
    """The decode matmul: operands in shards, a bias of 32 rows of which the first one counts."""
    place = lambda rows: dram_sharded(chips.device, rows, 384)
    program = ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
        in0_block_w=2, per_core_M=1, per_core_N=3, fused_activation=None
    )
    how = dict(program_config=program, memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG, **HOW)
    chips.check(
        lambda x, w, b: ttnn.linear(x, w, bias=b, **how),
        lambda x, w, b: x @ w + b,
        Put(lambda: scale * bf16(1, 1, 32, 256), memory_config=sharded("WIDTH", (32, 64), 4)),
        Put(lambda: scale * bf16(1, 1, 256, 384), memory_config=place(256)),
        Put((1, 1, 1, 384), memory_config=place(32) if bias_is_sharded else None), steps=2, error=error,
    )  # fmt: skip


def decode_matmul(chips, in0_block_w: int):
    """x on four cores, four tiles each, by a weight in DRAM with 384 columns."""
    inner = 4 * 32 * 4
    program = ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
        in0_block_w=in0_block_w, per_core_M=1, per_core_N=3, fused_activation=None
    )
    torch.manual_seed(0)
    x, weight = bf16(1, 1, 32, inner), bf16(1, 1, inner, 384)
    operands = (
        Put(x, memory_config=sharded("WIDTH", (32, 128), 4)),
        Put(weight, memory_config=dram_sharded(chips.device, inner, 384)),
    )
    how = dict(program_config=program, memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG)
    how |= dict(dtype=ttnn.float32, compute_kernel_config=kernel("HiFi3", l1_acc=True))
    with exact_sums():
        result = ttnn.linear(*map(chips.put_input, operands), **how)
    return x[0], weight[0], ttnn.to_torch(ttnn.get_device_tensors(result)[0])[0]


@pytest.mark.parametrize("tiles", [1, 2, 4, 8, 16])  # a shard of x has four
def test_a_decode_matmul_adds_blocks_of_k(chips, tiles):
    """A block is a part of a shard, or several shards. Float32 sums of other blocks differ in their last bits only."""
    x, weight, result = decode_matmul(chips, tiles)
    *blocks, last = zip(x.float().split(32 * tiles, -1), weight.float().split(32 * tiles, -2))
    in_l1 = sum((aligned.product(*block, 3) for block in blocks), torch.zeros_like(result))
    assert torch.equal(result, aligned.product(*last, 3, in_l1))
    other = decode_matmul(chips, 4)[2]
    assert torch.equal(result, other) == (tiles == 4)
    assert (result - other).norm() < 1e-6 * other.norm()


DRAM, L1 = ttnn.DRAM_MEMORY_CONFIG, ttnn.L1_MEMORY_CONFIG
BY_HEIGHT, BY_WIDTH = (getattr(ttnn, f"L1_{name}_SHARDED_MEMORY_CONFIG") for name in ("HEIGHT", "WIDTH"))
# Tiles of a's rows, of K and of b's columns; memory of a and of the result; core grid -> blocks of a Wormhole, a
# Blackhole. From the names and arguments of the kernels that ttnn 0.81.1 compiles for a mock N150 and P150.
BLOCKS = [
    (4, 16, 8, DRAM, DRAM, None, 2, 1),
    (4, 64, 32, DRAM, DRAM, None, 8, 1),
    (4, 3, 8, DRAM, DRAM, None, 1, 1),
    (1, 64, 8, DRAM, DRAM, None, 2, 2),
    (4, 16, 8, DRAM, L1, None, 16, 16),
    (4, 16, 32, DRAM, L1, None, 2, 2),
    (16, 16, 128, DRAM, L1, None, 2, 2),
    (4, 5, 32, L1, L1, None, 1, 1),
    (4, 16, 8, DRAM, BY_WIDTH, None, 2, 2),
    (4, 16, 8, sharded("HEIGHT", (32, 512), 4), BY_HEIGHT, None, 16, 16),
    (4, 16, 8, sharded("WIDTH", (128, 64), 8), BY_WIDTH, None, 2, 2),
    (4, 16, 8, sharded("WIDTH", (128, 128), 4), BY_WIDTH, None, 4, 4),
    (4, 16, 8, DRAM, DRAM, (8, 4), 4, 4),
    (4, 5, 8, DRAM, DRAM, (8, 4), 1, 1),
    (4, 64, 1, DRAM, DRAM, (8, 4), 2, 2),
]


@pytest.mark.parametrize("m, k, n, a, out, grid, wormhole, blackhole", BLOCKS)
def test_blocks_of_k_without_a_program_config_are_the_librarys(m, k, n, a, out, grid, wormhole, blackhole):
    grid = grid and ttnn.CoreGrid(x=grid[0], y=grid[1])
    sizes = (2048,) * 3
    chips = Chip(8, 8, 1_393_312), Chip(11, 10, 1_393_312)
    found = [Choice(m, k, n, 1, 1, a, DRAM, out, sizes, chip).block(grid) for chip in chips]
    assert found == [wormhole, blackhole]


SPARSITY = torch.tensor([[1.0, 0, 0.5, 0], [0, 2, 0, 1]])
SHOWN = (SPARSITY != 0).double()
SPARSE = HOW | dict(program_config=in_one_row(2, fuse_batch=False, fused_activation=None))
A_SPARSE = SPARSE | dict(is_input_a_sparse=True, is_input_b_sparse=False)
BY_ROW, BY_GROUP, ALL = (
    Put(values, layout=ROW_MAJOR)
    for values in (SPARSITY.view(1, 2, 1, 4), SPARSITY.view(1, 1, 2, 4), torch.ones(1, 1, 1, 4))
)
PAIRS = "torch.einsum('xbmk,egkn->xbegmn', x, y) * SHOWN.view(1, 2, 1, 4, 1, 1)"
GROUPS = (1, 4, 64, 64)
SPARSE_EXAMPLES = {
    "ttnn.sparse_matmul(x, y, sparsity=z, nnz=None, **SPARSE)": (PAIRS, (1, 2, 32, 64), GROUPS, BY_ROW),
    "ttnn.sparse_matmul(x, y, sparsity=z, nnz=4, **SPARSE)": (PAIRS, (1, 2, 32, 64), GROUPS, BY_ROW),
    "ttnn.sparse_matmul(x, y, sparsity=z, **A_SPARSE)":
        ("x @ y * SHOWN.view(2, 4, 1, 1)", (2, 4, 32, 64), GROUPS, BY_GROUP),
    "ttnn.reshape(ttnn.sparse_matmul(x, y, sparsity=z, indices=u, **SPARSE), (2, 32, 64))": (
        "x[0] @ y[0, [2, 0]]", (1, 1, 32, 64), GROUPS, ALL,
        Put(torch.tensor([[2, 0]]), ttnn.uint16, ROW_MAJOR),
    ),
}  # fmt: skip
test_sparse = examples(SPARSE_EXAMPLES, globals())


def test_a_count_other_than_the_sparsitys_is_refused(chips):
    """A chip would hang."""
    x, groups, sparsity = map(chips.put_input, ((1, 2, 32, 64), GROUPS, BY_ROW))
    with pytest.raises(GoldenError, match="nnz=3: 4 of sparsity"):
        ttnn.sparse_matmul(x, groups, sparsity=sparsity, nnz=3, **SPARSE)


def test_all_gather_matmul():
    """Of four chips, without a device: the library refuses the op on a ring of two chips."""
    x, w = [bf16(1, 1, 64, 32) for _ in range(4)], [bf16(1, 1, 128, 96) for _ in range(4)]
    op = GOLDENS["ttnn.experimental.all_gather_matmul_async"].function
    of_inputs = dict.fromkeys(("input_tensor", "weight_tensor"), ttnn.bfloat16)
    out = (SimpleNamespace(dtype=ttnn.bfloat16),) * 2
    rest = dict.fromkeys(("bias", "transpose_a", "transpose_b", "program_config", "core_grid"))
    found = op(x, w, dim=3, activation="relu", dtypes=of_inputs, out=out, **rest, **HOW)
    joined = torch.cat(x, 3)
    assert_same([gathered for gathered, _ in found], [joined] * 4)
    assert_close([y for _, y in found], [(joined @ weight).relu() for weight in w], steps=2)


def test_all_gather_minimal_matmul():
    """Of four chips, without a device: each has a quarter of x's columns and its own weight."""
    golden = GOLDENS["ttnn.experimental.all_gather_minimal_matmul_async"].function
    x, weights = bf16(32, 128), [bf16(128, 64) for _ in range(4)]
    base, gate = bf16(32, 64), bf16(1, 64)
    parts = [part.contiguous() for part in x.chunk(4, -1)]
    plain = golden(parts, weights, None, None, None, None, chunks=2, dim=-1, **HOW)
    added = golden(parts, weights, None, 0.5, [base] * 4, [gate] * 4, chunks=1, dim=-1, **HOW)
    for weight, halves, (sums,) in zip(weights, plain, added, strict=True):
        want = x.double() @ weight.double()
        assert_close([torch.cat(halves, -1)], [want], ttnn.float32)
        assert_close([sums], [base.double() + 0.5 * want * gate.double()], ttnn.float32)


def test_matmul_reduce_scatter(chips, several_chips):
    columns = 256 * chips.count
    x, w = chips.draw(1, 1, 128, 64), chips.draw(1, 1, 64, columns)
    program = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=(8, 4), in0_block_w=2, out_subblock_h=1, out_subblock_w=1, per_core_M=1,
        per_core_N=chips.count, transpose_mcast=False, fused_activation=None, fuse_batch=False,
    )  # fmt: skip
    whole, got = E.matmul_reduce_scatter_async(
        *map(chips.put, (x, w, torch.zeros(1, 1, 128, columns), torch.zeros(1, 1, 128, 256))), dim=3,
        multi_device_global_semaphore=chips.semaphores(3), reduce_scatter_core_grid_offset=ttnn.CoreCoord(0, 4),
        topology=ttnn.Topology.Linear, num_links=1, program_config=program, **HOW,
    )  # fmt: skip
    products = [a @ b for a, b in zip(x, w)]
    assert_close(whole, products)
    assert_close(got, list(sum(products).chunk(chips.count, 3)), steps=3)
