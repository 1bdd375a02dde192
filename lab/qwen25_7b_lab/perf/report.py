"""The text of perf ops and perf model."""

from collections import Counter
from typing import Iterable

from models.demos.qwen25_7b.plans.decode_plan import DecodeMatmul
from models.demos.qwen25_7b.plans.grids import TILE

from ..options import markdown
from ..prices.device_ops import Op, Tensor
from ..prices.prices import HEADER, cells, label, megabytes, ranged, shape, total
from ..prices.published import span
from .plan_tables import hops
from .step_model import PrefillModel, StepModel

LABEL = "(modeled, not measured)"
RANGES = (
    "The second and third number are the range: what published steps took, as shares of their modeled times "
    f"{LABEL}. The digits below are for adding up."
)


def step_ms(seconds: float) -> str:
    """Such as "19 ms, 15 to 33"."""
    value, between = ranged(1e3 * seconds, span()).split(", ")
    return f"{value} ms, {between}"


def tokens_a_second(seconds: float, users: int = 1) -> str:
    """Tokens a second of steps of so many seconds, such as "52, 30 to 67"."""
    return ranged(users / seconds, [1 / share for share in span()])


def op_table(ops: tuple[Op, ...], plans: Iterable[DecodeMatmul] = ()) -> str:
    """A row for each operation: result, cores, reads from DRAM. plans: of decode matmuls, for their hops."""
    header = ("op", "result", "dtype", "memory", "cores", "reads from DRAM", "hops x us of weights")
    chains = {(plan.in_cores, TILE * plan.k_tiles, TILE * plan.n_tiles): hops(plan) for plan in plans}
    matmuls = ((op.inputs[0].cores, *op.inputs[1].shape[-2:]) if op.dram_sharded else None for op in ops)
    return markdown(header, [(*_op_row(op), chains.get(matmul, "")) for op, matmul in zip(ops, matmuls)])


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


def step_report(model: StepModel, *, title: str, users: int, replicas: int, layers: int) -> str:
    step = model.seconds
    lines = [
        f"# {title} {LABEL}",
        f"Operations of a step {LABEL}: **{step_ms(step)}**, {tokens_a_second(step)} tokens/s/user, "
        f"{tokens_a_second(step, users * replicas)} tokens/s in all; {model.launches} launches.",
        RANGES,
        f"Parts in ms {LABEL}: {_parts(model.parts())}.",
        f"Floor {LABEL}: {model.weights / 1e9:.3f} GB of weights a chip at {model.bandwidth / 1e9:.0f} GB/s take "
        f"{1e3 * model.floor:.2f} ms ({1 / model.floor:.1f} tokens/s/user). Padding and biases add "
        f"{model.streamed / model.weights - 1:.1%} bytes. The step takes {step / model.floor:.2f} times the floor.",
    ]
    if model.unpriced():
        lines.append(
            f"Operations without a measured row {LABEL}, which widen the range: {', '.join(model.unpriced())}."
        )
    if model.uncertain():
        lines.append(f"{model.uncertain()} {LABEL}")
    for where, rows in ((f"All {layers} layers", model.in_layer), ("Around the layers", model.around)):
        lines += [f"## {where} {LABEL}", markdown(HEADER, [*cells(rows, 3), total(rows, 3)])]
    return "\n\n".join(lines)


def _parts(parts: dict[str, float], digits: int = 2) -> str:
    longest = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{kind} {1e3 * seconds:.{digits}f}" for kind, seconds in longest)


def prefill_report(model: PrefillModel, *, title: str, tokens: int) -> str:
    rows = Counter(rows for rows, _ in model.batches)
    batches = ", ".join(f"{count} of {size} rows" for size, count in rows.items())
    lines = [
        f"# {title} {LABEL}",
        f"Operations of {len(model.batches)} prefill batches ({batches}) {LABEL}: **{step_ms(model.seconds)}**, "
        f"{tokens_a_second(model.seconds, tokens)} tokens/s; {model.peak_share:.0%} of the matrix engines' peak.",
        f"{RANGES} No published prompt is priced: prompts carry the range of steps.",
        f"Parts in ms {LABEL}: {_parts(model.parts(), 1)}.",
        f"## All operations of the prompt {LABEL}",
        markdown(HEADER, cells(model.rows, 2)),
    ]
    return "\n\n".join(lines)
