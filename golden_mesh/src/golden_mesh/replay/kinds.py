"""Arguments of ttnn calls as plain values that torch.save keeps, and back. Needs ttnn, and no golden mesh."""

import re
from functools import reduce
from typing import Any, Callable, NamedTuple

import ttnn


class Kind(NamedTuple):
    """One kind of argument: its name, which values it holds, their plain form, and the value again."""

    name: str
    holds: Callable[[Any], bool]
    plain: Callable[[Any], Any]
    value: Callable[[Any], Any]


def class_path(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def named_class(path: str) -> Any:
    """The class of ttnn's at "ttnn._ttnn.tensor.CoreCoord"."""
    package, *names = path.split(".")
    if package != "ttnn":
        raise ValueError(f"a record holds values of ttnn's classes only, got one of {path}")
    return reduce(getattr, names, ttnn)


def fields_of(config: Any) -> dict[str, Any]:
    """The keyword arguments that make a config object again, from its constructor's signature in nanobind's docstring."""
    names = re.findall(r"(\w+): ", (type(config).__init__.__doc__ or "").split(" -> None")[0])
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def _is_enum(value: Any) -> bool:
    name = getattr(value, "name", None)
    return isinstance(name, str) and getattr(type(value), name, None) == value


_CORE, _CORES, _CORE_SET = ttnn.CoreCoord, ttnn.CoreRange, ttnn.CoreRangeSet

# The first kind that holds a value counts. Tensors, meshes and semaphores are the caller's: to_plain's `own`.
KINDS = (
    Kind("scalar", lambda v: v is None or type(v) in (bool, int, float, str), lambda v: v, lambda v: v),
    Kind("list", lambda v: type(v) is list, lambda v: v, lambda v: v),
    Kind("tuple", lambda v: type(v) is tuple, list, tuple),
    Kind("core", lambda v: isinstance(v, _CORE), lambda v: [v.x, v.y], lambda v: _CORE(*v)),
    Kind("cores", lambda v: isinstance(v, _CORES), lambda v: [v.start, v.end], lambda v: _CORES(*v)),
    Kind("core set", lambda v: isinstance(v, _CORE_SET), lambda v: list(v.ranges()), lambda v: _CORE_SET(v)),
    Kind("enum", _is_enum, lambda v: [class_path(v), v.name], lambda v: getattr(named_class(v[0]), v[1])),
    Kind(
        "json", lambda v: hasattr(v, "to_json"), lambda v: [class_path(v), v.to_json()],
        lambda v: named_class(v[0]).from_json(v[1]),
    ),
    Kind(
        "config", lambda v: class_path(v).startswith("ttnn.") and bool(fields_of(v)),
        lambda v: [class_path(v), fields_of(v)], lambda v: named_class(v[0])(**v[1]),
    ),
)  # fmt: skip
_BY_NAME = {kind.name: kind for kind in KINDS}
_DEEP = ("list", "tuple", "cores", "core set")  # their plain form is a list of further values


def to_plain(value: Any, own: Callable[[Any], Any]) -> Any:
    """Scalars as they are, else (kind, plain form). own: returns such a pair for what is not of KINDS, or None.

    TypeError: a value of no kind.
    """
    kept = own(value)
    if kept is not None:
        return kept
    kind = next((kind for kind in KINDS if kind.holds(value)), None)
    if kind is None:
        raise TypeError(f"a record has no kind for {class_path(value)}")
    plain = kind.plain(value)
    if kind.name == "scalar":
        return plain
    if kind.name in _DEEP:
        plain = [to_plain(item, own) for item in plain]
    if kind.name == "config":
        plain = [plain[0], {name: to_plain(item, own) for name, item in plain[1].items()}]
    return kind.name, plain


def from_plain(plain: Any, own: dict[str, Callable] = {}) -> Any:
    """The value of to_plain's result. own: makes the value of each further kind."""
    if type(plain) is not tuple:
        return plain
    name, form = plain
    if name in own:
        return own[name](form)
    if name in _DEEP:
        form = [from_plain(item, own) for item in form]
    if name == "config":
        form = [form[0], {field: from_plain(item, own) for field, item in form[1].items()}]
    return _BY_NAME[name].value(form)
