"""Sparse products, and products that are fused with a collective."""

from types import SimpleNamespace

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from golden_mesh.registry import GOLDENS
from goldens.support import EXACT, assert_close, assert_same

ROW_MAJOR = dict(layout=ttnn.ROW_MAJOR_LAYOUT)


def draw(*shape):
    return torch.randn(shape).bfloat16().float()


def sparse(chips, a, b, sparsity, **options):
    program = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=ttnn.CoreCoord(2, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1,
        out_block_h=1, out_block_w=1, per_core_M=1, per_core_N=1, fuse_batch=False, fused_activation=None,
        mcast_in0=True,
    )  # fmt: skip
    return ttnn.sparse_matmul(
        chips.put(a), chips.put(b), sparsity=chips.put(sparsity, **ROW_MAJOR), program_config=program,
        compute_kernel_config=EXACT, **options,
    )  # fmt: skip


SPARSITY = torch.tensor([[1.0, 0, 0.5, 0], [0, 2, 0, 1]])


@pytest.mark.parametrize("nnz", (None, 4))
def test_every_row_block_meets_its_groups(chips, nnz):
    a, b = draw(1, 2, 32, 64), draw(1, 4, 64, 64)
    got = sparse(chips, a, b, SPARSITY.view(1, 2, 1, 4), nnz=nnz)
    want = torch.einsum("xbmk,egkn->xbegmn", a.double(), b.double())
    want = want * (SPARSITY != 0).view(1, 2, 1, 4, 1, 1)
    assert_close(got, want)


def test_each_group_has_its_rows(chips):
    a, b = draw(2, 4, 32, 64), draw(1, 4, 64, 64)
    options = dict(is_input_a_sparse=True, is_input_b_sparse=False)
    got = sparse(chips, a, b, SPARSITY.view(1, 1, 2, 4), **options)
    want = (a.double() @ b.double()) * (SPARSITY != 0).view(2, 4, 1, 1)
    assert_close(got, want)


def test_a_count_other_than_the_sparsitys_is_refused(chips):
    """A chip would hang."""
    a, b = draw(1, 2, 32, 64), draw(1, 4, 64, 64)
    with pytest.raises(GoldenError, match="nnz=3: 4 of sparsity"):
        sparse(chips, a, b, SPARSITY.view(1, 2, 1, 4), nnz=3)


def test_groups_by_their_numbers(chips):
    a, b = draw(1, 1, 32, 64), draw(1, 4, 64, 64)
    chosen = chips.put(torch.tensor([[2, 0]]).int(), ttnn.uint16, **ROW_MAJOR)
    got = sparse(chips, a, b, torch.ones(1, 1, 1, 4), indices=chosen)
    want = torch.stack([a[0, 0].double() @ b[0, g].double() for g in (2, 0)])
    assert_close([g.reshape(2, 32, 64) for g in chips.get(got)], want)


def semaphores(chips, count):
    grid = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(7, 6))})
    return [ttnn.create_global_semaphore(chips.device, grid, 0) for _ in range(count)]


def multicast(columns: int):
    return ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=ttnn.CoreCoord(8, 4), in0_block_w=2, out_subblock_h=1, out_subblock_w=1,
        per_core_M=1, per_core_N=columns // 32 // 8, transpose_mcast=False, fused_activation=None, fuse_batch=False,
    )  # fmt: skip


def test_all_gather_matmul():
    """Of four chips, without a device: the library refuses the op on a ring of two chips."""
    x, w = [draw(1, 1, 64, 32) for _ in range(4)], [draw(1, 1, 128, 96) for _ in range(4)]
    op = GOLDENS["ttnn.experimental.all_gather_matmul_async"].function
    of_inputs = dict.fromkeys(("input_tensor", "weight_tensor"), ttnn.bfloat16)
    out = (SimpleNamespace(dtype=ttnn.bfloat16),) * 2
    found = op(
        x, w, dim=3, activation="relu", compute_kernel_config=EXACT, dtypes=of_inputs, out=out
    )
    joined = torch.cat(x, 3)
    assert_same([gathered for gathered, _ in found], [joined] * 4)
    assert_close([y for _, y in found], [(joined @ weight).relu() for weight in w], steps=2)


def test_matmul_reduce_scatter(chips, several_chips):
    columns = 256 * chips.count
    x, w = chips.draw(1, 1, 128, 64), chips.draw(1, 1, 64, columns)
    empty = [torch.zeros(1, 1, 128, n) for n in (columns, 256)]
    whole, got = ttnn.experimental.matmul_reduce_scatter_async(
        chips.put(x), chips.put(w), *map(chips.put, empty), dim=3,
        multi_device_global_semaphore=semaphores(chips, 3), reduce_scatter_core_grid_offset=ttnn.CoreCoord(0, 4),
        topology=ttnn.Topology.Linear, num_links=1, program_config=multicast(columns), compute_kernel_config=EXACT,
    )  # fmt: skip
    products = [a @ b for a, b in zip(x, w)]
    assert_close(whole, products)
    assert_close(got, list(sum(products).chunk(chips.count, 3)), steps=3)


def test_a_product_is_split_along_its_last_dimension(chips):
    x, weight = draw(1, 1, 64, 64), draw(1, 1, 64, 192)
    put = [chips.put(v) for v in (x, weight)]
    got = ttnn.experimental.minimal_matmul_split(*put, chunks=3, compute_kernel_config=EXACT)
    for tensor, want in zip(got, (x.double() @ weight.double()).chunk(3, -1), strict=True):
        assert_close(tensor, want)


def test_a_product_is_scaled_and_added(chips):
    x, weight, base, gate = draw(64, 64), draw(64, 64), draw(64, 64), draw(1, 64)
    got = ttnn.experimental.dit_minimal_matmul_addcmul_fused(
        chips.put(x), chips.put(weight), 2.0, chips.put(base), chips.put(gate), compute_kernel_config=EXACT
    )  # fmt: skip
    want = base.double() + 2 * (x.double() @ weight.double()) * gate.double()
    assert_close(got, want)


def test_all_gather_minimal_matmul():
    """Of four chips, without a device: each has a quarter of the columns of x and a weight of its own."""
    golden = GOLDENS["ttnn.experimental.all_gather_minimal_matmul_async"].function
    x, weights = draw(32, 128), [draw(128, 64) for _ in range(4)]
    base, gate = [draw(32, 64)] * 4, [draw(1, 64)] * 4
    parts = [part.contiguous() for part in x.chunk(4, -1)]
    plain = golden(parts, weights, chunks=2, compute_kernel_config=EXACT)
    added = golden(
        parts, weights, scalar=0.5, addcmul_input_tensor1=base, addcmul_input_tensor2=gate,
        compute_kernel_config=EXACT,
    )  # fmt: skip
    for weight, halves, (sums,) in zip(weights, plain, added, strict=True):
        want = x.double() @ weight.double()
        assert_close([torch.cat(halves, -1)], [want], ttnn.float32)
        assert_close([sums], [base[0].double() + 0.5 * want * gate[0].double()], ttnn.float32)
