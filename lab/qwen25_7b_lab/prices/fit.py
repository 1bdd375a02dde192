"""`perf fit`: fits the laws' constants to measured rows. `--to` of the package's constants.csv
replaces them.

Constants are fitted by logarithms, by least squares of log(price / measured) with less weight for misses above 20 %,
and a pull to where they start: first both architectures together, then each from there. A source counts as 15 rows at
most, since its rows are not independent; a benchmark or vision model as 2, since it runs at other rates than a model's
step. The error is that of each source's rows when the fit has not seen the source.
Rows of models' steps count in it; those of benchmarks and vision models only where a kind has no others.
"""

import csv
import re
from collections import defaultdict
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Optional

import numpy as np
from golden_mesh.outputs import write_whole

from .constants import Fit
from .judge import summary
from .laws import HELD, LAWS, Case
from .rows import case_of, number, read

ARCHES = ("wormhole", "blackhole")
COLUMNS = "kind", "arch", "rows", "sources", "median", "ninetieth", "constants"  # of constants.csv
MISS = 0.2  # of the logarithm, above which a row's weight falls
PULL, PULL_ARCH = 0.02, 0.05  # weight of a constant's distance from its start
ROWS_A_SOURCE, ROWS_OF_OTHERS = 15, 2
OTHER_PROGRAMS = re.compile("GEMM_FLOPS|CCLs|tt-perf-report|PR 41522")  # sources: benchmarks and vision models


class Row(NamedTuple):
    case: Case
    us: float
    source: str


def known(path: Path) -> Iterator[Row]:
    """The rows of a file that have a law."""
    for row in read(path):
        case, us = case_of(row), number(row, "device_us")
        if case and us > 0 and LAWS[case.kind][0](case, Fit(LAWS[case.kind][1]).k) is not None:
            yield Row(case, us, row.get("source") or "")


def fit(
    law: Callable, all_constants: dict[str, float], held: tuple[str, ...], rows: list[Row], pull: float
) -> dict[str, float]:
    """The constants, by Levenberg-Marquardt in logarithms. held: those that stay."""
    if not rows:
        return all_constants
    start = {name: value for name, value in all_constants.items() if name not in held}
    counts = defaultdict(int)
    for row in rows:
        counts[row.source] += 1
    most = {source: ROWS_OF_OTHERS if OTHER_PROGRAMS.search(source) else ROWS_A_SOURCE for source in counts}
    weights = np.array([1 / (1 + counts[row.source] / most[row.source]) for row in rows])
    first = np.log(list(start.values()))

    def misses(x: np.ndarray) -> np.ndarray:
        k = Fit(all_constants | dict(zip(start, np.exp(x)))).k
        return np.array([np.log(law(row.case, k) / row.us) for row in rows])

    def cost(x: np.ndarray, missed: np.ndarray) -> float:
        robust = 2 * MISS**2 * (np.sqrt(1 + (missed / MISS) ** 2) - 1)
        return weights @ robust + pull * ((x - first) ** 2).sum()

    x, damping = first, 1e-2
    missed = misses(x)
    now = cost(x, missed)
    for _ in range(30):
        slopes = np.array([(misses(x + step) - missed) / 1e-3 for step in 1e-3 * np.eye(len(x))]).T
        weighed = weights / np.sqrt(1 + (missed / MISS) ** 2)
        curvature = (slopes.T * weighed) @ slopes + pull * np.eye(len(x))
        gradient = slopes.T @ (weighed * missed) + pull * (x - first)
        for _ in range(6):
            step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -gradient)
            new = x + np.clip(step, -1, 1)
            missed_there = misses(new)
            there = cost(new, missed_there)
            if there < now:
                break
            damping *= 5
        else:
            break
        done, x, missed, now, damping = now - there < 1e-5 * now, new, missed_there, there, damping / 5
        if done:
            break
    return all_constants | dict(zip(start, np.exp(x).tolist()))


def fit_kind(kind: str, rows: list[Row], arches: tuple[str, ...] = ARCHES) -> dict[str, dict[str, float]]:
    """Constants of each architecture."""
    law, start = LAWS[kind]
    held = HELD.get(kind, ())
    both = fit(law, start, held, rows, PULL)
    return {arch: fit(law, both, held, [row for row in rows if row.case.arch == arch], PULL_ARCH) for arch in arches}


def judged(row: Row, rows: list[Row]) -> bool:
    """Whether a row counts in the errors: that of another program does not where there are rows of models' steps."""
    here = (each for each in rows if each.case.arch == row.case.arch)
    return not OTHER_PROGRAMS.search(row.source) or all(OTHER_PROGRAMS.search(each.source) for each in here)


def unseen(kind: str, rows: list[Row]) -> Iterator[tuple[Row, float]]:
    """Price / measured of each source's rows by constants that were fitted without it."""
    law = LAWS[kind][0]
    for source in sorted({row.source for row in rows}):
        left = [row for row in rows if row.source == source]
        constants = fit_kind(
            kind, [row for row in rows if row.source != source], tuple({row.case.arch for row in left})
        )
        for row in filter(lambda row: judged(row, rows), left):
            yield row, law(row.case, Fit(constants[row.case.arch]).k) / row.us


def _write(path: Path, records: list[tuple]) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows(records)


def refit(path: Path, to: Optional[Path]) -> str:
    """The errors, kind by kind, of a fit to a file's rows. to: a file for the constants."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in known(path):
        groups[row.case.kind].append(row)
    records, lines = (
        [],
        [f"{'kind':13} {'arch':9} rows sources | fitted: median, 90 % in | unseen: median, 90 % in, worst"],
    )
    seen, apart = [], []
    for kind in LAWS:
        law, rows = LAWS[kind][0], groups[kind]
        constants, ratios = fit_kind(kind, rows), [*unseen(kind, rows)]
        apart += ratios
        for arch in ARCHES:
            here = [row for row in rows if row.case.arch == arch]
            if not here:
                continue
            fitted = [(row, law(row.case, Fit(constants[arch]).k) / row.us) for row in here if judged(row, here)]
            seen += fitted
            sources = len({row.source for row in here})
            middle, ninetieth, _ = summary([ratio for _, ratio in fitted])
            left = summary([ratio for row, ratio in ratios if row.case.arch == arch])
            said = " ".join(f"{name}={value:.4g}" for name, value in constants[arch].items())
            records.append((kind, arch, len(here), sources, f"{left[0]:.3f}", f"{left[1]:.3f}", said))
            lines.append(
                f"{kind:13} {arch:9} {len(here):4} {sources:7} | {middle:14.1%} {ninetieth:9.1%} | "
                f"{left[0]:14.1%} {left[1]:9.1%} {left[2]:6.2f}"
            )
    if to:
        write_whole(to, lambda part: _write(part, records))
    for name, found in (("fitted", seen), ("unseen", apart)):
        if ratios := [ratio for row, ratio in found if not OTHER_PROGRAMS.search(row.source)]:
            middle, ninetieth, worst = summary(ratios)
            near = sum(abs(ratio - 1) <= 0.3 for ratio in ratios) / len(ratios)
            lines.append(
                f"rows of models' steps, {name}: {len(ratios)}, median {middle:.1%}, {near:.0%} within 30 %, "
                f"90 % within {ninetieth:.1%}, worst factor {worst:.2f}"
            )
    return "\n".join([*lines, *([f"written: {to}"] if to else [])])
