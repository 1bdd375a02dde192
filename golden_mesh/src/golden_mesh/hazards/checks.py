"""Hazards that show in a call's arguments: dtypes, memory configs and op configs."""

import math
from typing import Callable

import ttnn

from golden_mesh.hazards import meet
from golden_mesh.registry import Golden

Arguments = dict[str, object]  # parameter -> argument, for the arguments of the call

# Its topology is the fabric's, whatever the call says.
BY_THE_FABRIC = {"ttnn.all_gather"}
WIDEST_GATHER = 1920  # elements of a row that one core gathers
SLICED_AT_ONCE = 4096  # bytes of rows that a slice reads together
HANGS = "BLACKHOLE"  # in decode attention with chunks of other than 128 keys
ROW_IN_L1 = 330  # tiles of a row that fit a core, in and out
DECODE = [
    f"ttnn.transformer.{paged}{of}_decode"
    for of in ("scaled_dot_product_attention", "flash_multi_latent_attention")
    for paged in ("", "paged_")
]
WIDE_ROW = 2048  # columns from which a sum of squares in bfloat16 is off by a per cent and more
LINES = {ttnn.FabricConfig.FABRIC_1D, ttnn.FabricConfig.FABRIC_1D_NEIGHBOR_EXCHANGE}

CHECKS: dict[str, list[Callable[[str, Arguments], None]]] = {}


def checks(*ops: str) -> Callable:
    def register(function: Callable) -> Callable:
        for op in ops:
            CHECKS.setdefault(op, []).append(function)
        return function

    return register


def check(golden: Golden, given: Arguments) -> None:
    """Raise HazardError if hardware is known to compute the call wrongly."""
    op = golden.name
    config = given.get("compute_kernel_config") or given.get("compute_config")
    if config is not None:
        _kernel_config(op, config, given.values())
    if given.get("topology") == ttnn.Topology.Ring and op not in BY_THE_FABRIC:
        if not (op.startswith("ttnn.experimental.all_gather_async") and _composite(given)):
            _ring(op)
    if golden.family.startswith("eltwise"):
        _outer_dims(op, given)
    for function in CHECKS.get(op, ()):
        function(op, given)


def _kernel_config(op: str, config, values) -> None:
    if config.math_fidelity == ttnn.MathFidelity.Invalid:
        meet("no math fidelity", op, "compute_kernel_config names no math_fidelity")
    if config.math_fidelity == ttnn.MathFidelity.HiFi4 and config.fp32_dest_acc_en:
        devices = (value.device() for value in values if isinstance(value, ttnn.Tensor))  # None: on the host
        chip = next((device.arch().name for device in devices if device is not None), "WORMHOLE_B0")
        if chip == "WORMHOLE_B0":
            meet("HiFi4 with a float32 dest", op, "math_fidelity=HiFi4 with fp32_dest_acc_en=True")


def _composite(given: Arguments) -> bool:
    """Whether an all-gather is made of broadcasts along the line: of rows, or along a dim that tiles pad."""
    tensor = next((value for value in given.values() if isinstance(value, ttnn.Tensor)), None)
    dim = given.get("dim")
    if tensor is None or not isinstance(dim, int):
        return False
    padded = tensor.shape[dim] != tensor.padded_shape[dim]
    return tensor.layout == ttnn.ROW_MAJOR_LAYOUT or padded


def _ring(op: str) -> None:
    fabric = ttnn.get_fabric_config()
    if fabric in LINES:
        meet("ring topology on a line's fabric", op, f"Topology.Ring, the fabric is {fabric.name}")


def _outer_dims(op: str, given: Arguments) -> None:
    """The kernels count the dims from -6 outward as one, which they can repeat as a whole only."""
    shapes = [list(v.shape) for v in given.values() if isinstance(v, ttnn.Tensor) and len(v.shape) > 5]
    sizes = [math.prod(shape[:-5]) for shape in shapes]
    if len({size for size in sizes if size > 1}) > 1:
        meet("broadcast at dim -6 beyond rank 6", op, f"shapes {shapes}")


