"""The parameters of a ttnn operation, read from the signatures that nanobind keeps."""

import re
from functools import cache
from typing import Any, Callable, NamedTuple

REQUIRED = object()  # the default of a parameter that has none
_COMPARABLE = (bool, int, float, str, list, tuple)


class Parameter(NamedTuple):
    keyword_only: bool
    default: Any


@cache
def overloads(function: Callable) -> tuple[dict[str, Parameter], ...]:
    """Return the parameters by name of each overload of an operation's function, in the declared order.

    Overloads of complex tensors are left out. A function that is written in Python has none.
    """
    call = getattr(type(function), "__call__", None)
    declared = getattr(function, "__nb_signature__", None) or getattr(call, "__nb_signature__", ())
    return tuple(_parameters(*found) for found in declared if "ComplexTensor" not in found[0])


def is_default(function: Callable, name: str, value: Any) -> bool:
    """Return whether `value` is None, or an overload's default for the parameter."""
    if value is None:
        return True
    defaults = [found[name].default for found in overloads(function) if name in found]
    return any(equal(value, default) for default in defaults)


def named(function: Callable, args: tuple, kwargs: dict) -> dict[str, tuple[str | int, Any, Any]]:
    """Return (key in args or kwargs, value, default) of each argument, by the names of the first overload that takes
    them all.
    """
    for found in overloads(function):
        places = [name for name, parameter in found.items() if not parameter.keyword_only]
        if len(args) <= len(places) and kwargs.keys() <= found.keys():
            given = {name: (place, value) for place, (name, value) in enumerate(zip(places, args))}
            given |= {name: (name, value) for name, value in kwargs.items()}
            return {name: (*given[name], found[name].default) for name in found if name in given}
    return {}


def equal(value: Any, default: Any) -> bool:
    """Return whether two values of a parameter are equal. Tensors equal nothing: their `==` is an operation."""
    import ttnn  # golden_mesh imports this module before it activates

    if isinstance(value, ttnn.Tensor) or isinstance(default, ttnn.Tensor):
        return False
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return list(value) == list(default)
    if isinstance(value, float) and isinstance(default, float):
        return abs(value - default) <= 1e-6 * abs(default)  # the library keeps float32
    if type(value) is not type(default) and not isinstance(value, _COMPARABLE):
        return False
    return bool(value == default)


def _parameters(declaration: str, _documentation=None, defaults=()) -> dict[str, Parameter]:
    """The parameters of "def f(self, a: T, b: U = \\0, *, c: V) -> R", with commas in its types."""
    inner = declaration[declaration.index("(") + 1 : declaration.rindex(") ->")]
    while re.search(r"\[[^\[\]]*\]", inner):
        inner = re.sub(r"\[[^\[\]]*\]", "", inner)
    keyword_only, found = False, {}
    for part in inner.split(","):
        name = part.split(":")[0].strip()
        keyword_only = keyword_only or name == "*"
        if name in ("self", "/", "*", ""):
            continue
        index = re.search(r"= \\(\d+)", part)
        found[name] = Parameter(keyword_only, defaults[int(index[1])] if index else REQUIRED)
    return found
