"""The text of perf model. Every block says that it is a model."""

from models.demos.qwen25_7b.perf import calibration as cal
from models.demos.qwen25_7b.perf.bounds import DRAM
from models.demos.qwen25_7b.perf.captured import Op
from models.demos.qwen25_7b.perf.step_model import Row, StepModel
from models.demos.qwen25_7b.perf.table import label, markdown, megabytes, shape

LABEL = "(modelled, not measured)"


def report(
    model: StepModel, calibration: cal.Calibration, *, title: str, users: int, replicas: int, layers: int
) -> str:
    blocks = [
        f"# {title} {LABEL}",
        summary(model, calibration, users, replicas),
        f"## A layer, {layers} of them {LABEL}",
        table([row for row in model.rows if row.in_layer], layers),
        f"## Around the layers {LABEL}",
        table([row for row in model.rows if not row.in_layer], 1),
        f"## The five that lose most against their own floors {LABEL}",
        worst(model),
        f"## What the model is fitted to {LABEL}",
        fitted(calibration),
    ]
    return "\n\n".join(blocks)


def summary(model: StepModel, calibration: cal.Calibration, users: int, replicas: int) -> str:
    step, host = model.seconds, calibration.host(users)
    parts = ", ".join(f"{kind} {1e3 * s:.2f}" for kind, s in sorted(model.parts().items(), key=lambda p: -p[1]))
    lines = [
        f"A step's operations {LABEL}: **{1e3 * step:.2f} ms**, {1 / step:.1f} tokens/s/user, "
        f"{users * replicas / step:.0f} tokens/s in all; {model.launches} launches.",
        f"With the {1e3 * host:.2f} ms a step that the published runs spend beyond their operations with {users} "
        f"user{'s' * (users > 1)}: {1 / (step + host):.1f} tokens/s/user {LABEL}. "
        "Sampling on the chips should leave less.",
        f"Of it, in ms {LABEL}: {parts}.",
        f"Floor {LABEL}: {model.weights / 1e9:.3f} GB of weights a chip at {DRAM / 1e9:.0f} GB/s take "
        f"{1e3 * model.floor:.2f} ms ({1 / model.floor:.1f} tokens/s/user). Padding and biases add "
        f"{model.streamed / model.weights - 1:.1%} bytes. The step is {step / model.floor:.2f} times the floor.",
    ]
    if model.unknown():
        names = ", ".join(model.unknown())
        lines.append(f"Too fast in the model {LABEL}, only their launch and bytes are counted: {names}.")
    return "\n\n".join(lines)


def table(rows: list[Row], per: int) -> str:
    """A row an operation and kind; us of one launch, ms of a step."""
    bounds = ("DRAM us", "compute us", "ethernet us", "us", "waits for")
    header = ("op", "result", "launches", "DRAM", "link", *bounds, "ms a step")
    lines = [(*_cells(row, per), f"{1e3 * row.seconds:.3f}") for row in rows]
    launches = sum(row.count for row in rows)
    total = ("sum", "", f"{launches / per:.3g}", *("",) * 7, f"{1e3 * sum(row.seconds for row in rows):.3f}")
    return markdown(header, [*lines, total])


def _cells(row: Row, per: int) -> tuple[str, ...]:
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
    )


def named(op: Op) -> str:
    """A matmul with the shape of its weight: a layer has several."""
    weight = f" x {shape(op.inputs[1])}" if "Matmul" in op.name else ""
    return label(op) + weight


def result(op: Op) -> str:
    return shape(op.result) if op.result else "in place"


def worst(model: StepModel) -> str:
    rows = [
        (
            named(row.op),
            result(row.op),
            f"{row.count}",
            f"{1e3 * row.seconds:.2f}",
            f"{1e3 * row.floor:.2f}",
            f"{1e3 * row.loss:.2f}",
            row.bound.name,
        )
        for row in model.worst(5)
    ]
    return markdown(("op", "result", "launches a step", "ms a step", "floor ms", "lost ms", "waits for"), rows)


def fitted(c: cal.Calibration) -> str:
    r, spread = c.rates, c.spread
    low, high = (1e6 * s for s in spread["launch"])
    once, crowd, cache = ([1e3 * s for s in spread[name]] for name in ("once", "crowd", "scattered"))
    text = [
        f"Parameters and the columns `model` and `residual` {LABEL}. Published: {cal.SOURCE}, Llama 3 in bfloat8_b on "
        "N150, N300 and T3K (eight chips, one replica), traced, 200 tokens.",
        f"- launch {1e6 * r.launch:.1f} us ({low:.1f} to {high:.1f} leaving one point out) and {1e3 * c.once:.1f} ms "
        f"a step ({once[0]:.1f} to {once[1]:.1f}): fitted to nine speeds of one user.",
        f"- interleaved DRAM at {r.scattered:.0%} of {DRAM / 1e9:.0f} GB/s ({cache[0] / 10:.0f} to "
        f"{cache[1] / 10:.0f} %) and {1e3 * c.crowd:.1f} ms a step more with 32 users ({crowd[0]:.1f} to "
        f"{crowd[1]:.1f}): fitted to nine differences.",
        f"- weights at {r.streamed:.0%} of {DRAM / 1e9:.0f} GB/s: not fitted; the middle of 239 to 260 GB/s measured "
        "for DRAM-sharded decode matmuls (tech_reports/Saturating_DRAM_bandwidth).",
        "- collectives: not fitted; the formulas of tech_reports/CCLs/results (Wormhole), N - 1 hops of a line.",
        "- compute: not fitted; the matrix engine's peak by math fidelity (tech_reports/matrix_engine).",
        "- held out, in no fit: two models with bfloat16 attention, whose ports are much slower than the model says, "
        "and what a cache of 64k tokens costs one user, which the model overrates on one chip and underrates on "
        "eight. Read the model as what this plan could reach, not as what it will.",
    ]
    rows = [
        (what, p.label, f"{p.published:.1f} {p.unit}", f"{p.modelled:.1f}", f"{p.residual:+.1%}")
        for what, points in (
            ("fitted: one user", c.steps),
            ("fitted: 32 users longer than one", c.crowds),
            ("held out", c.held_out),
        )
        for p in points
    ]
    return "\n".join(text) + "\n\n" + markdown(("use", "run", "published", "model", "residual"), rows)
