"""What the golden mesh refuses, and why."""

from models.common.errors import UserError


class GoldenMeshError(UserError):
    """The golden mesh cannot be set up here; the message says what to do."""


class GoldenError(RuntimeError):
    """A program did something that the golden mesh cannot compute or that a chip would get wrong."""


class UnknownMemory(GoldenError):
    """Memory was read that holds anything at all: nobody wrote it, or it was computed from such memory."""

    def __init__(self, device: int, slot: str, why: str):
        super().__init__(f"chip {device} reads {slot}, which {why}")
        self.slot, self.why = slot, why


class MissingGolden(GoldenError):
    """An op was called for which the golden mesh has no golden function."""


def missing(name: str) -> MissingGolden:
    return MissingGolden(
        f"{name} has no golden: nothing computes its values. Add one to models/common/golden_mesh/goldens/"
    )


class TraceError(GoldenError):
    """Something inside a trace capture that metal refuses there, or a trace that does not exist."""
