"""minimal_matmul, and matrix products fused with a collective."""

import torch

from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.packer import pack
from golden_mesh.arithmetic.product import product
from golden_mesh.goldens.collectives import is_ring, parts_of_sum
from golden_mesh.goldens.matmul import activated, biased, linear
from golden_mesh.registry import collective, golden


@golden("ttnn.experimental.minimal_matmul")
def minimal_matmul(
    input_tensor, weight_tensor, *, bias_tensor=None, fused_activation=None, dtype=None, compute_kernel_config=None
):
    """[..., M, K] @ [..., K, N] + [..., N] -> [..., M, N], then the activation."""
    kernel = Kernel.of(compute_kernel_config, "HiFi2", wide=True)
    result = biased(product(input_tensor, weight_tensor, kernel), bias_tensor, kernel)
    return activated(result, fused_activation, kernel)


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
