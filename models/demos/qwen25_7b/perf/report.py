"""The text of perf ops and perf model, and the picture of where a step's time goes."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Sequence

from golden_mesh.perf import calibration as cal
from golden_mesh.perf.device_ops import Op, Tensor
from golden_mesh.perf.op_costs import DRAM
from golden_mesh.perf.prices import HEADER, Row, cells, label, megabytes, named, result, shape
from matplotlib.figure import Figure

from models.common.errors import UserError
from models.common.markdown import markdown
from models.common.machines import MACHINES
from models.common.output_file import write_whole
from models.common.terminal import Progress
from models.demos.qwen25_7b.perf.step_model import PrefillModel, StepModel

LABEL = "(modeled, not measured)"
PARTS = {  # colors, in the order of a bar
    "streaming weights": "#2b6cb0",
    "interleaved DRAM (cache)": "#ed8936",
    "ethernet": "#276749",
    "compute": "#b794f4",
    "launches": "#8a8f98",
}

Bar = tuple[str, str, dict[str, float]]  # machine, recipe, seconds by part


def op_table(ops: tuple[Op, ...]) -> str:
    """A row for each operation, in order: result, cores, and its reads from DRAM."""
    header = ("op", "result", "dtype", "memory", "cores", "reads from DRAM")
    return markdown(header, [_op_row(op) for op in ops])


def _op_row(op: Op) -> tuple[str, ...]:
    kinds = list(dict.fromkeys(op.results))
    # Tensors of integers are positions and page tables.
    read = [t for t in op.inputs if t.in_dram and "int" not in t.dtype]
    return (
        label(op),
        ", ".join(times(op.results.count(t), shape(t)) for t in kinds) or "in place",
        ", ".join(dict.fromkeys(t.dtype for t in kinds)),
        ", ".join(dict.fromkeys(t.memory for t in kinds)),
        " + ".join(str(t.cores) for t in op.results if t.cores),
        "; ".join(times(read.count(t), _dram_input(t)) for t in dict.fromkeys(read)),
    )


def times(count: int, noun: str) -> str:
    return f"{count} x {noun}" if count > 1 else noun


def _dram_input(t: Tensor) -> str:
    if t.tiled and not t.shard and t.shape[0] > 1:  # a paged cache, of any number of blocks
        return f"cache in blocks of {list(t.shape[1:])} {t.dtype}"
    padding = f" ({t.allocated / t.bytes - 1:.1%} padding)" if t.allocated > t.bytes else ""
    return f"{shape(t)} {t.dtype}, {megabytes(t.allocated)}{padding}"


def step_report(
    model: StepModel,
    calibration: cal.Calibration,
    *,
    title: str,
    users: int,
    replicas: int,
    layers: int,
) -> str:
    blocks = [
        f"# {title} {LABEL}",
        step_summary(model, calibration, users, replicas),
        f"## A layer, {layers} of them {LABEL}",
        step_table(model.in_layer, layers),
        f"## Around the layers {LABEL}",
        step_table(model.around, 1),
        f"## The five with the largest loss against their own floor {LABEL}",
        worst(model),
        f"## Calibration {LABEL}",
        fitted(calibration),
    ]
    return "\n\n".join(blocks)


def step_summary(model: StepModel, calibration: cal.Calibration, users: int, replicas: int) -> str:
    step, host = model.seconds, calibration.host(users)
    lines = [
        f"Operations of a step {LABEL}: **{1e3 * step:.2f} ms**, {1 / step:.1f} tokens/s/user, "
        f"{users * replicas / step:.0f} tokens/s in all; {model.launches} launches.",
        f"Published runs spend {1e3 * host:.2f} ms more a step with {users} user{'s' * (users > 1)}, on the host and in "
        f"sampling. With it: {1 / (step + host):.1f} tokens/s/user {LABEL}.",
        f"Parts in ms {LABEL}: {_parts(model.parts())}.",
        f"Floor {LABEL}: {model.weights / 1e9:.3f} GB of weights a chip at {DRAM / 1e9:.0f} GB/s take "
        f"{1e3 * model.floor:.2f} ms ({1 / model.floor:.1f} tokens/s/user). Padding and biases add "
        f"{model.streamed / model.weights - 1:.1%} bytes. The step takes {step / model.floor:.2f} times the floor.",
    ]
    if model.searches():
        names = ", ".join(model.searches())
        lines.append(
            f"The model counts bytes and a launch alone {LABEL}, which is too fast: {names}."
        )
    return "\n\n".join(lines)


def _parts(parts: dict[str, float], digits: int = 2) -> str:
    longest = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{kind} {1e3 * seconds:.{digits}f}" for kind, seconds in longest)


def step_table(rows: list[Row], per: int) -> str:
    """A row for each kind of operation: us of one launch, ms of a step. per: layers that share the rows."""
    bounds = ("DRAM us", "compute us", "ethernet us", "us", "waits for")
    header = ("op", "result", "launches", "DRAM", "link", *bounds, "ms a step")
    launches, seconds = sum(row.count for row in rows), sum(row.seconds for row in rows)
    total = ("sum", "", f"{launches / per:.3g}", *("",) * 7, f"{1e3 * seconds:.3f}")
    return markdown(header, [*(_step_row(row, per) for row in rows), total])


def _step_row(row: Row, per: int) -> tuple[str, ...]:
    b, moved = row.bound, row.work.streamed + row.work.scattered
    return (
        named(row.op),
        result(row.op),
        f"{row.count / per:.3g}",
        megabytes(moved) if moved else "",
        megabytes(row.work.sent) if row.work.sent else "",
        *(f"{1e6 * s:.1f}" if s >= 5e-8 else "" for s in (b.dram, b.compute, b.ethernet)),
        f"{1e6 * b.seconds:.1f}",
        b.name,
        f"{1e3 * row.seconds:.3f}",
    )


def worst(model: StepModel) -> str:
    header = ("op", "result", "launches a step", "ms a step", "floor ms", "lost ms", "waits for")
    rows = []
    for row in model.worst(5):
        spent = (f"{1e3 * seconds:.2f}" for seconds in (row.seconds, row.floor, row.loss))
        rows.append((named(row.op), result(row.op), f"{row.count}", *spent, row.bound.name))
    return markdown(header, rows)


def fitted(c: cal.Calibration) -> str:
    """The parameters, and every published figure beside the model's."""
    r, spread = c.rates, c.spread
    low, high = (1e6 * s for s in spread["launch"])
    once, crowd, cache = ([1e3 * s for s in spread[n]] for n in ("once", "crowd", "scattered"))
    text = [
        f"golden_mesh/docs/perf.md has the sources {LABEL}. In brackets: the range with one point left out.",
        f"- launch {1e6 * r.launch:.1f} us ({low:.1f} to {high:.1f}), and {1e3 * c.once:.1f} ms a step "
        f"({once[0]:.1f} to {once[1]:.1f}): fitted to speeds of one user.",
        f"- interleaved DRAM at {r.scattered:.0%} of {DRAM / 1e9:.0f} GB/s ({cache[0] / 10:.0f} to {cache[1] / 10:.0f} %), "
        f"and {1e3 * c.crowd:.1f} ms a step more with 32 users ({crowd[0]:.1f} to {crowd[1]:.1f}): fitted to differences.",
        f"- weights at {r.streamed:.0%} of {DRAM / 1e9:.0f} GB/s, collectives by measured rows: not fitted.",
        f"- multicast matmuls unpack {r.unpack:.0f} bytes a cycle: fitted to {len(c.gemms)} matmuls.",
    ]
    kinds = {
        "fitted: one user": c.steps,
        "fitted: 32 users longer than one": c.crowds,
        "fitted: a matmul": c.gemms,
        "held out": c.held_out,
    }
    rows = [
        (kind, p.label, f"{p.published:.1f} {p.unit}", f"{p.modeled:.1f}", f"{p.residual:+.1%}")
        for kind, points in kinds.items()
        for p in points
    ]
    return (
        "\n".join(text) + "\n\n" + markdown(("use", "run", "published", "model", "misses by"), rows)
    )


