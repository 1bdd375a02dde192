"""Hazards that show in a call's arguments: dtypes, memory configs and op configs."""

import math
from functools import partial
from typing import Callable, Optional

import ttnn

from golden_mesh.arithmetic.packer import BLOCK_FLOATS
from golden_mesh.hazards import meet
from golden_mesh.registry import Golden

Arguments = dict[str, object]  # parameter -> argument, for the arguments of the call
What = Optional[str]  # of the call meets the hazard; None: nothing

WIDEST_GATHER = 1920  # elements of a row that one core gathers
SLICED_AT_ONCE = 4096  # bytes of rows that a slice reads together
HANGS = "BLACKHOLE"  # in decode attention with chunks of other than 128 keys
ROW_IN_L1 = 330  # tiles of a row that fit a core, in and out
DECODE = [
    f"ttnn.transformer.{paged}{of}_decode"
    for of in ("scaled_dot_product_attention", "flash_multi_latent_attention")
    for paged in ("", "paged_")
]
NORMS = "ttnn.rms_norm ttnn.rms_norm_pre_all_gather ttnn.layer_norm_pre_all_gather".split()
WIDE_ROW = 2048  # columns from which a sum of squares in bfloat16 is off by a per cent and more
LINES = {ttnn.FabricConfig.FABRIC_1D, ttnn.FabricConfig.FABRIC_1D_NEIGHBOR_EXCHANGE}
FLOATS_ALONE = {  # op -> dtypes that its kernel reads as floats, of ttnn 0.81.1
    **dict.fromkeys(("ttnn.addalpha", "ttnn.subalpha", "ttnn.l1_loss", "ttnn.max_pool2d"), "INT32 UINT32 UINT16"),
    "ttnn.addcdiv": "UINT32 UINT16",
    **dict.fromkeys(("ttnn.cumsum", "ttnn.cumprod", "ttnn.moreh_cumsum", "ttnn.lerp"), "UINT16"),
}

CHECKS: dict[str, list[tuple[str | None, Callable[..., What]]]] = {}  # op -> hazard and check


def checks(hazard: str | None, *ops: str) -> Callable:
    """Register a check of these ops. It gets a call's arguments by name, and returns what of them meets the hazard.

    hazard: None for one that raises its own error.
    """

    def register(function: Callable[..., What]) -> Callable:
        for op in ops:
            CHECKS.setdefault(op, []).append((hazard, function))
        return function

    return register


def check(golden: Golden, given: Arguments) -> None:
    """Raise HazardError if hardware is known to compute the call wrongly."""
    op = golden.name
    config = given.get("compute_kernel_config") or given.get("compute_config")
    if config is not None:
        _kernel_config(op, config, given.values())
    # ttnn.all_gather takes the fabric's topology, whatever the call says.
    if given.get("topology") == ttnn.Topology.Ring and op != "ttnn.all_gather":
        fabric = ttnn.get_fabric_config()
        if fabric in LINES and not (op.startswith("ttnn.experimental.all_gather_async") and _composite(**given)):
            meet("ring topology on a line's fabric", op, f"Topology.Ring, the fabric is {fabric.name}")
    if golden.family.startswith("eltwise"):
        _outer_dims(op, given)
    for hazard, function in CHECKS.get(op, ()):
        if what := function(**given):
            meet(hazard, op, what)


def _kernel_config(op: str, config, values) -> None:
    if config.math_fidelity == ttnn.MathFidelity.Invalid:
        meet("no math fidelity", op, "compute_kernel_config names no math_fidelity")
    if config.math_fidelity == ttnn.MathFidelity.HiFi4 and config.fp32_dest_acc_en:
        devices = (value.device() for value in values if isinstance(value, ttnn.Tensor))  # None: on the host
        chip = next((device.arch().name for device in devices if device is not None), "WORMHOLE_B0")
        if chip == "WORMHOLE_B0":
            meet("HiFi4 with a float32 dest", op, "math_fidelity=HiFi4 with fp32_dest_acc_en=True")


def _composite(input_tensor, dim, **_) -> bool:
    """Whether an all-gather is made of broadcasts along the line: of rows, or along a dim that tiles pad."""
    return _in_rows(input_tensor) or input_tensor.shape[dim] != input_tensor.padded_shape[dim]


