"""Matrix products: linear, matmul, addmm, sparse_matmul."""

from dataclasses import replace

import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic import engine
from golden_mesh.arithmetic.kernel import Kernel, finest
from golden_mesh.arithmetic.packer import BLOCK_FLOATS, pack
from golden_mesh.arithmetic.product import product
from golden_mesh.errors import GoldenError
from golden_mesh.goldens.activations import activate
from golden_mesh.goldens.eltwise_binary import compute
from golden_mesh.goldens.matmul_blocks import Choice
from golden_mesh.hazards import meet
from golden_mesh.registry import golden


def _kernel(config, dtypes, first: str, second: str, out, configured: bool) -> Kernel:
    """The op's default kernel in ttnn 0.81.1.

    HiFi3 for two float32 operands (on a Blackhole HiFi4). LoFi for two block floats, and with a core grid or a
    program config. Else HiFi2. Dest holds float32 if the result is float32.
    """
    a, b = dtypes[first], dtypes[second]
    if a == b == ttnn.float32:
        fidelity = finest()
    else:
        fidelity = "LoFi" if configured or (a in BLOCK_FLOATS and b in BLOCK_FLOATS) else "HiFi2"
    kernel = Kernel.of(config, fidelity, wide=out.dtype == ttnn.float32)
    waits_packed = out.dtype in BLOCK_FLOATS and not kernel.wide and not kernel.in_l1
    return replace(kernel, spills=out.dtype) if waits_packed else kernel


def biased(result, bias, kernel: Kernel):
    """Add the bias to the packed sum. The bias has one row for all rows, or a row for each."""
    if bias is None:
        return result
    rows = bias if bias.dim() == 1 else bias[..., : result.shape[-2], :]
    if rows.dtype == torch.float32 and not kernel.wide:
        rows = engine.keep(rows, engine.BFLOAT16)
    return engine.add_in_dest(result, rows, kernel)


def activated(result: torch.Tensor, activation, kernel: Kernel) -> torch.Tensor:
    """Apply an activation to dest."""
    if activation in (None, ""):
        return result
    return activate(result if kernel.wide else result.bfloat16(), activation)


def _adds_in_dest(bias, b, program_config, core_grid, configs) -> bool:
    """Whether the product's kernel adds the bias. Else ttnn.add does, to the packed product."""
    if bias.dim() > 1 and bias.shape[-2] > ttnn.TILE_SIZE or bias.shape[-1] != b.shape[-1]:
        return False
    if bias.shape[:-2].numel() > 1 or b.shape[:-2].numel() > 1:
        return False
    if program_config is not None or core_grid is not None or not configs:
        return True
    a, b, out = (configs[name] for name in ("input_tensor_a", "input_tensor_b", "out"))
    in_dram = all(each.buffer_type == ttnn.BufferType.DRAM and not each.is_sharded() for each in (a, b, out))
    return in_dram or (out.buffer_type == ttnn.BufferType.DRAM and a.is_sharded())


