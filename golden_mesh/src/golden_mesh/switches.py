"""The switches of a golden mesh. activate(), the commands' options and the environment of child processes are made
from the fields of Switches; what each does stands beside it.
"""

import contextlib
from dataclasses import dataclass, field, fields, replace
from typing import Any, Iterator

from golden_mesh.errors import GoldenMeshError

VARIABLE = "GOLDEN_MESH_SWITCHES"  # of the environment: the switches of child processes, as JSON


def _switch(default: Any, what: str, **option: Any) -> Any:
    """A field that a command sets by an option of its name. option: further arguments of argparse."""
    return field(default=default, metadata={"default": default, "help": what, **option})


@dataclass(frozen=True)
class Switches:
    """GoldenMeshError: a word that a switch does not know."""

    hazards: str = _switch(
        "default",
        "to calls that a chip gets wrong: warn or error is for all of them. default follows HAZARDS.md: an error, or a "
        "warning for each op where a chip may compute it wrongly, and the call is in wide use",
        choices=("default", "warn", "error"),
    )
    sums: str = _switch(
        "default",
        "of matrix products: default sums as torch does, exact as the matrix engine does, eight products at a time (30 "
        "to 100 times slower)",
        choices=("default", "exact"),
    )
    adversarial: int | None = _switch(
        None,
        "run queues, chips and transfers as late as the program allows, in an order by the seed, and name races. Set "
        "once, when the golden mesh starts",
        metavar="SEED",
        type=int,
    )
    # False: calls take the host's time only, and tensors made meanwhile cannot be read. A mesh serves 8,192 reads so
    # and then waits for ever, because a mock keeps them. No command sets it: it is for blocks of a program.
    values: bool = True

    def __post_init__(self) -> None:
        for each in fields(self):
            known, got = each.metadata.get("choices"), getattr(self, each.name)
            if known and got not in known:
                raise GoldenMeshError(f"{each.name} knows {', '.join(known)}; got {got!r}")


current = Switches()


def choose(**changes: Any) -> None:
    """Set switches of this process. The others stay as they are."""
    global current
    current = replace(current, **changes)


@contextlib.contextmanager
def use(**changes: Any) -> Iterator[None]:
    """Set switches inside the block. Blocks may be nested."""
    before = {name: getattr(current, name) for name in changes}
    choose(**changes)
    try:
        yield
    finally:
        choose(**before)
