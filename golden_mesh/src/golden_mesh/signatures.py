"""The parameters of a ttnn operation, read from the signatures that nanobind keeps."""

import inspect
import re
from functools import cache
from typing import Any, Callable, Collection, NamedTuple

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


def fits(parameters: dict[str, Parameter], count: int, names: Collection[str]) -> bool:
    """Return whether an overload takes so many positional arguments and these keywords."""
    by_place = [name for name, parameter in parameters.items() if not parameter.keyword_only]
    given = {*by_place[:count], *names}
    required = {name for name, parameter in parameters.items() if parameter.default is REQUIRED}
    return count <= len(by_place) and len(given) == count + len(names) and required <= given <= parameters.keys()


@cache
def parameters_of(function: Callable) -> dict[str, Parameter]:
    """Return the parameters of a Python function, without *args and **kwargs."""
    found = inspect.signature(function).parameters.values()
    return {
        p.name: Parameter(p.kind is p.KEYWORD_ONLY, REQUIRED if p.default is p.empty else p.default)
        for p in found
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


def default_of(name: str, *tables: dict[str, Parameter]) -> Any:
    """Return the first default that one of these has for the parameter. None: none has."""
    found = (table[name].default for table in tables if name in table)
    return next((default for default in found if default is not REQUIRED), None)


def equal(value: Any, default: Any) -> bool:
    """Return whether a value of a parameter is the default. No tensor is one, and its `==` would be an operation."""
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
