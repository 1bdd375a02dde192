"""A prompt's modelled time: the passes that compute it, their operations' bounds, and where the time goes."""

from collections import Counter
from dataclasses import dataclass
from typing import Sequence

from models.demos.qwen25_7b.perf.bounds import Rates, matmul_peak
from models.demos.qwen25_7b.perf.report import LABEL, named, result
from models.demos.qwen25_7b.perf.step_model import Row, StepModel, model_step
from models.demos.qwen25_7b.perf.table import markdown


@dataclass(frozen=True)
class PrefillModel:
    """passes: the rows of each pass, its start, and its operations with their bounds."""

    passes: tuple[tuple[int, int, StepModel], ...]
    grid_cores: int

    @property
    def seconds(self) -> float:
        return sum(model.seconds for _, _, model in self.passes)

    @property
    def rows(self) -> list[Row]:
        return [row for _, _, model in self.passes for row in model.rows]

    @property
    def peak_share(self) -> float:
        """Of what the matrix engines of all cores could do at the fidelities that the operations use."""
        at_peak = sum(
            row.count * row.work.needed_flops / matmul_peak(row.work.fidelity, self.grid_cores)
            for row in self.rows
            if row.work.needed_flops
        )
        return at_peak / self.seconds

    def parts(self) -> dict[str, float]:
        """Seconds by what they go to."""
        parts = Counter()
        for _, _, model in self.passes:
            parts.update(model.parts())
        return dict(parts)


def model_prefill(passes: Sequence, rates: Rates, *, chips: int, grid_cores: int, links: int) -> PrefillModel:
    """passes: (serving.passes.Pass, capture.Step) pairs of one prompt."""
    modelled = []
    for work, step in passes:
        start = work.pieces[0].first
        model = model_step(
            step, rates, weights=0, chips=chips, grid_cores=grid_cores, links=links, users=1, position=start
        )
        modelled.append((work.rows, start, model))
    return PrefillModel(tuple(modelled), grid_cores)


def prefill_report(model: PrefillModel, *, title: str, tokens: int) -> str:
    parts = ", ".join(f"{kind} {1e3 * s:.1f}" for kind, s in sorted(model.parts().items(), key=lambda p: -p[1]))
    rows = Counter(rows for rows, _, _ in model.passes)
    lines = [
        f"# {title} {LABEL}",
        f"The operations of {len(model.passes)} passes ({', '.join(f'{n} of {r} rows' for r, n in rows.items())}) {LABEL}: "
        f"**{1e3 * model.seconds:.1f} ms**, {tokens / model.seconds:.0f} tokens/s; {model.peak_share:.0%} of the matrix "
        "engines' peak at the fidelities used.",
        f"Of it, in ms {LABEL}: {parts}.",
        f"## All operations of the prompt {LABEL}",
        _table(model.rows),
    ]
    return "\n\n".join(lines)


def _table(rows: list[Row]) -> str:
    """Equal operations of all passes together, the longest first."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((named(row.op), result(row.op), row.op.dram_sharded), []).append(row)
    header = ("op", "result", "launches", "ms", "DRAM ms", "compute ms", "ethernet ms", "waits for")
    lines = []
    for (name, shape, _), same in sorted(groups.items(), key=lambda g: -sum(r.seconds for r in g[1])):
        spent = [1e3 * sum(r.count * getattr(r.bound, part) for r in same) for part in ("dram", "compute", "ethernet")]
        waits = Counter()
        for r in same:
            waits[r.bound.name] += r.seconds
        lines.append(
            (
                name,
                shape,
                f"{sum(r.count for r in same)}",
                f"{1e3 * sum(r.seconds for r in same):.2f}",
                *(f"{ms:.2f}" if ms >= 5e-3 else "" for ms in spent),
                waits.most_common(1)[0][0],
            )
        )
    return markdown(header, lines)
