"""Markdown of captured operations."""

from models.demos.qwen25_7b.perf.captured import Op, Tensor


def markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def op_table(ops: tuple[Op, ...]) -> str:
    """One row an operation, in order."""
    header = ("op", "result", "dtype", "memory", "cores", "reads from DRAM")
    return markdown(header, [_row(op) for op in ops])


def _row(op: Op) -> tuple[str, ...]:
    kinds = list(dict.fromkeys(op.results))
    read = [t for t in op.inputs if t.in_dram and "int" not in t.dtype]  # not positions and page tables
    return (
        label(op),
        ", ".join(times(op.results.count(t), shape(t)) for t in kinds) or "in place",
        ", ".join(dict.fromkeys(t.dtype for t in kinds)),
        ", ".join(dict.fromkeys(t.memory for t in kinds)),
        " + ".join(str(t.cores) for t in op.results if t.cores),
        "; ".join(times(read.count(t), _dram_input(t)) for t in dict.fromkeys(read)),
    )


def times(count: int, what: str) -> str:
    return f"{count} x {what}" if count > 1 else what


def label(op: Op) -> str:
    """The ttnn function, with the device operation where that has another name."""
    same = op.call.replace("_", "") in op.name.lower()
    return op.call if op.call and same else f"{op.call} ({op.name})" if op.call else op.name


def shape(t: Tensor) -> str:
    """Without leading ones."""
    extents = list(t.shape)
    while len(extents) > 2 and extents[0] == 1:
        extents.pop(0)
    return str(extents)


def _dram_input(t: Tensor) -> str:
    if t.tiled and not t.shard and t.shape[0] > 1:  # paged: how many blocks there are is no matter of the operation's
        return f"cache in blocks of {list(t.shape[1:])} {t.dtype}"
    padding = f" ({t.allocated / t.bytes - 1:.1%} padding)" if t.allocated > t.bytes else ""
    return f"{shape(t)} {t.dtype}, {megabytes(t.allocated)}{padding}"


def megabytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 5e4 else f"{count / 1e3:.1f} kB"