@checks("ttnn.gather")
def _wide_rows(op: str, given: Arguments) -> None:
    tensor, index = given["input"], given["index"]
    if _in_rows(tensor) and index.shape[given["dim"]] > WIDEST_GATHER:
        meet("gather of wide rows", op, f"index {list(index.shape)} along dim {given['dim']}")


@checks("ttnn.pad")
def _padded_with_a_float32(op: str, given: Arguments) -> None:
    tensor, value = given["input_tensor"], [v for v in given.values() if type(v) in (int, float)]
    one_core = given.get("use_multicore") is False
    if tensor.dtype == ttnn.float32 and any(value) and (_in_rows(tensor) or one_core):
        meet("pad of float32", op, f"{list(tensor.shape)} with {value[0]}")


@checks("ttnn.slice")
def _unaligned_column(op: str, given: Arguments) -> None:
    """A row that begins at an unaligned column is read with the bytes before it. In the last of the places that are
    read together, its end lies over the kernel's counters, which say when rows are to be left out.
    """
    names = ("slice_start", "starts"), ("slice_end", "ends"), ("slice_step", "steps")
    start, end, step = (next((given[n] for n in pair if n in given), None) for pair in names)
    tensor = given["input_tensor"]
    memory, whole = tensor.memory_config(), list(tensor.shape)
    if isinstance(start, ttnn.Tensor) or None in (start, end) or set(step or [1]) != {1}:
        return
    if memory.is_sharded():
        return
    ranges = [range(n)[slice(*at)] for n, *at in zip(whole, start, end)]
    shape, column = list(map(len, ranges)), ranges[-1].start
    aligned = 32 if memory.buffer_type == ttnn.BufferType.DRAM else 16
    size = 2 if tensor.dtype in (ttnn.bfloat8_b, ttnn.bfloat4_b) else tensor.element_size()
    grid = tensor.device().compute_with_storage_grid_size()
    row, before = shape[-1] * size, column * size % aligned
    rows = -(-math.prod(shape[:-1]) // (grid.x * grid.y))  # of a core
    stride, place = (-(-row // unit) * unit for unit in (aligned, 2 * aligned))
    places = -(-rows // 32) * 32
    together = [n for n in range(1, SLICED_AT_ONCE // max(stride, 1) + 1) if places % n == 0]
    count = max(together, default=1)
    over = (count - 1) * stride + row + before > count * place
    if before and over and rows >= 2 * count and shape[1:-1] != whole[1:-1]:
        meet("slice from an unaligned column", op, f"{whole} to {shape} from column {column}")


@checks("ttnn.conv2d", "ttnn.conv1d")
def _partial_sums(op: str, given: Arguments) -> None:
    config = given.get("compute_config")
    wide = config is not None and (config.packer_l1_acc or config.fp32_dest_acc_en)
    if given.get("dtype") == ttnn.bfloat8_b and not wide:
        meet("convolution to bfloat8_b", op, "dtype=DataType.BFLOAT8_B")


@checks("ttnn.broadcast")
def _to_other_memory(op: str, given: Arguments) -> None:
    tensor, memory = given["input_tensor"], given.get("memory_config")
    if memory is not None and memory != tensor.memory_config():
        meet("broadcast to other memory", op, f"{_placed(tensor)}, the result in {memory}")


@checks("ttnn.linear")
def _bias(op: str, given: Arguments) -> None:
    bias, weight = given.get("bias"), given["input_tensor_b"].memory_config()
    in_banks = weight.is_sharded() and weight.buffer_type == ttnn.BufferType.DRAM
    if bias is None or not in_banks or bias.memory_config().is_sharded():
        return
    if weight.shard_spec.shape[1] > ttnn.TILE_SIZE:  # one tile a bank: both layouts are equal
        meet("interleaved bias of a DRAM-sharded linear", op, f"bias {list(bias.shape)} is interleaved")


@checks(
    "ttnn.matmul",
    "ttnn.linear",
    "ttnn.addmm",
    "ttnn.experimental.all_gather_matmul_async",
    "ttnn.experimental.matmul_reduce_scatter_async",
)
def _bank_shards(op: str, given: Arguments) -> None:
    """Weight and bias. Without a program config the library chooses a 2D multicast, too, or refuses DRAM's shards."""
    weight = next(given[name] for name in ("input_tensor_b", "weight_tensor", "mat2_tensor") if name in given)
    program = given.get("program_config")
    if not isinstance(program, (ttnn.MatmulMultiCoreReuseMultiCastProgramConfig, type(None))) or not _in_banks(weight):
        return
    banks = weight.device().dram_grid_size().x
    for name, tensor in ("weight", weight), ("bias", given.get("bias")):
        if tensor is not None and _in_banks(tensor):
            tiles, shard = (
                n // ttnn.TILE_SIZE for n in (tensor.padded_shape[-1], tensor.memory_config().shard_spec.shape[1])
            )
            if shard != -(-tiles // banks):
                what = f"{name} of {tiles} tiles of columns in shards of {shard} on {banks} banks"
                meet("multicast matmul of wider bank shards", op, what)


def _in_banks(tensor: ttnn.Tensor) -> bool:
    """Whether it is width-sharded over the banks of DRAM."""
    memory = tensor.memory_config()
    in_dram = memory.buffer_type == ttnn.BufferType.DRAM
    return in_dram and memory.memory_layout == ttnn.TensorMemoryLayout.WIDTH_SHARDED


@checks("ttnn.all_reduce", "ttnn.reduce_scatter")
def _block_sharded(op: str, given: Arguments) -> None:
    tensor = given["input_tensor"]
    if tensor.memory_config().memory_layout != ttnn.TensorMemoryLayout.BLOCK_SHARDED:
        return
    if op == "ttnn.all_reduce":
        meet("all-reduce of a block-sharded tensor", op, _placed(tensor))
    if given.get("memory_config") is None:
        meet("reduce-scatter of a block-sharded tensor", op, f"{_placed(tensor)}, no memory_config")


@checks("ttnn.experimental.all_reduce_async")
def _through_a_smaller_buffer(op: str, given: Arguments) -> None:
    tensor, buffer = given["input_tensor"], given.get("buffer_tensor")
    if isinstance(buffer, ttnn.Tensor) and tensor.buffer_page_size() > buffer.buffer_page_size():
        what = f"{tensor.dtype.name} {list(tensor.shape)} through {buffer.dtype.name} {list(buffer.shape)}"
        meet("all_reduce_async through a smaller buffer", op, what)


@checks(
    "ttnn.rms_norm",
    "ttnn.layer_norm",
    "ttnn.rms_norm_pre_all_gather",
    "ttnn.layer_norm_pre_all_gather",
    "ttnn.experimental.dit_rms_norm_unary_fused",
)
def _wide_row(op: str, given: Arguments) -> None:
    """Only layer_norm has a float32 dest by default. A shard's part of a row is a sum of its own."""
    config = given.get("compute_kernel_config")
    if op == "ttnn.layer_norm" if config is None else config.fp32_dest_acc_en:
        return
    width = given["input_tensor"].shape[-1]
    part = getattr(given.get("program_config"), "block_w", 0) * ttnn.TILE_SIZE or width
    if min(part, width) >= WIDE_ROW:
        meet("sum of a wide row in a bfloat16 dest", op, f"a row of {width}, no fp32_dest_acc_en")


@checks(
    "ttnn.typecast",
    "ttnn.to_memory_config",
    "ttnn.to_layout",
    "ttnn.clone",
    "ttnn.assign",
    "ttnn.tilize",
    "ttnn.tilize_with_val_padding",
    "ttnn.tilize_with_zero_padding",
    "ttnn.interleaved_to_sharded",
    "ttnn.sharded_to_interleaved",
)
def _to_four_bits(op: str, given: Arguments) -> None:
    tensor, *wanted = given.values()
    if tensor.dtype != ttnn.bfloat4_b and any(value is ttnn.bfloat4_b for value in wanted):
        meet("typecast to bfloat4_b", op, f"{tensor.dtype.name} {list(tensor.shape)} to BFLOAT4_B")


@checks(*(op for op in DECODE if "paged" in op))
def _keys_beyond_the_table(op: str, given: Arguments) -> None:
    config, table = given.get("program_config"), given["page_table_tensor"]
    tokens = table.shape[-1] * given["input_tensor_k"].shape[2]
    if config is not None and config.k_chunk_size > tokens:
        what = f"k_chunk_size {config.k_chunk_size}, page table of {table.shape[-1]} blocks, {tokens} tokens"
        meet("chunk of keys beyond the page table", op, what)


@checks(*DECODE)
def _mask_of_users(op: str, given: Arguments) -> None:
    mask = given.get("attn_mask")
    if mask is not None and mask.shape[1] > 1:
        meet("decode mask with users in its second dim", op, f"attn_mask {list(mask.shape)}")


@checks(*DECODE)
def _chunk_of_keys(op: str, given: Arguments) -> None:
    config, keys = given.get("program_config"), given["input_tensor_k"]
    chunk = None if config is None else config.k_chunk_size
    if keys.device().arch().name == HANGS and chunk != 128:
        meet("chunks of keys on a Blackhole", op, "no program_config" if config is None else f"k_chunk_size {chunk}")
    if chunk == 0 and given.get("sliding_window_size") and "paged" not in op:
        meet("sliding window with k_chunk_size 0", op, f"a window of {given['sliding_window_size']}")


@checks("ttnn.addcmul", "ttnn.addcdiv", "ttnn.where", "ttnn.lerp", "ttnn.mac", "ttnn.snake_beta")
def _rows_to_another_dtype(op: str, given: Arguments) -> None:
    inputs, out = list(given.values())[:3], given.get("output_tensor")
    if out is None or not all(isinstance(x, ttnn.Tensor) and x.dtype == ttnn.bfloat16 for x in inputs):
        return
    heights, widths = ({x.shape[dim] if len(x.shape) > -dim - 1 else 1 for x in inputs} for dim in (-2, -1))
    if 1 in heights and len(heights) > 1 and len(widths) == 1 and out.dtype != ttnn.bfloat16:
        meet("row broadcast to another dtype", op, f"{[list(x.shape) for x in inputs]} to {out.dtype.name}")


@checks("ttnn.tilize_with_val_padding")
def _tiles_of_padding(op: str, given: Arguments) -> None:
    """Wide rows are read in blocks of columns, one after another on many cores."""
    tensor, shape = given["input_tensor"], list(given["output_tensor_shape"])
    grid = tensor.device().compute_with_storage_grid_size()
    width, height = shape[-1] // ttnn.TILE_SIZE, shape[-2] // ttnn.TILE_SIZE
    if tensor.memory_config().is_sharded() or not _in_rows(tensor):
        return
    rows = math.prod(shape[:-1]) // ttnn.TILE_SIZE
    block, cores = _block_of_columns(width, height, grid.x * grid.y)
    in_blocks = width > 32 and (height > 32 or width > height)
    in_blocks &= -(-rows // -(-rows // (grid.x * grid.y))) < cores
    if (in_blocks or width > ROW_IN_L1) and (width - 1) // block * block * ttnn.TILE_SIZE >= tensor.shape[-1]:
        meet("tiles of padding alone", op, f"{list(tensor.shape)} to {shape}")


def _block_of_columns(width: int, height: int, cores: int) -> tuple[int, int]:
    """The side of the square blocks of tiles that are fewer than the cores, and their number."""
    least = -(-width * height // cores)
    side = math.isqrt(least) + (math.isqrt(least) ** 2 < least)
    while (count := -(-width // side) * -(-height // side)) >= cores and side < width * height:
        side += 1
    return side, count


@checks("ttnn.max", "ttnn.min")
def _partial_tile(op: str, given: Arguments) -> None:
    tensor = given["input_tensor"]
    if tensor.dtype in (ttnn.bfloat8_b, ttnn.bfloat4_b) and tensor.shape[-1] % ttnn.TILE_SIZE:
        meet("extreme of a partial tile in bfloat8_b", op, f"{tensor.dtype.name} {list(tensor.shape)}")


@checks("ttnn.transpose")
def _transposed(op: str, given: Arguments) -> None:
    tensor = given["input_tensor"]
    rank = len(tensor.shape)
    if {given[name] % rank for name in ("dim1", "dim2")} == {rank - 1, rank - 2}:
        _height_shards(op, tensor, given.get("memory_config"))


@checks("ttnn.permute")
def _permuted(op: str, given: Arguments) -> None:
    """Of shards a permutation that begins with the batch is a chain of transposes."""
    dims = [*given["dims"]]
    rank = len(dims)
    if (rank < 4 or rank == 4 and dims[0] % rank == 0) and dims[-1] % rank != rank - 1:
        _height_shards(op, given["input_tensor"], given.get("memory_config"))


@checks("ttnn.matmul", "ttnn.linear")
def _transposed_first(op: str, given: Arguments) -> None:
    if given.get("transpose_a"):
        _height_shards(op, given["input_tensor_a"], None)


def _height_shards(op: str, tensor: ttnn.Tensor, memory: ttnn.MemoryConfig | None) -> None:
    by_height = tensor.memory_config().memory_layout == ttnn.TensorMemoryLayout.HEIGHT_SHARDED
    if by_height and (memory or tensor.memory_config()).buffer_type == ttnn.BufferType.L1:
        meet("transpose of height shards in L1", op, _placed(tensor))


@checks("ttnn.experimental.rotary_embedding_llama_fused_qk")
def _cos_beside_q_and_k(op: str, given: Arguments) -> None:
    q, k, *tables = list(given.values())[:5]
    _on_cores(op, tables, [core for x in (q, k) for core in _cores_in_order(x)])


@checks("ttnn.experimental.rotary_embedding_llama")
def _cos_beside_x(op: str, given: Arguments) -> None:
    x, *tables = list(given.values())[:4]
    if given.get("is_decode_mode"):
        _on_cores(op, tables, _cores_in_order(x))


def _on_cores(op: str, tables: list, cores: list) -> None:
    for name, table in zip(("cos", "sin", "the matrix"), tables):
        if table.memory_config().is_sharded() and _cores_in_order(table)[: len(cores)] != cores:
            meet("rotary cos and sin on other cores", op, f"{name} on {len(_cores_in_order(table))} cores")


def _cores_in_order(tensor: ttnn.Tensor) -> list[tuple[int, int]]:
    spec = tensor.memory_config().shard_spec
    by_rows = spec is None or spec.orientation == ttnn.ShardOrientation.ROW_MAJOR
    return [] if spec is None else [(c.x, c.y) for c in ttnn.corerange_to_cores(spec.grid, row_wise=by_rows)]


@checks("ttnn.experimental.paged_fill_cache")
def _page_table_in_tiles(op: str, given: Arguments) -> None:
    table = list(given.values())[2]
    if not _in_rows(table):
        meet("page table in tiles", op, f"page table {list(table.shape)} in TILE layout")


def check_narrow(whole: ttnn.Tensor, view: ttnn.Tensor, start: int) -> None:
    """Raise HazardError if a view of some shards (ttnn.narrow of the last dim) lists its cores in another
    order.
    """
    memory, spec = whole.memory_config(), whole.memory_config().shard_spec
    if memory.memory_layout != ttnn.TensorMemoryLayout.WIDTH_SHARDED:
        return  # columns of a block-sharded grid keep their order
    if view.shape[-1] == whole.shape[-1]:
        return
    first = start % whole.shape[-1] // spec.shape[1]
    cores = _cores(spec)[first : first + view.memory_config().shard_spec.grid.num_cores()]
    if _cores(view.memory_config().shard_spec) != cores:
        meet("narrowed shards in another order", "ttnn.narrow", f"{len(cores)} cores from core {first} on")


def _cores(spec: ttnn.ShardSpec) -> list[tuple[int, int]]:
    return [(core.x, core.y) for core in ttnn.corerange_to_cores(spec.grid, row_wise=True)]


def _in_rows(tensor: ttnn.Tensor) -> bool:
    return tensor.layout == ttnn.ROW_MAJOR_LAYOUT


def _placed(tensor: ttnn.Tensor) -> str:
    memory = tensor.memory_config()
    return f"{list(tensor.shape)} is {memory.memory_layout.name.lower()} in {memory.buffer_type.name}"
