"""Calls that the library accepts and a Wormhole chip computes wrongly: the table, and the response to each.

By default a refused hazard is an error (HazardError). A noted hazard is known from silicon and in wide use.
It is counted, and warned of once for each op. The switch `hazards` turns all into warnings or all into errors.

HAZARDS.md reproduces each hazard, and says how it is known. hazards/checks.py recognizes hazards by a call's
arguments. Goldens recognize hazards that depend on values.
"""

import warnings
from collections import Counter
from dataclasses import dataclass

from golden_mesh import switches
from golden_mesh.errors import GoldenError


class HazardError(GoldenError):
    """A call that a chip computes wrongly."""


class HazardWarning(UserWarning):
    """A call that a chip may compute wrongly. The call still runs."""


@dataclass(frozen=True)
class Hazard:
    wrong: str  # the chip's error
    instead: str  # what to do
    refused: bool = True


HAZARDS = {
    "rows of one tile": Hazard(
        "each row's core reads, changes and writes the whole tile, so of several rows in a tile one is kept",
        "give each row a tile of its own, or make one call for each with every other row's position at -1",
    ),
    "all-reduce of a block-sharded tensor": Hazard(
        "the shards are summed as if they lay otherwise",
        "reduce_scatter with the output's memory_config, then all_gather, or all_reduce an interleaved tensor",
    ),
    "reduce-scatter of a block-sharded tensor": Hazard(
        "without the output's memory_config the result lies otherwise than its memory config says",
        "give memory_config, block-sharded to the scattered width",
    ),
    "ring topology on a line's fabric": Hazard(
        "the fabric has no route from the last chip of the row to the first, so the collective waits forever",
        "open the fabric as FABRIC_1D_RING, or let the topology be Linear (ttnn.get_usable_topology says the fabric's)",
    ),
    "all_reduce_async through a smaller buffer": Hazard(
        "the kernel lays out the buffer by its input's format, so summands of a larger one are written past its shards",
        "give the buffer the input's dtype",
    ),
    "chunk start between chunks of queries": Hazard(
        "the kernel takes the start in whole chunks of queries, so every query sees other keys than it should",
        "let the start be a multiple of q_chunk_size",
    ),
    "chunk start between chunks of keys": Hazard(
        "some results were wrong on cards, not in every run",
        "let the start be a multiple of k_chunk_size",
        refused=False,
    ),
    "padding of an attention mask": Hazard(
        "the kernel adds whole tiles of the mask to the scores, and attends to the keys in their padding",
        "ttnn.from_torch(mask, pad_value=-math.inf), or ttnn.fill_implicit_tile_padding(mask, -math.inf)",
    ),
    "mask of another length than the page table": Hazard(
        "the kernel takes a row of the mask for as long as the page table's tokens, and reads other rows",
        "let the mask's last dimension be the page table's width times the block size",
    ),
    "chunk of keys beyond the page table": Hazard(
        "the reader fetches whole chunks, and takes what lies behind the table for block numbers",
        "let k_chunk_size be at most the page table's width times the block size",
    ),
    "chunk of keys with a missing block": Hazard(
        "the reader fetches whole chunks, the blocks behind a user's position among them, and -1 is no block",
        "name some block for every entry of the last chunk that a user reads, or let k_chunk_size be the block size",
    ),
    "interleaved bias of a DRAM-sharded linear": Hazard(
        "the kernels read the bias bank by bank, as the weight lies",
        "shard the bias over the DRAM banks as the weight is",
    ),
    "multicast matmul of wider bank shards": Hazard(
        "the kernel takes ceil(tiles of N / DRAM banks) for a bank's shard, and reads every column from another place",
        "let the shards of weight and bias be that wide (zero columns change N), or interleave the weight",
    ),
    "typecast to bfloat4_b": Hazard(
        "the packer cuts to 3 bits what it rounded to 7: everything comes out 14 % too small",
        "convert to bfloat4_b on the host (ttnn.from_torch)",
    ),
    "gather of wide rows": Hazard(
        "several cores write parts of one row-major row, and overwrite each other's: half of the elements are wrong",
        "take tiles (ttnn.to_layout), or at most 1920 indices a row",
        refused=False,
    ),
    "pad of float32": Hazard(
        "the value becomes two bfloat16 halves of one float32: 7 is 7.0079, infinity is NaN",
        "pad tiles with use_multicore=True (ttnn.to_layout), or with 0",
    ),
    "slice from an unaligned column": Hazard(
        "the kernel reads over its own counters, and may return rows that it should leave out",
        "slice the last dimension alone, then the others",
    ),
    "broadcast to other memory": Hazard(
        "the kernel writes the result with the input's layout of pages, over other memory",
        "leave memory_config out, then ttnn.to_memory_config",
    ),
    "rotate_half of float32": Hazard(
        "the half that the kernel negates is 0", "ttnn.typecast to bfloat16, or ttnn.neg of the half and ttnn.concat"
    ),
    "floor_div of integers": Hazard(
        "the result is a FLOAT32 tensor that holds the bits of int32 quotients", 'ttnn.div(a, b, rounding_mode="floor")'
    ),
    "integers in a kernel of floats": Hazard(
        "the kernel reads the bits of integers as floats, so the results are arbitrary",
        "typecast to float32 before, or write the operation as others (add, multiply)",
    ),
    "remainder of integers by a float": Hazard(
        "the kernel divides floats: beyond 2**24 the remainder is another number", "give the divisor as an integer"
    ),
    "NaN and infinity in a function": Hazard(
        "the kernel's value for NaN or infinity is not the function's: a finite number, or another infinity",
        "replace them before (ttnn.where with ttnn.isfinite)",
        refused=False,
    ),
    "convolution to bfloat8_b": Hazard(
        "the packer rounds the image and each partial sum to bfloat8_b, upwards in the mean",
        "a compute_config with packer_l1_acc=True or fp32_dest_acc_en=True, or dtype=ttnn.bfloat16",
        refused=False,
    ),
    "lcm beyond 32767": Hazard(
        "the kernel multiplies 15 bits by 16", "compute it on the host, or divide the product by ttnn.gcd"
    ),
    "tosa_scatter beyond 65535": Hazard(
        "the index becomes a UINT16, so the row 65536 lower is written",
        "ttnn.scatter, with the index expanded to the shape of src",
    ),
    "broadcast at dim -6 beyond rank 6": Hazard(
        "the kernels count dim -6 and all dims before it as one, and read other tiles, or beyond the buffer",
        "reshape to rank 6 or less, or repeat the smaller tensor (ttnn.repeat)",
    ),
    "narrowed shards in another order": Hazard(
        "the library sorts a view's cores anew, and ops that go by that list take the wrong columns",
        "give each part whole rows of cores, or all of it in one row",
    ),
    "no math fidelity": Hazard(
        "a compute_kernel_config without math_fidelity reaches the kernels as fidelity 255, and they make 255 phases",
        "name a math_fidelity",
    ),
    "buffer where a live trace writes": Hazard(
        "a replay overwrites the buffer: the capture had its temporaries in this memory, and freed them",
        "allocate it before the capture, free it before the replay, or release the trace",
        refused=False,
    ),
    "sum of a wide row in a bfloat16 dest": Hazard(
        "a long sum in bfloat16 loses small terms: a norm of width 3584 is 2 % too small, with a mean of 5 5.5 %",
        "pass a compute_kernel_config with fp32_dest_acc_en=True",
        refused=False,
    ),
    "decode mask with users in its second dim": Hazard(
        "every user gets the first user's mask", "give the mask as [users, 1, heads, keys]"
    ),
    "infinity in a block float's padding": Hazard(
        "the columns of the last, partial block come out 0: the padding's infinity takes their exponent",
        "typecast to bfloat16 first, slice to whole tiles, or ttnn.fill_implicit_tile_padding(x, 1.0)",
    ),
    "transpose of height shards in L1": Hazard(
        "half of the values are wrong, another half each time",
        "give memory_config=ttnn.DRAM_MEMORY_CONFIG, or transpose an interleaved tensor",
    ),
    "rotary cos and sin on other cores": Hazard(
        "the kernel reads cos, sin and the matrix from the L1 of the core that rotates, and finds other values there",
        "place cos, sin and the matrix on the cores of q, then of k, in their order",
    ),
    "page table in tiles": Hazard(
        "the kernel reads the page table's rows, so it fills another page", "give the page table in ROW_MAJOR_LAYOUT"
    ),
    "sliding window within a dynamic chunk": Hazard(
        "the kernel adds one mask to a chunk, the window's, so the keys after the position are attended",
        "give the program config a k_chunk_size",
    ),
    "sliding window with k_chunk_size 0": Hazard(
        "seen on a card with PCC 0.93; ttnn 0.81.1 takes a chunk from the cache's length, and is right here",
        "give the program config a k_chunk_size",
        refused=False,
    ),
    "row broadcast to another dtype": Hazard(
        "the packer keeps the rows' format, so bfloat16 tiles are written into a result of another format",
        "typecast the result, or the inputs",
    ),
    "tiles of padding alone": Hazard(
        "a block of columns after the row's end is not padded: it holds what the reader found there",
        "ttnn.pad the rows first",
    ),
    "float32 dest of several cores a KV head": Hazard(
        "to join the cores' results takes five tiles of dest, which has four: PCC 0.33 from the second chunk of keys",
        "ttnn 0.81, max_cores_per_head_batch=1, or dst_full_sync_en=True",
    ),
    "chunks of keys on a Blackhole": Hazard(
        "decode attention hangs with chunks of other than 128 keys, not in every run", "k_chunk_size=128", refused=False
    ),
    "bias after a fused activation": Hazard(
        "a bias of several tiles of rows, or with a batch, is added after the program config's activation",
        "give the activation to ttnn.linear (activation=), or a bias of one row",
        refused=False,
    ),
    "bias of more rows than the product": Hazard(
        "the bias of a tile of rows is added to one row and to the padding after it, and the padding becomes rows",
        "ttnn.linear without a bias, then ttnn.add",
    ),
    "HiFi4 with a float32 dest": Hazard(
        "single results are off by about a power of two", "use HiFi3, which loses 3e-5 of a product", refused=False
    ),
}

noted: Counter[tuple[str, str]] = Counter()  # (hazard, op) -> number of calls that met the hazard and ran


def meet(name: str, op: str, what: str) -> None:
    """Report that a call of `op` meets the hazard: HazardError or HazardWarning. what: its rows, shards or values."""
    hazard = HAZARDS[name]
    message = f"{op}: {what}: {hazard.wrong} (HAZARDS.md: {name}). Instead: {hazard.instead}"
    response = switches.current.hazards
    if response == "error" or (response == "default" and hazard.refused):
        raise HazardError(message)
    if not noted[name, op]:
        from golden_mesh.program import lines  # ttnn is loaded by now

        warnings.warn_explicit(message, HazardWarning, *(lines(1) or [("?", 0)])[0])
    noted[name, op] += 1
