"""Matrix products: linear, matmul, minimal_matmul, sparse_matmul, and products fused with a collective."""

import torch
import ttnn

from golden_mesh.arithmetic import engine
from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.packer import pack
from golden_mesh.arithmetic.product import block_of_grid, product
from golden_mesh.errors import GoldenError
from golden_mesh.goldens.activations import activate
from golden_mesh.goldens.collectives import is_ring, parts_of_sum
from golden_mesh.registry import collective, golden

_BLOCK_FLOATS = (ttnn.bfloat8_b, ttnn.bfloat4_b)


def _kernel(config, dtypes, first: str, second: str, out, configured: bool) -> Kernel:
    """The op's default kernel in ttnn 0.81.1.

    HiFi3 for two float32 operands. LoFi for two block floats, and with a core grid or a program config. Else
    HiFi2. Dest holds float32 if the first operand or the result is float32.
    """
    a, b = dtypes[first], dtypes[second]
    if a == b == ttnn.float32:
        fidelity = "HiFi3"
    else:
        fidelity = "LoFi" if configured or (a in _BLOCK_FLOATS and b in _BLOCK_FLOATS) else "HiFi2"
    return Kernel.of(config, fidelity, wide=ttnn.float32 in (a, out.dtype))


def _biased(result, bias, kernel: Kernel):
    """Add the bias to the packed sum. The bias has one row for all rows, or a row for each. The result has its rank."""
    if bias is None:
        return result
    rows = bias.reshape(-1, bias.shape[-1])[: result.shape[-2]]
    rows = rows.reshape((1,) * (bias.dim() - 2) + rows.shape)
    return engine.add_in_float32_dest(result, rows) if kernel.wide else engine.add(result, rows)


def _activated(result: torch.Tensor, activation, kernel: Kernel) -> torch.Tensor:
    """Apply an activation to dest."""
    if activation is None:
        return result
    return activate(result if kernel.wide else result.bfloat16(), activation)


def _in_dram(config) -> bool:
    return config.buffer_type == ttnn.BufferType.DRAM and not config.is_sharded()


@golden("ttnn.linear")
def linear(
    input_tensor_a,
    input_tensor_b,
    *,
    bias=None,
    transpose_a=False,
    transpose_b=False,
    dtype=None,
    program_config=None,
    core_grid=None,
    activation=None,
    compute_kernel_config=None,
    output_tile=None,
    global_cb=None,
    prefetcher_pipes=None,
    configs=None,
    dtypes,
    out,
):
    """[..., M, K] @ [..., K, N] + [..., 1 or M, N] -> [..., M, N], then the activation.

    An activation in the program config works on dest. `activation` is a separate op on the rounded result.
    """
    a = input_tensor_a.transpose(-1, -2) if transpose_a else input_tensor_a
    b = input_tensor_b.transpose(-1, -2) if transpose_b else input_tensor_b
    configured = core_grid is not None or program_config is not None
    kernel = _kernel(compute_kernel_config, dtypes, "input_tensor_a", "input_tensor_b", out, configured)
    block = getattr(program_config, "in0_block_w", None)
    in_dram = configs and all(map(_in_dram, configs.values()))
    if in_dram and not configured and out.buffer_type == ttnn.BufferType.DRAM:
        block = block_of_grid(a.shape[-2], a.shape[-1], b.shape[-1])
    result = product(a, b, kernel, block=block, biased=bias is not None)
    result = _biased(result, bias, kernel)
    result = _activated(result, getattr(program_config, "fused_activation", None), kernel)
    if activation in (None, ""):
        return result
    packed = result if out.dtype == ttnn.float32 else engine.to_bfloat16(result).bfloat16()
    return activate(packed, activation)


@golden("ttnn.matmul")
def matmul(
    input_tensor_a,
    input_tensor_b,
    *,
    transpose_a=False,
    transpose_b=False,
    dtype=None,
    program_config=None,
    core_grid=None,
    activation=None,
    compute_kernel_config=None,
    output_tile=None,
    global_cb=None,
    prefetcher_pipes=None,
    configs=None,
    dtypes,
    out,
):
    """[..., M, K] @ [..., K, N] -> [..., M, N], then the activation."""
    return linear(
        input_tensor_a,
        input_tensor_b,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        program_config=program_config,
        core_grid=core_grid,
        activation=activation,
        compute_kernel_config=compute_kernel_config,
        configs=configs,
        dtypes=dtypes,
        out=out,
    )


