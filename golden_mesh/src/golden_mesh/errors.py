"""Errors of the golden mesh, and their messages."""


class GoldenMeshError(Exception):
    """The golden mesh cannot be set up here. The message is one line that says what to do."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.splitlines()))


class GoldenError(RuntimeError):
    """A program did something that the golden mesh cannot compute or that a chip would get wrong."""


class UnknownMemory(GoldenError):
    """A program read memory that was never written, or a result computed from such memory."""

    def __init__(self, device: int, slot: str, why: str):
        super().__init__(f"chip {device} reads {slot}, which {why}")
        self.slot = slot
        self.why = why


class MissingGolden(GoldenError):
    """An op was called for which the golden mesh has no golden function."""

    def __init__(self, name: str):
        super().__init__(
            f"{name} has no golden, so nothing computes its values. Register one (README.md of the golden mesh: Add a "
            "golden)"
        )


class RaceError(GoldenError):
    """Calls that run in this order on most days only (golden-mesh --adversarial)."""


class TraceError(GoldenError):
    """A call that metal refuses inside a trace capture, or a trace that does not exist."""
