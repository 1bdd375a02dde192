"""Matrix products: linear, matmul, minimal_matmul."""

import ttnn

from models.common.golden_mesh.arithmetic import engine
from models.common.golden_mesh.arithmetic.kernel import Kernel
from models.common.golden_mesh.arithmetic.product import product
from models.common.golden_mesh.goldens.activations import activate
from models.common.golden_mesh.registry import golden

_BLOCK_FLOATS = (ttnn.bfloat8_b, ttnn.bfloat4_b)


def _kernel(config, dtypes, first: str, second: str, out, chosen: bool) -> Kernel:
    """ttnn 0.81.1's choice: HiFi3 for two float32 operands, LoFi for a bfloat8_b one times a block float, LoFi too
    where a core grid or a program config is given, else HiFi2; a float32 dest for a float32 first operand or result."""
    a, b = dtypes[first], dtypes[second]
    if a == b == ttnn.float32:
        fidelity = "HiFi3"
    else:
        fidelity = "LoFi" if chosen or (a in _BLOCK_FLOATS and b in _BLOCK_FLOATS) else "HiFi2"
    return Kernel.of(config, fidelity, wide=ttnn.float32 in (a, out.dtype))


def _biased(result, bias, kernel: Kernel):
    """The bias is added by the engine, to what it unpacks of the packed sum. Its first row counts for all rows, unless
    there is one for each."""
    if bias is None:
        return result
    rows = bias.reshape(-1, bias.shape[-1])[: result.shape[-2]]
    return engine.add_in_float32_dest(result, rows) if kernel.wide else engine.add(result, rows)


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
    dtypes,
    out,
):
    """[..., M, K] @ [..., K, N] + [..., 1 or M, N] -> [..., M, N], then the activation.

    An activation in the program config works on dest; one given by itself is an op of its own on the rounded result.
    """
    a = input_tensor_a.transpose(-1, -2) if transpose_a else input_tensor_a
    b = input_tensor_b.transpose(-1, -2) if transpose_b else input_tensor_b
    chosen = core_grid is not None or program_config is not None
    kernel = _kernel(compute_kernel_config, dtypes, "input_tensor_a", "input_tensor_b", out, chosen)
    result = _biased(product(a, b, kernel, block=getattr(program_config, "in0_block_w", None)), bias, kernel)
    result = activate(result, getattr(program_config, "fused_activation", None))
    if activation in (None, ""):
        return result
    return activate(result if out.dtype == ttnn.float32 else engine.to_bfloat16(result), activation)


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
        dtypes=dtypes,
        out=out,
    )


@golden("ttnn.experimental.minimal_matmul")
def minimal_matmul(
    input_tensor,
    weight_tensor,
    *,
    bias_tensor=None,
    fused_activation=None,
    dtype=None,
    compute_kernel_config=None,
):
    """[..., M, K] @ [..., K, N] + [..., N] -> [..., M, N], then the activation."""
    kernel = Kernel.of(compute_kernel_config, "HiFi2", wide=True)
    result = _biased(product(input_tensor, weight_tensor, kernel), bias_tensor, kernel)
    return activate(result, fused_activation)


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
    chosen = core_grid is not None or program_config is not None
    kernel = _kernel(compute_kernel_config, dtypes, "mat1_tensor", "mat2_tensor", out, chosen)
    result = product(mat1_tensor, mat2_tensor, kernel, block=getattr(program_config, "in0_block_w", None))
    result = result if out.dtype == ttnn.float32 else engine.to_bfloat16(result)
    return beta * input_tensor.float() + alpha * result
