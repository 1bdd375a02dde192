"""The fitted constants of the laws, and prices by them."""

import csv
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from types import SimpleNamespace
from typing import Optional

from .laws import LAWS, Case


@dataclass(frozen=True)
class Price:
    """Microseconds of a kernel, and the fit behind them: its rows, and its error on rows of sources that it has not
    seen.
    """

    us: float
    kind: str
    rows: int
    error: float  # the ninetieth percentile of |price / measured - 1|; of the fitted rows, where there is one source


@dataclass(frozen=True)
class Fit:
    """The constants of a law on an architecture, and what is known of them."""

    constants: dict[str, float]
    rows: int = 0
    sources: int = 0
    median: float = 0.0  # of rows of sources that a fit has not seen
    ninetieth: float = 0.0
    k: SimpleNamespace = field(default=None, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "k", SimpleNamespace(**self.constants))


@lru_cache(maxsize=None)
def fits() -> dict[tuple[str, str], Fit]:
    """By kind and architecture, from constants.csv."""
    table = {}
    for row in csv.DictReader((files(__package__) / "constants.csv").read_text().splitlines()):
        constants = dict(pair.split("=") for pair in row["constants"].split())
        table[row["kind"], row["arch"]] = Fit(
            {name: float(value) for name, value in constants.items()},
            int(row["rows"]), int(row["sources"]), float(row["median"]), float(row["ninetieth"]),
        )  # fmt: skip
    return table


def price(case: Case) -> Optional[Price]:
    """None: no law, or no row of its kind."""
    fit = fits().get((case.kind, case.arch))
    us = LAWS[case.kind][0](case, fit.k) if fit else None
    return None if us is None else Price(us, case.kind, fit.rows, fit.ninetieth)
