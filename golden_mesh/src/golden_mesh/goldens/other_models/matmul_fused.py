"""minimal_matmul, and matrix products fused with a collective."""

import torch

from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.packer import pack
from golden_mesh.arithmetic.product import product
from golden_mesh.goldens.collectives import is_ring, parts_of_sum
from golden_mesh.goldens.matmul import activated, biased, linear
from golden_mesh.registry import collective, golden


@golden("ttnn.experimental.minimal_matmul")
def minimal_matmul(input_tensor, weight_tensor, bias_tensor, compute_kernel_config, fused_activation=None):
    """[..., M, K] @ [..., K, N] + [..., N] -> [..., M, N], then the activation."""
    kernel = Kernel.of(compute_kernel_config, "HiFi2", wide=True)
    result = biased(product(input_tensor, weight_tensor, kernel), bias_tensor, kernel)
    return activated(result, fused_activation, kernel)


@golden("ttnn.experimental.minimal_matmul_split", passes=minimal_matmul)
def minimal_matmul_split(chunks, dim, **others):
    """minimal_matmul, cut along its last dimension."""
    return minimal_matmul(**others).chunk(chunks, dim)


@golden("ttnn.experimental.dit_minimal_matmul_addcmul_fused")
def dit_minimal_matmul_addcmul_fused(
    matmul_input_tensor, matmul_weight_tensor, scalar, addcmul_input_tensor1, addcmul_input_tensor2, bias_tensor,
    compute_kernel_config,
):  # fmt: skip
    """tensor1 + scalar * minimal_matmul * tensor2"""
    result = minimal_matmul(matmul_input_tensor, matmul_weight_tensor, bias_tensor, compute_kernel_config)
    return addcmul_input_tensor1.float() + scalar * result * addcmul_input_tensor2.float()


@collective("ttnn.experimental.all_gather_minimal_matmul_async", passes=minimal_matmul)
def all_gather_minimal_matmul_async(
    input_tensor, weight_tensor, bias_tensor, scalar, addcmul_input_tensor1, addcmul_input_tensor2, chunks, dim,
    **others,
):  # fmt: skip
    """All chips' inputs [..., M, K / chips] joined, by each chip's weight [..., K, N], cut along the last dimension.

    With a scalar: tensor1 + scalar * product * tensor2.
    """
    gathered, results = torch.cat(input_tensor, -1), []
    for chip, weight in enumerate(weight_tensor):
        result = minimal_matmul(gathered, weight, None if bias_tensor is None else bias_tensor[chip], **others)
        if scalar is not None:
            added, factor = addcmul_input_tensor1[chip], addcmul_input_tensor2[chip]
            result = added.float() + scalar * result * factor.float()
        results.append(result.chunk(chunks, dim))
    return results


@collective("ttnn.experimental.all_gather_matmul_async", passes=linear)
def all_gather_matmul_async(input_tensor, weight_tensor, dim, bias, dtypes, out, **how):
    """All chips' inputs joined along dim, and the product of that with each chip's weight."""
    gathered = torch.cat(input_tensor, dim)
    products = _products([gathered] * len(input_tensor), weight_tensor, bias, dtypes, out[1], how)
    return [(gathered, result) for result in products]


@collective("ttnn.experimental.matmul_reduce_scatter_async", passes=linear)
def matmul_reduce_scatter_async(input_tensor, weight_tensor, dim, bias, dtypes, out, topology=None, **how):
    """Each chip's product, and each chip's part along dim of the sum of all products."""
    products = _products(input_tensor, weight_tensor, bias, dtypes, out[0], how)
    packed = [pack(result, out[0].dtype) for result in products]
    return list(zip(packed, parts_of_sum(packed, dim, is_ring(topology, len(packed)))))


def _products(inputs, weights, biases, dtypes, out, how: dict) -> list[torch.Tensor]:
    """Each chip's linear."""
    dtypes = {"input_tensor_a": dtypes["input_tensor"], "input_tensor_b": dtypes["weight_tensor"]}
    biases = biases or [None] * len(inputs)
    return [
        linear(a, b, bias, configs=None, chip=None, dtypes=dtypes, out=out, **how)
        for a, b, bias in zip(inputs, weights, biases, strict=True)
    ]


@golden("ttnn.dram_prefetcher", ignores="tensors num_layers")
def dram_prefetcher(out):
    """Send weights to the cores that multiply. The result has no meaning: a product reads the weight itself."""
    return torch.zeros(out.shape)
