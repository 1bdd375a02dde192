"""Matrix products: linear, matmul, minimal_matmul."""

import torch

from models.common.golden_mesh.goldens.activations import activate
from models.common.golden_mesh.registry import golden


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [..., M, K] @ b [..., K, N] in float32.

    A weight (b without batch) is widened to float32 a few rows at a time: a product with few rows of `a` spends its
    time on that, rows lie together in memory, and the piece stays in the processor's cache. On processors without
    bfloat16 arithmetic torch's own bfloat16 product takes several times as long.
    """
    if b.dtype == torch.float32 or b.numel() != b.shape[-2] * b.shape[-1]:
        return torch.matmul(a.float(), b.float())
    rows = a.reshape(-1, a.shape[-1]).float()
    weight = b.reshape(b.shape[-2:])
    inner, columns = weight.shape
    step = min(inner, max(64, len(rows)))
    piece = torch.empty(step, columns)
    total = torch.zeros(len(rows), columns)
    for start in range(0, inner, step):
        part = weight[start : start + step]
        total.addmm_(rows[:, start : start + step], piece[: len(part)].copy_(part))
    batch = max(a.shape[:-2], b.shape[:-2], key=len)  # b's batch is all ones, and may have the higher rank
    return total.reshape(*batch[: len(batch) - a.dim() + 2], *a.shape[:-1], columns)


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
    activation=None,
    output_tile=None,
):
    """[..., M, K] @ [..., K, N] + [..., 1 or M, N] -> [..., M, N], then the activation."""
    a = input_tensor_a.transpose(-1, -2) if transpose_a else input_tensor_a
    b = input_tensor_b.transpose(-1, -2) if transpose_b else input_tensor_b
    result = product(a, b)
    if bias is not None:
        result = result + bias.float().reshape(-1, bias.shape[-1])[: result.shape[-2]]
    result = activate(result, getattr(program_config, "fused_activation", None))
    return activate(result, activation)


@golden("ttnn.matmul")
def matmul(
    input_tensor_a,
    input_tensor_b,
    *,
    transpose_a=False,
    transpose_b=False,
    dtype=None,
    program_config=None,
    activation=None,
    output_tile=None,
):
    """[..., M, K] @ [..., K, N] -> [..., M, N], then the activation."""
    return linear(
        input_tensor_a,
        input_tensor_b,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        program_config=program_config,
        activation=activation,
    )


@golden("ttnn.experimental.minimal_matmul")
def minimal_matmul(input_tensor, weight_tensor, *, bias_tensor=None, fused_activation=None, dtype=None):
    """[..., M, K] @ [..., K, N] + [..., N] -> [..., M, N], then the activation."""
    return linear(input_tensor, weight_tensor, bias=bias_tensor, activation=fused_activation)