def _block(a, b, kernel: Kernel, formats, configs, chip, program_config=None, core_grid=None) -> int | None:
    """Tiles of the inner dim that dest sums: the program config's, or the library's choice.

    formats: of a, b and the result, and of a bias that the kernel adds. configs: memory configs of a, b and the result.
    """
    if program_config is not None or chip is None or 0 in (*a.shape, *b.shape):
        return getattr(program_config, "in0_block_w", None)
    m, k, n = (-(-size // ttnn.TILE_SIZE) for size in (*a.shape[-2:], b.shape[-1]))
    batches = a.shape[:-2].numel(), b.shape[:-2].numel()
    of_a, of_b, of_result, *of_bias = (ttnn.Tile((32, 32)).get_tile_size(dtype) for dtype in formats)
    of_sums = ttnn.Tile((32, 32)).get_tile_size(ttnn.float32 if kernel.wide else ttnn.bfloat16)
    return Choice(m, k, n, *batches, *configs, (of_a, of_b, max(of_sums, of_result), *of_bias), chip).block(core_grid)


def _transposed(a: torch.Tensor, dtypes) -> torch.Tensor:
    """By ttnn.transpose, which packs block floats. The product's kernel transposes b itself."""
    dtype = dtypes["input_tensor_a"]
    return pack(a.mT, dtype) if dtype in BLOCK_FLOATS else a.mT


def _stacked(tensors: list[torch.Tensor], rank: int) -> torch.Tensor:
    """Return [chips, ..., rows, N] of tensors of this rank or less."""
    return torch.stack([x.reshape((1,) * (rank - x.dim()) + x.shape) for x in tensors])


@golden("ttnn.linear", "ttnn.matmul", lists="input_tensor_a input_tensor_b bias", codes="input_tensor_b")
def linear(
    input_tensor_a, input_tensor_b, bias, transpose_a, transpose_b, program_config, core_grid, activation,
    compute_kernel_config, configs, chip, dtypes, out,
):  # fmt: skip
    """[..., M, K] @ [..., K, N] + bias -> [..., M, N], then the activation. A vector [K] has no row or no column.

    - An activation in the program config works on dest. With a core grid `activation` does, too. Else it is an op.
    - ttnn.add adds a bias that the kernel does not: after an activation in the program config, before `activation`.
    """
    chips = isinstance(input_tensor_b, list)
    pairs = list(zip(input_tensor_a, input_tensor_b)) if chips else [(input_tensor_a, input_tensor_b)]
    pairs = [(_transposed(a, dtypes) if transpose_a else a, b.mT if transpose_b else b) for a, b in pairs]
    vectors = [side.dim() == 1 for side in pairs[0]]
    if any(vectors):
        pairs = [(a[None] if vectors[0] else a, b[:, None] if vectors[1] else b) for a, b in pairs]
    (a, b), one_bias = pairs[0], bias[0] if chips and bias is not None else bias
    configured = core_grid is not None or program_config is not None
    kernel = _kernel(compute_kernel_config, dtypes, "input_tensor_a", "input_tensor_b", out, configured)
    in_dest = bias is not None and _adds_in_dest(one_bias, b, program_config, core_grid, configs)
    names = ["input_tensor_a", "input_tensor_b"]
    formats = [*map(dtypes.get, names), out.dtype, *([dtypes["bias"]] if in_dest else ())]
    memory = configs and [configs[name] for name in (*names, "out")]
    block = _block(a, b, kernel, formats, memory, chip, program_config, core_grid)
    products = [product(a, b, kernel, block=block, biased=in_dest) for a, b in pairs]
    if any(vectors) and not in_dest:
        products = [result.squeeze([dim for dim, vector in zip((-2, -1), vectors) if vector]) for result in products]
    if chips:
        rank = max(result.dim() for result in (products[0], *(bias or ())))
        products = [_stacked(products, rank)]
        bias = bias and _stacked(bias, rank)
    (result,) = products
    more_rows = (1, *out.shape)[-2] - result.shape[-2] if in_dest and not vectors[1] else 0
    if more_rows:
        meet("bias of more rows than the product", "ttnn.linear", f"bias {list(bias.shape)} for {list(result.shape)}")
        result = F.pad(result, (0, 0, 0, more_rows))  # x's padding is taken for zeros
    one_block = not kernel.wide and a.shape[-1] <= (block or 0) * ttnn.TILE_SIZE
    if in_dest and out.dtype in BLOCK_FLOATS and (kernel.spills or one_block):
        result = pack(result, out.dtype).float()  # a sum that is not added to one in L1 waits in the result's format
    result = biased(result, bias if in_dest else None, kernel)
    if any(vectors) and in_dest:
        result = result.reshape(*result.shape[:chips], *out.shape)
    at_once = getattr(program_config, "fused_activation", None)
    if core_grid is not None and (in_dest or bias is None):
        at_once, activation = activation, None
    result = activated(result, at_once, kernel)
    if bias is not None and not in_dest:
        if at_once not in (None, ""):
            meet("bias after a fused activation", "ttnn.linear", f"bias {list(bias.shape)} for {list(out.shape)}")
        formats = {"a": out.dtype, "b": dtypes["bias"]}
        result = compute(torch.add, pack(result, out.dtype), bias, out.dtype, formats)
    return result if activation in (None, "") else activate(pack(result, out.dtype), activation)


@golden("ttnn.addmm")
def addmm(
    input_tensor, mat1_tensor, mat2_tensor, alpha, beta, program_config, core_grid, compute_kernel_config,
    configs, chip, dtypes, out,
):  # fmt: skip
    """beta * input + alpha * mat1 @ mat2: a product, then ttnn's multiply and add, each packed."""
    names = ["mat1_tensor", "mat2_tensor"]
    configured = core_grid is not None or program_config is not None
    kernel = _kernel(compute_kernel_config, dtypes, *names, out, configured)
    memory = configs and [configs[name] for name in (*names, "out")]
    formats = [*map(dtypes.get, names), out.dtype]
    block = _block(mat1_tensor, mat2_tensor, kernel, formats, memory, chip, program_config, core_grid)
    result = pack(product(mat1_tensor, mat2_tensor, kernel, block=block), out.dtype)
    added, dtype = input_tensor, dtypes["input_tensor"]
    if alpha != 1:
        result = pack(_times(result, alpha, out.dtype), out.dtype)
    if beta == 0:
        return result
    if beta != 1:
        added = pack(_times(added, beta, dtype), dtype)
    return compute(torch.add, result, added, out.dtype, {"a": out.dtype, "b": dtype})


def _times(x: torch.Tensor, factor: float, dtype) -> torch.Tensor:
    return compute(torch.mul, x, float(factor), dtype, {"a": dtype})


@golden("ttnn.sparse_matmul", ignores="is_input_b_sparse")
def sparse_matmul(
    input_tensor_a, input_tensor_b, sparsity, nnz, is_input_a_sparse, compute_kernel_config, indices, bias, dtypes, out
):
    """Products of pairs with nonzero sparsity. The results of the other pairs are zeros. b is [1, E, K, N].

    With a sparse: a [A, E, M, K], sparsity [1, 1, A, E] -> [A, E, M, N].
    Else: a [A, B, M, K], sparsity [A, B, 1, E] -> [A, B, 1, E, M, N]. `indices` [n] names groups to compute instead.
    An output tensor of [1, nnz, M, N] holds only the active pairs.
    """
    names = ("input_tensor_a", "input_tensor_b")
    kernel = _kernel(compute_kernel_config, dtypes, *names, out, configured=True)
    groups = input_tensor_b[0]
    batches = input_tensor_a.flatten(0, -3)
    if indices is not None:
        found = []
        for batch in batches:
            for g in indices.flatten().tolist():
                of_group = None if bias is None else bias[g, :1]
                found.append(biased(product(batch, groups[g], kernel), of_group, kernel))
        return torch.stack(found).reshape(out.shape)
    active = sparsity.flatten() != 0
    nonzero = int(active.sum())
    if nnz not in (None, nonzero):
        raise GoldenError(f"ttnn.sparse_matmul with nnz={nnz}: {nonzero} of sparsity are not zero, and a chip hangs")
    count, result = len(groups), torch.zeros(len(active), input_tensor_a.shape[-2], input_tensor_b.shape[-1])
    for pair in active.nonzero().flatten().tolist():
        rows = batches[pair if is_input_a_sparse else pair // count]
        result[pair] = product(rows, groups[pair % count], kernel)
    only_active = nnz is not None and tuple(out.shape) == (1, nnz, *result.shape[1:])
    return result[active][None] if only_active else result.reshape(out.shape)
