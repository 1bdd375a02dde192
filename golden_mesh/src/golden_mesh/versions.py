"""The versions of ttnn that the golden mesh is tested with, and the parts that the installed one lacks."""

import re
import warnings
from importlib.metadata import version
from typing import Callable

from golden_mesh.errors import GoldenMeshError

OLDEST, NEWEST = "0.77.0", "0.81.1"

lacking: dict[str, str] = {}  # missing part of this ttnn -> its consequence; filled while ttnn is installed


def check_version() -> str:
    """Return the installed ttnn's version; warns of one that is newer than tested. GoldenMeshError: it is too old."""
    found = version("ttnn")
    if numbers(found) < numbers(OLDEST):
        raise GoldenMeshError(
            f"ttnn {found} is installed, the golden mesh runs {OLDEST} to {NEWEST}: pip install ttnn=={NEWEST}"
        )
    if numbers(found) > numbers(NEWEST):
        warnings.warn(
            f"the golden mesh is tested with ttnn {OLDEST} to {NEWEST}, and {found} is installed: "
            "golden-mesh --doctor shows what it does not know",
            stacklevel=2,
        )
    return found


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def library_golden(name: str) -> Callable | None:
    """Return the golden function that ttnn itself has for ttnn.`name`, or None if this version has none."""
    import ttnn

    operation = getattr(ttnn, name, None)
    function = getattr(operation, "golden_function", None)
    if function is None:
        lacking[f"golden function of ttnn.{name}"] = f"ttnn.{name} has no golden"
    return function
