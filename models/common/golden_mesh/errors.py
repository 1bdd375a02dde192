"""What the golden mesh refuses, and why."""

from models.common.errors import UserError


class GoldenMeshError(UserError):
    """The golden mesh cannot be set up here; the message says what to do."""


class GoldenError(RuntimeError):
    """A program did something that the golden mesh cannot compute or that a chip would get wrong."""


class MissingGolden(GoldenError):
    """An op was called for which the golden mesh has no golden function."""


def missing(name: str) -> MissingGolden:
    return MissingGolden(
        f"{name} has no golden: nothing computes its values. Add one to models/common/golden_mesh/goldens/"
    )


class TraceError(GoldenError):
    """Something inside a trace capture that metal refuses there, or a trace that does not exist."""