def prefill_report(model: PrefillModel, *, title: str, tokens: int) -> str:
    rows = Counter(rows for rows, _, _ in model.batches)
    batches = ", ".join(f"{count} of {size} rows" for size, count in rows.items())
    lines = [
        f"# {title} {LABEL}",
        f"Operations of {len(model.batches)} prefill batches ({batches}) {LABEL}: **{1e3 * model.seconds:.1f} ms**, "
        f"{tokens / model.seconds:.0f} tokens/s; {model.peak_share:.0%} of the matrix engines' peak.",
        f"Parts in ms {LABEL}: {_parts(model.parts(), 1)}.",
        f"## All operations of the prompt {LABEL}",
        markdown(HEADER, cells(model.rows, 2)),
    ]
    return "\n\n".join(lines)


def machine_bars(recipes: Sequence[str], options: Sequence[str]) -> list[Bar]:
    """The modeled steps of every machine, a row of chips one replica, by recipe. options: of perf model, for all of them."""
    kinds = [(kind, recipe) for kind in MACHINES.values() for recipe in recipes]
    bars = []
    with Progress("modeling every machine and recipe", "steps") as progress:
        for kind, recipe in kinds:
            progress(len(bars), len(kinds))
            parts = modeled_elsewhere(["--mesh", kind.name, "--recipe", recipe, *options])
            bars.append((f"{kind.name}, tp {kind.row}", recipe, parts))
    return bars


