"""Calls that the library accepts and a Wormhole chip computes wrongly: the table, and the response to each.

By default a refused hazard is an error (HazardError). A noted hazard is known from silicon and in wide use.
It is counted, and warned of once for each op. The switch `hazards` turns all into warnings or all into errors.

HAZARDS.md reproduces each hazard for ttnn's maintainers. hazards/checks.py recognizes hazards by a call's
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
    seen: str  # source of this knowledge
    instead: str  # what to do
    refused: bool = True


SIMULATED = "on a bit-exact simulated Wormhole, ttnn 0.81.1"
SOURCE = "in the kernels' source, ttnn 0.81.1"

HAZARDS = {
    "rows of one tile": Hazard(
        "each row's core reads, changes and writes the whole tile, so of several rows in a tile one is kept",
        f"{SIMULATED}: of 8 rows in a tile 7 were lost",
        "give each row a tile of its own, or make one call for each with every other row's position at -1",
    ),
    "all-reduce of a block-sharded tensor": Hazard(
        "the shards are summed as if they lay otherwise",
        f"{SIMULATED}: PCC 0.29",
        "reduce_scatter with the output's memory_config, then all_gather, or all_reduce an interleaved tensor",
    ),
    "reduce-scatter of a block-sharded tensor": Hazard(
        "without the output's memory_config the result lies otherwise than its memory config says",
        f"{SIMULATED}: PCC 0.29",
        "give memory_config, block-sharded to the scattered width",
    ),
    "ring topology on a line's fabric": Hazard(
        "the fabric has no route from the last chip of the row to the first, so the collective waits forever",
        "in the fabric's configuration, ttnn 0.81.1: FABRIC_1D sets up no wrap-around route; not run",
        "open the fabric as FABRIC_1D_RING, or let the topology be Linear (ttnn.get_usable_topology names the fabric's "
        "own)",
    ),
    "all_reduce_async through a smaller buffer": Hazard(
        "the kernel lays out the buffer by its input's format, so summands of a larger one are written past its shards",
        SOURCE,
        "give the buffer the input's dtype",
    ),
    "chunk start between chunks of queries": Hazard(
        "the kernel takes the start in whole chunks of queries, so every query sees other keys than it should",
        f"{SIMULATED}: PCC 0.91 to 0.985; the form with a number refuses it, the form with a tensor does not",
        "let the start be a multiple of q_chunk_size",
    ),
    "chunk start between chunks of keys": Hazard(
        "some results were wrong on cards, not in every run",
        "tt-metal issue 35225; the form with a number refuses it since; right on a simulated Wormhole and here",
        "let the start be a multiple of k_chunk_size",
        refused=False,
    ),
    "padding of an attention mask": Hazard(
        "the kernel adds whole tiles of the mask to the scores, and attends to the keys in their padding",
        f"tt-metal issue 54833, and {SIMULATED}",
        "ttnn.from_torch(mask, pad_value=-math.inf), or ttnn.fill_implicit_tile_padding(mask, -math.inf)",
    ),
    "mask of another length than the page table": Hazard(
        "the kernel takes a row of the mask for as long as the page table's tokens, and reads other rows",
        SOURCE,
        "let the mask's last dimension be the page table's width times the block size",
    ),
    "chunk of keys beyond the page table": Hazard(
        "the reader fetches whole chunks, and takes what lies behind the table for block numbers",
        f"{SIMULATED}: reads outside of DRAM",
        "let k_chunk_size be at most the page table's width times the block size",
    ),
    "chunk of keys with a missing block": Hazard(
        "the reader fetches whole chunks, the blocks behind a user's position among them, and -1 is no block",
        SOURCE,
        "name some block for every entry of the last chunk that a user reads, or let k_chunk_size be the block size",
    ),
    "interleaved bias of a DRAM-sharded linear": Hazard(
        "the kernels read the bias bank by bank, as the weight lies",
        f"{SIMULATED}: PCC 0.10, where a DRAM-sharded bias gives 0.999997",
        "shard the bias over the DRAM banks as the weight is",
    ),
    "multicast matmul of wider bank shards": Hazard(
        "the kernel takes ceil(tiles of N / DRAM banks) for a bank's shard, and reads every column from another place",
        f"{SIMULATED}, and on a simulated P150: relative error 1.2 to 1.4",
        "let the shards of weight and bias be that wide (zero columns change N), or interleave the weight",
    ),
    "typecast to bfloat4_b": Hazard(
        "the packer cuts to 3 bits what it rounded to 7: everything comes out 14 % too small",
        f"{SIMULATED}: gain 0.86, error 0.21, where the host's packing has 0.995 and 0.117",
        "convert to bfloat4_b on the host (ttnn.from_torch)",
    ),
    "gather of wide rows": Hazard(
        "several cores write parts of one row-major row, and overwrite each other's: half of the elements are wrong",
        "tt-metal issue 55450, on cards; right on a simulated Wormhole and here",
        "take tiles (ttnn.to_layout), or at most 1920 indices a row",
        refused=False,
    ),
    "pad of float32": Hazard(
        "the value becomes two bfloat16 halves of one float32: 7 is 7.0079, infinity is NaN",
        f"tt-metal issue 54223, and {SIMULATED}",
        "pad tiles with use_multicore=True (ttnn.to_layout), or with 0",
    ),
    "slice from an unaligned column": Hazard(
        "the kernel reads over its own counters, and may return rows that it should leave out",
        f"tt-metal issue 57382, and {SIMULATED}",
        "slice the last dimension alone, then the others",
    ),
    "broadcast to other memory": Hazard(
        "the kernel writes the result with the input's layout of pages, over other memory",
        "tt-metal issue 57352, and in the source of ttnn 0.81.1",
        "leave memory_config out, then ttnn.to_memory_config",
    ),
    "rotate_half of float32": Hazard(
        "the half that the kernel negates is 0",
        f"{SIMULATED}, and on a simulated Blackhole",
        "ttnn.typecast to bfloat16, or ttnn.neg of the half and ttnn.concat",
    ),
    "floor_div of integers": Hazard(
        "the result is a FLOAT32 tensor that holds the bits of int32 quotients",
        f"tt-metal issue 53765, and {SIMULATED}",
        'ttnn.div(a, b, rounding_mode="floor")',
    ),
    "integers in a kernel of floats": Hazard(
        "the kernel reads the bits of integers as floats, so the results are arbitrary",
        f"{SIMULATED}: 7 + 3 * 2 = 7",
        "typecast to float32 before, or write the operation as others (add, multiply)",
    ),
    "remainder of integers by a float": Hazard(
        "the kernel divides floats: beyond 2**24 the remainder is another number",
        f"{SIMULATED}: 100000007 % 7.0 = 1",
        "give the divisor as an integer",
    ),
    "NaN and infinity in a function": Hazard(
        "the kernel's value for NaN or infinity is not the function's: a finite number, or another infinity",
        f"{SIMULATED}: xlogy(1, infinity) = 88.5",
        "replace them before (ttnn.where with ttnn.isfinite)",
        refused=False,
    ),
    "convolution to bfloat8_b": Hazard(
        "the packer rounds the image and each partial sum to bfloat8_b, upwards in the mean",
        f"{SIMULATED}: 2.6 to 4.5 % too large; 1.1 % with packer_l1_acc, 0.7 % with a float32 dest",
        "a compute_config with packer_l1_acc=True or fp32_dest_acc_en=True, or dtype=ttnn.bfloat16",
        refused=False,
    ),
    "lcm beyond 32767": Hazard(
        "the kernel multiplies 15 bits by 16",
        f"{SIMULATED}: lcm(16777217, 16777217) = 16776961",
        "compute it on the host, or divide the product by ttnn.gcd",
    ),
    "tosa_scatter beyond 65535": Hazard(
        "the index becomes a UINT16, so the row 65536 lower is written",
        f"tt-metal issue 56398, and {SIMULATED}",
        "ttnn.scatter, with the index expanded to the shape of src",
    ),
    "broadcast at dim -6 beyond rank 6": Hazard(
        "the kernels count dim -6 and all dims before it as one, and read other tiles, or beyond the buffer",
        f"tt-metal issue 55351, and {SIMULATED}",
        "reshape to rank 6 or less, or repeat the smaller tensor (ttnn.repeat)",
    ),
    "narrowed shards in another order": Hazard(
        "the library sorts a view's cores anew, and ops that go by that list take the wrong columns",
        SIMULATED,
        "give each part whole rows of cores, or all of it in one row",
    ),
    "no math fidelity": Hazard(
        "a compute_kernel_config without math_fidelity reaches the kernels as fidelity 255, and they make as many "
        "phases",
        "in the headers that ttnn 0.81.1 generates for the kernels; not run",
        "name a math_fidelity",
    ),
    "buffer where a live trace writes": Hazard(
        "a replay overwrites the buffer: the capture had its temporaries in this memory, and freed them",
        "ttnn's own warning, and TT_METAL_TRACE_ALLOC_TRACKING=1",
        "allocate it before the capture, free it before the replay, or release the trace",
        refused=False,
    ),
    "sum of a wide row in a bfloat16 dest": Hazard(
        "a long sum in bfloat16 loses small terms: a norm of width 3584 comes out 2 % too small, with a mean of 5 5.5 "
        "%",
        f"{SIMULATED}; the golden mesh computes the same",
        "pass a compute_kernel_config with fp32_dest_acc_en=True",
        refused=False,
    ),
    "decode mask with users in its second dim": Hazard(
        "every user gets the first user's mask",
        f"{SIMULATED}: the other users' results were off by 70 to 98 %",
        "give the mask as [users, 1, heads, keys]",
    ),
    "extreme of a partial tile in bfloat8_b": Hazard(
        "the columns of the last, partial tile come out 0: its padding of infinities takes their exponent",
        f"{SIMULATED}: 74 of 74 row maxima, and topk of 40, 50 and 104 columns",
        "typecast to bfloat16 first, or slice to a multiple of 32 columns",
    ),
    "transpose of height shards in L1": Hazard(
        "half of the values are wrong, another half each time",
        f"{SIMULATED}, slow dispatch",
        "give memory_config=ttnn.DRAM_MEMORY_CONFIG, or transpose an interleaved tensor",
    ),
    "rotary cos and sin on other cores": Hazard(
        "the kernel reads cos, sin and the matrix from the L1 of the core that rotates, and finds other values there",
        f"{SIMULATED}, and on a simulated P150: k wrong for 6 of 7 users",
        "place cos, sin and the matrix on the cores of q, then of k, in their order",
    ),
    "page table in tiles": Hazard(
        "the kernel reads the page table's rows, so it fills another page",
        "tt-xla issue 5734, which hangs a Galaxy",
        "give the page table in ROW_MAJOR_LAYOUT",
    ),
    "sliding window within a dynamic chunk": Hazard(
        "the kernel adds one mask to a chunk, the window's, so the keys after the position are attended",
        f"tt-metal issue 51223, and {SOURCE}",
        "give the program config a k_chunk_size",
    ),
    "sliding window with k_chunk_size 0": Hazard(
        "seen on a card with PCC 0.93; ttnn 0.81.1 takes a chunk from the cache's length, and is right here",
        "tt-metal issue 51223, of dynamic chunks",
        "give the program config a k_chunk_size",
        refused=False,
    ),
    "row broadcast to another dtype": Hazard(
        "the packer keeps the rows' format, so bfloat16 tiles are written into a result of another format",
        f"tt-metal issue 51218, and {SOURCE}",
        "typecast the result, or the inputs",
    ),
    "tiles of padding alone": Hazard(
        "a block of columns after the row's end is not padded: it holds what the reader found there",
        f"tt-metal issue 57354, and {SOURCE}",
        "ttnn.pad the rows first",
    ),
    "float32 dest of several cores a KV head": Hazard(
        "to join the cores' results takes five tiles of dest, which has four: PCC 0.33 from the second chunk of keys "
        "on",
        "tt-metal issue 56171; mended in ttnn 0.81",
        "ttnn 0.81, max_cores_per_head_batch=1, or dst_full_sync_en=True",
    ),
    "chunks of keys on a Blackhole": Hazard(
        "decode attention hangs with chunks of other than 128 keys, not in every run",
        "tt-metal issue 32652; a simulated P150 ran chunks of 32",
        "k_chunk_size=128",
        refused=False,
    ),
    "bias after a fused activation": Hazard(
        "a bias of several tiles of rows, or with a batch, is added after the program config's activation",
        f"{SIMULATED}; the golden mesh computes the same",
        "give the activation to ttnn.linear (activation=), or a bias of one row",
        refused=False,
    ),
    "bias of more rows than the product": Hazard(
        "the bias of a tile of rows is added to one row and to the padding after it, and the padding becomes rows",
        "in ttnn 0.81.1's kernel and shapes: the product of x's padding stands where a row of x is expected",
        "ttnn.linear without a bias, then ttnn.add",
    ),
    "HiFi4 with a float32 dest": Hazard(
        "single results are off by about a power of two",
        "on silicon only (tt-metal issue 38306, ttnn advises HiFi3); simulators and this golden mesh compute it right",
        "use HiFi3, which loses 3e-5 of a product",
        refused=False,
    ),
}

noted: Counter[tuple[str, str]] = Counter()  # (hazard, op) -> number of calls that met the hazard and ran


def meet(name: str, op: str, what: str) -> None:
    """Report that a call of `op` meets the hazard: HazardError or HazardWarning. what: its rows, shards or values."""
    hazard = HAZARDS[name]
    message = f"{op}: {what}: {hazard.wrong} (known from: {hazard.seen}). Instead: {hazard.instead}"
    response = switches.current.hazards
    if response == "error" or (response == "default" and hazard.refused):
        raise HazardError(message)
    if not noted[name, op]:
        from golden_mesh.program import lines  # ttnn is loaded by now

        warnings.warn_explicit(message, HazardWarning, *(lines(1) or [("?", 0)])[0])
    noted[name, op] += 1
