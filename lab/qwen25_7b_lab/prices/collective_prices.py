"""Measured time of collectives between Wormhole chips, by operation, chips, topology and bytes. Pure functions.

Source: tt-metal, tech_reports/CCLs/results, FULL_ and SUMMARY_wormhole_b0_bfloat16_6144.md: runs of 28 September 2026
on a LoudBox of eight Wormhole chips. Calls are traced, over one link a direction, of bfloat16 tensors in DRAM; the
report finds no difference for tensors in L1. A time is the duration of the kernels on a chip: a launch is not in it.
"""

from dataclasses import dataclass
from typing import Literal

Topology = Literal["line", "ring"]

# Of the whole logical tensor: all_gather's output, reduce_scatter's input, all_reduce's input and output.
SMALLEST = {2: 4 << 10, 4: 8 << 10, 8: 16 << 10}  # bytes of a first row; each further row doubles them

# (operation, chips, topology): microseconds, from SMALLEST to 32 MiB
ROWS: dict[tuple[str, int, Topology], tuple[float, ...]] = {
    ("all_gather", 2, "line"): (
        7.09, 7.65, 8.28, 9.67, 12.20, 17.50, 27.30, 48.31, 89.16, 171.42, 336.09, 666.34, 1326.64, 2646.21,
    ),
    ("all_gather", 4, "line"): (
        10.50, 11.69, 12.97, 14.16, 19.30, 27.17, 44.04, 77.50, 144.63, 278.65, 546.50, 1081.98, 2154.39,
    ),
    ("all_gather", 8, "line"): (
        19.84, 21.79, 24.98, 29.46, 39.72, 59.46, 101.28, 176.63, 331.93, 644.66, 1268.25, 2516.23,
    ),
    ("all_gather", 8, "ring"): (
        17.61, 19.20, 20.36, 24.08, 31.51, 44.73, 69.56, 110.08, 199.16, 374.56, 727.02, 1432.40,
    ),
    ("reduce_scatter", 2, "line"): (
        6.90, 7.67, 8.79, 10.16, 12.88, 17.53, 26.01, 43.64, 75.16, 139.76, 268.46, 509.23, 958.92, 1905.26,
    ),
    ("reduce_scatter", 4, "line"): (
        14.53, 16.47, 18.68, 22.33, 29.58, 38.15, 58.33, 101.24, 179.71, 334.89, 652.56, 1272.37, 2453.96,
    ),
    ("reduce_scatter", 8, "line"): (
        30.41, 31.71, 37.89, 45.60, 61.19, 71.30, 121.22, 204.64, 372.76, 720.80, 1391.62, 2722.10,
    ),
    ("reduce_scatter", 8, "ring"): (
        19.61, 21.24, 24.70, 32.97, 49.75, 102.82, 80.92, 134.76, 239.75, 441.14, 882.38, 1781.40,
    ),
    ("all_reduce", 2, "line"): (
        12.82, 13.97, 15.96, 19.01, 24.44, 34.04, 52.30, 90.43, 162.98, 309.52, 603.63, 1174.28, 2283.72, 4550.12,
    ),
    ("all_reduce", 4, "line"): (
        26.98, 30.26, 33.30, 39.44, 52.05, 71.49, 111.12, 190.05, 340.18, 638.98, 1232.33, 2416.04, 4654.26,
    ),
    ("all_reduce", 8, "line"): (
        55.16, 57.74, 65.31, 76.86, 103.75, 136.25, 232.25, 391.12, 715.62, 1390.77, 2722.29, 5378.04,
    ),
    ("all_reduce", 8, "ring"): (
        35.80, 38.82, 44.73, 55.75, 81.13, 151.45, 150.71, 249.38, 443.11, 820.94, 1617.50, 3233.07,
    ),
}  # fmt: skip

# Blackhole, two links: microseconds at the start and GB/s of the whole tensor, fitted to tech_reports/CCLs/results,
# SUMMARY_blackhole_bfloat16_8192.md (2 and 4 chips a line, 8 a ring).
START_RATE = {
    ("all_gather", 2): (4.8, 83.9), ("all_gather", 4): (7.3, 58.3), ("all_gather", 8): (12.4, 96.9),
    ("reduce_scatter", 2): (5.3, 63.7), ("reduce_scatter", 4): (12.8, 48.1), ("reduce_scatter", 8): (13.9, 85.2),
    ("all_reduce", 2): (10.6, 35.9), ("all_reduce", 4): (21.9, 25.6), ("all_reduce", 8): (25.2, 44.1),
    ("all_to_all", 2): (3.0, 61.8), ("all_to_all", 4): (5.9, 45.6), ("all_to_all", 8): (10.3, 35.2),
}  # fmt: skip


def collective_seconds(op: str, chips: int, topology: Topology, tensor_bytes: float, links: int = 1) -> float:
    """Kernel seconds of a ttnn.all_gather, reduce_scatter or all_reduce over a row of chips.

    tensor_bytes: bytes of the whole logical tensor. That is all_gather's output, and the input of the others.
    links: between neighbors, each direction. The report measured one; each of several carries its share of the bytes.

    Times between two rows are interpolated by bytes. A tensor below the first row takes the time of that row. Beyond
    the last row the rate is that of the last two rows.
    """
    if chips == 1:
        return 0.0
    rows = ROWS[op, chips, topology]
    first, sent = SMALLEST[chips], tensor_bytes / links
    if sent <= first:
        return 1e-6 * rows[0]
    sizes = [first << i for i in range(len(rows))]
    above = next((i for i, size in enumerate(sizes) if size >= sent), len(rows) - 1)
    low, high = above - 1, above
    slope = (rows[high] - rows[low]) / (sizes[high] - sizes[low])
    return 1e-6 * (rows[low] + slope * (sent - sizes[low]))


@dataclass(frozen=True)
class Collective:
    """A ttnn.all_gather or reduce_scatter over a row of chips, or a part of another operation that is like one."""

    op: str
    chips: int
    topology: Topology
    tensor_bytes: int  # of the whole logical tensor

    def seconds(self, links: int = 1) -> float:
        """Of its kernels."""
        return collective_seconds(self.op, self.chips, self.topology, self.tensor_bytes, links)

    @property
    def sent(self) -> int:
        """Bytes through the busiest link in one direction."""
        through = self.tensor_bytes * (self.chips - 1) // self.chips
        return through // 2 if self.topology == "ring" else through