def modeled_elsewhere(options: Sequence[str]) -> dict[str, float]:
    """Seconds of a step by part, from a new process, because a process opens one machine.

    UserError: the process failed; the last line of its stderr says why.
    """
    command = [sys.executable, "-m", "models.demos.qwen25_7b.perf", "model", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        message = (done.stderr.splitlines() or ["no message"])[-1].removeprefix("error: ")
        raise UserError(f"perf model {' '.join(options)}: status {done.returncode}: {message}")
    return json.loads(done.stdout.splitlines()[-1])


def bar_table(bars: Sequence[Bar]) -> str:
    """The numbers of the picture."""
    rows = []
    for machine, recipe, parts in bars:
        step = sum(parts.values())
        spent = (f"{1e3 * parts.get(part, 0.0):.2f}" for part in PARTS)
        rows.append((machine, recipe, f"{1e3 * step:.2f}", f"{1 / step:.1f}", *spent))
    return markdown(("machine", "recipe", "ms a step", "tokens/s/user", *PARTS), rows)


def draw_bars(file: Path, title: str, bars: Sequence[Bar]) -> None:
    """A bar for each machine and recipe, machines apart. The suffix of `file` chooses the format."""
    figure = Figure(figsize=(9, 1.6 + 0.36 * len(bars)), dpi=150, layout="constrained")
    axes = figure.subplots()
    places, machines = [], list(dict.fromkeys(machine for machine, _, _ in bars))
    longest = max(1e3 * sum(parts.values()) for _, _, parts in bars)
    for i, (machine, _, parts) in enumerate(bars):
        place, left = i + 0.6 * machines.index(machine), 0.0
        for part, color in PARTS.items():
            width = 1e3 * parts.get(part, 0.0)
            axes.barh(place, width, left=left, height=0.74, color=color)
            if width > 0.05 * longest:
                dark = part in ("streaming weights", "ethernet")
                how = dict(ha="center", va="center", fontsize=7, color="white" if dark else "black")
                axes.text(left + width / 2, place, f"{width:.1f}", **how)
            left += width
        step = sum(parts.values())
        text = f"{1e3 * step:.1f} ms, {1 / step:.0f} tokens/s/user"
        axes.text(left + 0.01 * longest, place, text, va="center", fontsize=8)
        places.append(place)
    axes.set_yticks(places, [f"{machine}  {recipe}" for machine, recipe, _ in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * longest)
    axes.set_xlabel("ms a step", fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    used = [part for part in PARTS if any(parts.get(part) for _, _, parts in bars)]
    handles = [axes.barh(0, 0, color=PARTS[part]) for part in used]
    figure.legend(
        handles, used, frameon=False, loc="outside lower center", ncols=len(used), fontsize=8
    )
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    write_whole(file, figure.savefig)