@golden("ttnn.experimental.minimal_matmul")
def minimal_matmul(
    input_tensor, weight_tensor, *, bias_tensor=None, fused_activation=None, dtype=None, compute_kernel_config=None
):
    """[..., M, K] @ [..., K, N] + [..., N] -> [..., M, N], then the activation."""
    kernel = Kernel.of(compute_kernel_config, "HiFi2", wide=True)
    result = _biased(product(input_tensor, weight_tensor, kernel), bias_tensor, kernel)
    return _activated(result, fused_activation, kernel)


@golden("ttnn.experimental.minimal_matmul_split")
def minimal_matmul_split(
    input_tensor,
    weight_tensor,
    *,
    chunks=3,
    dim=-1,
    bias_tensor=None,
    fused_activation=None,
    dtype=None,
    compute_kernel_config=None,
):
    """minimal_matmul, cut along its last dimension."""
    result = minimal_matmul(
        input_tensor,
        weight_tensor,
        bias_tensor=bias_tensor,
        fused_activation=fused_activation,
        compute_kernel_config=compute_kernel_config,
    )
    return result.chunk(chunks, dim)


@golden("ttnn.experimental.dit_minimal_matmul_addcmul_fused")
def dit_minimal_matmul_addcmul_fused(
    matmul_input_tensor,
    matmul_weight_tensor,
    scalar,
    addcmul_input_tensor1,
    addcmul_input_tensor2,
    bias_tensor=None,
    *,
    dtype=None,
    compute_kernel_config=None,
):
    """tensor1 + scalar * minimal_matmul * tensor2"""
    result = minimal_matmul(
        matmul_input_tensor, matmul_weight_tensor, bias_tensor=bias_tensor, compute_kernel_config=compute_kernel_config
    )
    return addcmul_input_tensor1.float() + scalar * result * addcmul_input_tensor2.float()


@collective("ttnn.experimental.all_gather_minimal_matmul_async")
def all_gather_minimal_matmul_async(
    input_tensor,
    weight_tensor,
    *,
    bias_tensor=None,
    scalar=None,
    addcmul_input_tensor1=None,
    addcmul_input_tensor2=None,
    fused_activation=None,
    dtype=None,
    compute_kernel_config=None,
    cluster_axis=None,
    force_transpose=True,
    chunks=1,
    dim=-1,
):
    """All chips' inputs [..., M, K / chips] joined, by each chip's weight [..., K, N], cut along the last dimension.

    With a scalar: tensor1 + scalar * product * tensor2.
    """
    gathered, results = torch.cat(input_tensor, -1), []
    for chip, weight in enumerate(weight_tensor):
        result = minimal_matmul(
            gathered,
            weight,
            bias_tensor=None if bias_tensor is None else bias_tensor[chip],
            fused_activation=fused_activation,
            compute_kernel_config=compute_kernel_config,
        )
        if scalar is not None:
            added, factor = addcmul_input_tensor1[chip], addcmul_input_tensor2[chip]
            result = added.float() + scalar * result * factor.float()
        results.append(result.chunk(chunks, dim))
    return results


@golden("ttnn.addmm")
def addmm(
    input_tensor,
    mat1_tensor,
    mat2_tensor,
    *,
    alpha=1.0,
    beta=1.0,
    dtype=None,
    program_config=None,
    core_grid=None,
    compute_kernel_config=None,
    output_tile=None,
    dtypes,
    out,
):
    """beta * input + alpha * mat1 @ mat2: a product, rounded, and the sum."""
    configured = core_grid is not None or program_config is not None
    kernel = _kernel(compute_kernel_config, dtypes, "mat1_tensor", "mat2_tensor", out, configured)
    result = product(mat1_tensor, mat2_tensor, kernel, block=getattr(program_config, "in0_block_w", None))
    result = result if out.dtype == ttnn.float32 else engine.to_bfloat16(result)
    return beta * input_tensor.float() + alpha * result