def _outer_dims(op: str, given: Arguments) -> None:
    """The kernels count the dims from -6 outward as one, which they can repeat as a whole only."""
    shapes = [list(v.shape) for v in given.values() if isinstance(v, ttnn.Tensor) and len(v.shape) > 5]
    sizes = [math.prod(shape[:-5]) for shape in shapes]
    if len({size for size in sizes if size > 1}) > 1:
        meet("broadcast at dim -6 beyond rank 6", op, f"shapes {shapes}")


@checks("gather of wide rows", "ttnn.gather")
def _wide_rows(input, index, dim, **_) -> What:
    if _in_rows(input) and index.shape[dim] > WIDEST_GATHER:
        return f"index {list(index.shape)} along dim {dim}"


@checks("pad of float32", "ttnn.pad")
def _padded_with_a_float32(input_tensor, use_multicore=None, **others) -> What:
    value = [v for v in others.values() if type(v) in (int, float)]
    if input_tensor.dtype == ttnn.float32 and any(value) and (_in_rows(input_tensor) or use_multicore is False):
        return f"{list(input_tensor.shape)} with {value[0]}"


@checks("slice from an unaligned column", "ttnn.slice")
def _unaligned_column(input_tensor, **given) -> What:
    """A row that begins at an unaligned column is read with the bytes before it. In the last of the places that are
    read together, its end lies over the kernel's counters, which say when rows are to be left out.
    """
    names = ("slice_start", "starts"), ("slice_end", "ends"), ("slice_step", "steps")
    start, end, step = (next((given[n] for n in pair if n in given), None) for pair in names)
    memory, whole = input_tensor.memory_config(), list(input_tensor.shape)
    if isinstance(start, ttnn.Tensor) or None in (start, end) or set(step or [1]) != {1} or memory.is_sharded():
        return None
    ranges = [range(n)[slice(*at)] for n, *at in zip(whole, start, end)]
    shape, column = list(map(len, ranges)), ranges[-1].start
    aligned = 32 if memory.buffer_type == ttnn.BufferType.DRAM else 16
    size = 2 if input_tensor.dtype in BLOCK_FLOATS else input_tensor.element_size()
    row, before = shape[-1] * size, column * size % aligned
    rows = -(-math.prod(shape[:-1]) // _cores_of(input_tensor))  # of a core
    stride, place = (-(-row // unit) * unit for unit in (aligned, 2 * aligned))
    places = -(-rows // 32) * 32
    count = max((n for n in range(1, SLICED_AT_ONCE // max(stride, 1) + 1) if places % n == 0), default=1)
    over = (count - 1) * stride + row + before > count * place
    if before and over and rows >= 2 * count and shape[1:-1] != whole[1:-1]:
        return f"{whole} to {shape} from column {column}"


@checks("convolution to bfloat8_b", "ttnn.conv2d", "ttnn.conv1d")
def _partial_sums(dtype=None, compute_config=None, **_) -> What:
    wide = compute_config is not None and (compute_config.packer_l1_acc or compute_config.fp32_dest_acc_en)
    if dtype == ttnn.bfloat8_b and not wide:
        return "dtype=DataType.BFLOAT8_B"


@checks("broadcast to other memory", "ttnn.broadcast")
def _to_other_memory(input_tensor, memory_config=None, **_) -> What:
    if memory_config is not None and memory_config != input_tensor.memory_config():
        return f"{_placed(input_tensor)}, the result in {memory_config}"


@checks("interleaved bias of a DRAM-sharded linear", "ttnn.linear")
def _bias(input_tensor_b, bias=None, **_) -> What:
    weight = input_tensor_b.memory_config()
    in_banks = weight.is_sharded() and weight.buffer_type == ttnn.BufferType.DRAM
    if bias is None or not in_banks or bias.memory_config().is_sharded():
        return None
    if weight.shard_spec.shape[1] > ttnn.TILE_SIZE:  # one tile a bank: both layouts are equal
        return f"bias {list(bias.shape)} is interleaved"


@checks(
    "multicast matmul of wider bank shards",
    *"ttnn.matmul ttnn.linear ttnn.addmm".split(),
    *"ttnn.experimental.all_gather_matmul_async ttnn.experimental.matmul_reduce_scatter_async".split(),
)
def _bank_shards(program_config=None, bias=None, **given) -> What:
    """Weight and bias. Without a program config the library chooses a 2D multicast, too, or refuses DRAM's shards."""
    weight = next(given[name] for name in ("input_tensor_b", "weight_tensor", "mat2_tensor") if name in given)
    multicast = isinstance(program_config, (ttnn.MatmulMultiCoreReuseMultiCastProgramConfig, type(None)))
    for name, tensor in (("weight", weight), ("bias", bias)) if multicast and _in_banks(weight) else ():
        if tensor is not None and _in_banks(tensor):
            columns = tensor.padded_shape[-1], tensor.memory_config().shard_spec.shape[1]
            tiles, shard = (n // ttnn.TILE_SIZE for n in columns)
            banks = tensor.device().dram_grid_size().x
            if shard != -(-tiles // banks):
                return f"{name} of {tiles} tiles of columns in shards of {shard} on {banks} banks"


def _in_banks(tensor: ttnn.Tensor) -> bool:
    """Whether it is width-sharded over the banks of DRAM."""
    memory = tensor.memory_config()
    in_dram = memory.buffer_type == ttnn.BufferType.DRAM
    return in_dram and memory.memory_layout == ttnn.TensorMemoryLayout.WIDTH_SHARDED


@checks("all-reduce of a block-sharded tensor", "ttnn.all_reduce")
def _block_sharded(input_tensor, **_) -> What:
    if input_tensor.memory_config().memory_layout == ttnn.TensorMemoryLayout.BLOCK_SHARDED:
        return _placed(input_tensor)


@checks("reduce-scatter of a block-sharded tensor", "ttnn.reduce_scatter")
def _scattered(input_tensor, memory_config=None, **_) -> What:
    if memory_config is None and (what := _block_sharded(input_tensor)):
        return f"{what}, no memory_config"


@checks("all_reduce_async through a smaller buffer", "ttnn.experimental.all_reduce_async")
def _through_a_smaller_buffer(input_tensor, buffer_tensor=None, **_) -> What:
    x, buffer = input_tensor, buffer_tensor
    if isinstance(buffer, ttnn.Tensor) and x.buffer_page_size() > buffer.buffer_page_size():
        return f"{x.dtype.name} {list(x.shape)} through {buffer.dtype.name} {list(buffer.shape)}"


@checks("sum of a wide row in a bfloat16 dest", *NORMS, "ttnn.experimental.dit_rms_norm_unary_fused")
def _wide_row(input_tensor, compute_kernel_config=None, program_config=None, wide_by_default=False, **_) -> What:
    """A shard's part of a row is a sum of its own."""
    if wide_by_default if compute_kernel_config is None else compute_kernel_config.fp32_dest_acc_en:
        return None
    width = input_tensor.shape[-1]
    part = getattr(program_config, "block_w", 0) * ttnn.TILE_SIZE or width
    if min(part, width) >= WIDE_ROW:
        return f"a row of {width}, no fp32_dest_acc_en"


checks("sum of a wide row in a bfloat16 dest", "ttnn.layer_norm")(partial(_wide_row, wide_by_default=True))


@checks(
    "typecast to bfloat4_b",
    *"ttnn.typecast ttnn.to_memory_config ttnn.to_layout ttnn.clone ttnn.assign ttnn.tilize".split(),
    *"ttnn.tilize_with_val_padding ttnn.tilize_with_zero_padding".split(),
    *"ttnn.interleaved_to_sharded ttnn.sharded_to_interleaved".split(),
)
def _to_four_bits(**given) -> What:
    tensor, *wanted = given.values()
    if tensor.dtype != ttnn.bfloat4_b and any(value is ttnn.bfloat4_b for value in wanted):
        return f"{tensor.dtype.name} {list(tensor.shape)} to BFLOAT4_B"


@checks("chunk of keys beyond the page table", *(op for op in DECODE if "paged" in op))
def _keys_beyond_the_table(input_tensor_k, page_table_tensor, program_config=None, **_) -> What:
    blocks = page_table_tensor.shape[-1]
    tokens = blocks * input_tensor_k.shape[2]
    if program_config is not None and program_config.k_chunk_size > tokens:
        return f"k_chunk_size {program_config.k_chunk_size}, page table of {blocks} blocks, {tokens} tokens"


@checks("decode mask with users in its second dim", *DECODE)
def _mask_of_users(attn_mask=None, **_) -> What:
    if attn_mask is not None and attn_mask.shape[1] > 1:
        return f"attn_mask {list(attn_mask.shape)}"


@checks("chunks of keys on a Blackhole", *DECODE)
def _chunk_of_keys(input_tensor_k, program_config=None, **_) -> What:
    chunk = None if program_config is None else program_config.k_chunk_size
    if input_tensor_k.device().arch().name == HANGS and chunk != 128:
        return "no program_config" if program_config is None else f"k_chunk_size {chunk}"


@checks("sliding window with k_chunk_size 0", *(op for op in DECODE if "paged" not in op))
def _window(program_config=None, sliding_window_size=None, **_) -> What:
    if program_config is not None and program_config.k_chunk_size == 0 and sliding_window_size:
        return f"a window of {sliding_window_size}"


@checks(
    "row broadcast to another dtype", *"ttnn.addcmul ttnn.addcdiv ttnn.where ttnn.lerp ttnn.mac ttnn.snake_beta".split()
)
def _rows_to_another_dtype(output_tensor=None, **given) -> What:
    inputs = list(given.values())[:3]
    if output_tensor is None or not all(isinstance(x, ttnn.Tensor) and x.dtype == ttnn.bfloat16 for x in inputs):
        return None
    heights, widths = ({x.shape[dim] if len(x.shape) > -dim - 1 else 1 for x in inputs} for dim in (-2, -1))
    if 1 in heights and len(heights) > 1 and len(widths) == 1 and output_tensor.dtype != ttnn.bfloat16:
        return f"{[list(x.shape) for x in inputs]} to {output_tensor.dtype.name}"


@checks("tiles of padding alone", "ttnn.tilize_with_val_padding")
def _tiles_of_padding(input_tensor, output_tensor_shape, **_) -> What:
    """Wide rows are read in blocks of columns, one after another on many cores."""
    shape, all_cores = list(output_tensor_shape), _cores_of(input_tensor)
    width, height = shape[-1] // ttnn.TILE_SIZE, shape[-2] // ttnn.TILE_SIZE
    if input_tensor.memory_config().is_sharded() or not _in_rows(input_tensor):
        return None
    rows = math.prod(shape[:-1]) // ttnn.TILE_SIZE
    block, cores = _block_of_columns(width, height, all_cores)
    in_blocks = width > 32 and (height > 32 or width > height)
    in_blocks &= -(-rows // -(-rows // all_cores)) < cores
    if (in_blocks or width > ROW_IN_L1) and (width - 1) // block * block * ttnn.TILE_SIZE >= input_tensor.shape[-1]:
        return f"{list(input_tensor.shape)} to {shape}"


def _block_of_columns(width: int, height: int, cores: int) -> tuple[int, int]:
    """The side of the square blocks of tiles that are fewer than the cores, and their number."""
    least = -(-width * height // cores)
    side = math.isqrt(least) + (math.isqrt(least) ** 2 < least)
    while (count := -(-width // side) * -(-height // side)) >= cores and side < width * height:
        side += 1
    return side, count


@checks("infinity in a block float's padding", "ttnn.max", "ttnn.min")
def _partial_tile(input_tensor, **_) -> What:
    if input_tensor.dtype in BLOCK_FLOATS and input_tensor.shape[-1] % ttnn.TILE_SIZE:
        return f"{input_tensor.dtype.name} {list(input_tensor.shape)}"


def _height_shards(tensor: ttnn.Tensor, memory: ttnn.MemoryConfig | None) -> What:
    by_height = tensor.memory_config().memory_layout == ttnn.TensorMemoryLayout.HEIGHT_SHARDED
    if by_height and (memory or tensor.memory_config()).buffer_type == ttnn.BufferType.L1:
        return _placed(tensor)


@checks("transpose of height shards in L1", "ttnn.transpose")
def _transposed(input_tensor, dim1, dim2, memory_config=None, **_) -> What:
    rank = len(input_tensor.shape)
    if {dim1 % rank, dim2 % rank} == {rank - 1, rank - 2}:
        return _height_shards(input_tensor, memory_config)


@checks("transpose of height shards in L1", "ttnn.permute")
def _permuted(input_tensor, dims, memory_config=None, **_) -> What:
    """Of shards a permutation that begins with the batch is a chain of transposes."""
    rank, first, last = len(dims), dims[0], dims[-1]
    if (rank < 4 or rank == 4 and first % rank == 0) and last % rank != rank - 1:
        return _height_shards(input_tensor, memory_config)


@checks("transpose of height shards in L1", "ttnn.matmul", "ttnn.linear")
def _transposed_first(input_tensor_a, transpose_a=False, **_) -> What:
    return _height_shards(input_tensor_a, None) if transpose_a else None


@checks("rotary cos and sin on other cores", "ttnn.experimental.rotary_embedding_llama_fused_qk")
def _cos_on_other_cores(rotated: int = 2, **given) -> What:
    """rotated: how many tensors come before cos, sin and the matrix."""
    tensors = list(given.values())
    cores = [core for tensor in tensors[:rotated] for core in _cores_in_order(tensor)]
    for name, table in zip(("cos", "sin", "the matrix"), tensors[rotated:]):
        if table.memory_config().is_sharded() and _cores_in_order(table)[: len(cores)] != cores:
            return f"{name} on {len(_cores_in_order(table))} cores"


@checks("rotary cos and sin on other cores", "ttnn.experimental.rotary_embedding_llama")
def _cos_of_a_step_on_other_cores(is_decode_mode=False, **given) -> What:
    return _cos_on_other_cores(1, **given) if is_decode_mode else None


def _cores_in_order(tensor: ttnn.Tensor) -> list[tuple[int, int]]:
    spec = tensor.memory_config().shard_spec
    return [] if spec is None else _cores(spec, spec.orientation == ttnn.ShardOrientation.ROW_MAJOR)


@checks("page table in tiles", "ttnn.experimental.paged_fill_cache")
def _page_table_in_tiles(**given) -> What:
    table = list(given.values())[2]
    return None if _in_rows(table) else f"page table {list(table.shape)} in TILE layout"


def _read_as_floats(dtypes: str, dtype=None, **given) -> What:
    tensor = next((value for value in given.values() if isinstance(value, ttnn.Tensor)), None)
    if tensor is not None and dtype is None and tensor.dtype.name in dtypes.split():
        return f"tensors of {tensor.dtype.name}"


for op, dtypes in FLOATS_ALONE.items():
    checks("integers in a kernel of floats", op)(partial(_read_as_floats, dtypes))


@checks("floor_div of integers", "ttnn.floor_div")
def _floor_div(**given) -> What:
    dtypes = [v.dtype for v in given.values() if isinstance(v, ttnn.Tensor)]
    return "two INT32 tensors" if dtypes == [ttnn.int32] * 2 else None


def check_narrow(whole: ttnn.Tensor, view: ttnn.Tensor, start: int) -> None:
    """Raise HazardError if a view of some shards (ttnn.narrow of the last dim) lists its cores in another order."""
    memory, spec = whole.memory_config(), whole.memory_config().shard_spec
    if memory.memory_layout != ttnn.TensorMemoryLayout.WIDTH_SHARDED:
        return  # columns of a block-sharded grid keep their order
    first = start % whole.shape[-1] // spec.shape[1]
    cores = _cores(spec)[first : first + view.memory_config().shard_spec.grid.num_cores()]
    if _cores(view.memory_config().shard_spec) != cores:
        meet("narrowed shards in another order", "ttnn.narrow", f"{len(cores)} cores from core {first} on")


def _cores(spec: ttnn.ShardSpec, by_rows: bool = True) -> list[tuple[int, int]]:
    return [(core.x, core.y) for core in ttnn.corerange_to_cores(spec.grid, row_wise=by_rows)]


def _cores_of(tensor: ttnn.Tensor) -> int:
    """How many cores of its chip compute."""
    grid = tensor.device().compute_with_storage_grid_size()
    return grid.x * grid.y


def _in_rows(tensor: ttnn.Tensor) -> bool:
    return tensor.layout == ttnn.ROW_MAJOR_LAYOUT


def _placed(tensor: ttnn.Tensor) -> str:
    memory = tensor.memory_config()
    return f"{list(tensor.shape)} is {memory.memory_layout.name.lower()} in {memory.buffer_type.name}"
