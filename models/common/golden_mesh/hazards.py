"""What the library accepts and a Wormhole chip gets wrong without a word: the table, and what meeting an entry does.

A refused hazard is an error here (HazardError). One that is only noted is known of silicon and in wide use, so that
refusing it would keep other people's models from running: it is counted, and warned of once for each op. HAZARDS.md has
a reproduction of each for ttnn's maintainers; hazard_checks.py recognises those that a call shows, the goldens those
that its values show.
"""

import warnings
from collections import Counter
from dataclasses import dataclass

from models.common.golden_mesh.errors import GoldenError


class HazardError(GoldenError):
    """A call that a chip would get wrong."""


class HazardWarning(UserWarning):
    """A call that a chip may get wrong, carried out all the same."""


@dataclass(frozen=True)
class Hazard:
    wrong: str  # what a chip makes of it
    seen: str  # where that is known from
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
    "reduce-scatter of a width-sharded tensor in L1": Hazard(
        "single words of the result are zero",
        f"{SIMULATED}: the decode residual [1, 1, 32, 3584] on 28 cores, on 1x2 and 1x8 (PCC 0.999)",
        "move it to DRAM before, or use experimental.reduce_scatter_minimal_async or all_reduce_async",
    ),
    "reduce-scatter from width-sharded to width-sharded": Hazard(
        "of the decode residual [1, 1, 32, 3584] on 28 cores, which is refused, single words were zero",
        f"{SIMULATED}, where this form was right by PCC at other shapes; tt-metal's llama3 decodes with it on N300",
        "move it to DRAM before, or use experimental.reduce_scatter_minimal_async or all_reduce_async",
        refused=False,
    ),
    "reduce_scatter_minimal_async from L1": Hazard(
        "the first use gives wrong values",
        f"{SIMULATED}: the decode residual, interleaved in L1, on 1x2 (PCC 0.9985)",
        "give it sharded in L1, or from DRAM",
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
    "typecast to bfloat4_b": Hazard(
        "the packer cuts to 3 bits what it rounded to 7: everything comes out 14 % too small",
        f"{SIMULATED}: gain 0.86, error 0.21, where the host's packing has 0.995 and 0.117",
        "convert to bfloat4_b on the host (ttnn.from_torch)",
    ),
    "narrowed shards in another order": Hazard(
        "the library sorts a view's cores anew, and ops that go by that list take the wrong columns",
        SIMULATED,
        "give each part whole rows of cores, or all of it in one row",
    ),
    "no math fidelity": Hazard(
        "a compute_kernel_config without math_fidelity reaches the kernels as fidelity 255, and they make as many phases",
        "in the headers that ttnn 0.81.1 generates for the kernels; not run",
        "name a math_fidelity",
    ),
    "HiFi4 with a float32 dest": Hazard(
        "single results are off by about a power of two",
        "on silicon only (tt-metal issue 38306, ttnn advises HiFi3); simulators and this golden mesh compute it right",
        "use HiFi3, which loses 3e-5 of a product",
        refused=False,
    ),
}

noted: Counter[tuple[str, str]] = Counter()  # (hazard, op) -> how many calls met it, of those that are not refused


def meet(name: str, op: str, what: str) -> None:
    """A call of `op` meets the hazard; `what` names its rows, shards or values. HazardError unless it is only noted."""
    hazard = HAZARDS[name]
    message = f"{op}: {what}: {hazard.wrong} (known from: {hazard.seen}). Instead: {hazard.instead}"
    if hazard.refused:
        raise HazardError(message)
    if not noted[name, op]:
        warnings.warn(message, HazardWarning, stacklevel=2)
    noted[name, op] += 1