@golden("ttnn.sparse_matmul")
def sparse_matmul(
    input_tensor_a,
    input_tensor_b,
    *,
    sparsity,
    program_config=None,
    nnz=None,
    is_input_a_sparse=False,
    is_input_b_sparse=True,
    dtype=None,
    compute_kernel_config=None,
    core_grid=None,
    output_tile=None,
    global_cb=None,
    indices=None,
    bias=None,
    dtypes,
    out,
):
    """Products of pairs with nonzero sparsity. The results of the other pairs are zeros. b is [1, E, K, N].

    With a sparse: a [A, E, M, K], sparsity [1, 1, A, E] -> [A, E, M, N].
    Else: a [A, B, M, K], sparsity [A, B, 1, E] -> [A, B, 1, E, M, N]. `indices` [n] names groups to compute
    instead.
    An output tensor of [1, nnz, M, N] holds only the active pairs.
    """
    names = ("input_tensor_a", "input_tensor_b")
    kernel = _kernel(compute_kernel_config, dtypes, *names, out, configured=True)
    groups = input_tensor_b[0]
    if indices is not None:
        pairs = [(batch, g) for batch in _flat_batches(input_tensor_a) for g in indices.flatten()]
        found = [_group(batch, groups[int(g)], kernel, bias, int(g)) for batch, g in pairs]
        return torch.stack(found).reshape(out.shape)
    active = sparsity.flatten() != 0
    if nnz is not None and nnz != int(active.sum()):
        raise GoldenError(
            f"ttnn.sparse_matmul with nnz={nnz}: {int(active.sum())} of sparsity are not zero, and a chip hangs"
        )
    count, found = len(groups), []
    for pair in active.nonzero().flatten().tolist():
        rows = _flat_batches(input_tensor_a)[pair if is_input_a_sparse else pair // count]
        found.append(product(rows, groups[pair % count], kernel))
    extent = input_tensor_a.shape[-2], input_tensor_b.shape[-1]
    packed = torch.stack(found) if found else torch.zeros(0, *extent)
    if nnz is not None and tuple(out.shape) == (1, nnz, *extent):
        return packed[None]
    result = torch.zeros(len(active), *extent)
    result[active] = packed
    return result.reshape(out.shape)


def _flat_batches(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(0, -3)


def _group(rows, group, kernel: Kernel, bias, index: int) -> torch.Tensor:
    return _biased(product(rows, group, kernel), None if bias is None else bias[index, :1], kernel)


@collective("ttnn.experimental.all_gather_matmul_async")
def all_gather_matmul_async(
    input_tensor,
    weight_tensor,
    persistent_output_buffer=None,
    dim=None,
    multi_device_global_semaphore=None,
    all_gather_core_grid_offset=None,
    *,
    bias=None,
    transpose_a=False,
    transpose_b=False,
    dtype=None,
    program_config=None,
    activation=None,
    compute_kernel_config=None,
    core_grid=None,
    dtypes,
    out,
):
    """All chips' inputs joined along dim, and the product of that with each chip's weight."""
    gathered = torch.cat(input_tensor, dim)
    how = dict(transpose_a=transpose_a, transpose_b=transpose_b, program_config=program_config)
    how |= dict(activation=activation, compute_kernel_config=compute_kernel_config)
    products = _products([gathered] * len(input_tensor), weight_tensor, bias, core_grid, dtypes, out[1], how)
    return [(gathered, result) for result in products]


@collective("ttnn.experimental.matmul_reduce_scatter_async")
def matmul_reduce_scatter_async(
    input_tensor,
    weight_tensor,
    persistent_intermediate_buffer=None,
    persistent_output_buffer=None,
    dim=None,
    multi_device_global_semaphore=None,
    reduce_scatter_core_grid_offset=None,
    *,
    bias=None,
    transpose_a=False,
    transpose_b=False,
    dtype=None,
    program_config=None,
    activation=None,
    compute_kernel_config=None,
    core_grid=None,
    topology=None,
    dtypes,
    out,
):
    """Each chip's product, and each chip's part along dim of the sum of all products."""
    how = dict(transpose_a=transpose_a, transpose_b=transpose_b, program_config=program_config)
    how |= dict(activation=activation, compute_kernel_config=compute_kernel_config)
    products = _products(input_tensor, weight_tensor, bias, core_grid, dtypes, out[0], how)
    packed = [pack(result, out[0].dtype) for result in products]
    return list(zip(packed, parts_of_sum(packed, dim, is_ring(topology, len(packed)))))


def _products(inputs, weights, biases, core_grid, dtypes, out, how: dict) -> list[torch.Tensor]:
    """Each chip's linear."""
    dtypes = {"input_tensor_a": dtypes["input_tensor"], "input_tensor_b": dtypes["weight_tensor"]}
    biases = biases or [None] * len(inputs)
    return [
        linear(a, b, bias=bias, core_grid=core_grid, dtypes=dtypes, out=out, **how)
        for a, b, bias in zip(inputs, weights, biases, strict=True)
    ]


@golden("ttnn.dram_prefetcher")
def dram_prefetcher(tensors, num_layers, global_cb=None, *, enable_performance_mode=False, prefetcher_pipes=None, out):
    """Send weights to the cores that multiply.

    The result has no meaning: a product's golden reads the weight itself.
    """
    return torch.zeros(out.shape)
