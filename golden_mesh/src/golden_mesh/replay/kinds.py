"""Arguments of ttnn calls as plain values that torch.save keeps, and back. Needs ttnn, and no golden mesh."""

import math
import re
from enum import Enum
from functools import cache, partial, reduce
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


DEVICE_OPERATION = re.compile(r"^\w+?(Device)?Operation$")  # ttnn's names


def is_device_operation(node: dict[str, Any]) -> bool:
    """Whether a node of a graph capture begins a device operation."""
    return node["node_type"] == "function_start" and bool(DEVICE_OPERATION.match(node["params"]["name"]))


class Refused(ValueError):
    """A record names what no call of a ttnn operation has."""


# ttnn's modules of plain values. Classes of other modules open sockets and shared memory.
_VALUES = re.compile(r"ttnn\._ttnn\.(tensor|types|activation|multi_device|operations)\.")


def named_class(path: str) -> type:
    """ttnn's class of values at "ttnn._ttnn.tensor.CoreCoord".

    Refused: something else has that path. AttributeError: this ttnn has nothing there.
    """
    if path.split(".")[0] != "ttnn":
        raise Refused(f"a record holds values of ttnn's classes only, got one of {path}")
    found = reduce(getattr, path.split(".")[1:], ttnn)
    is_class = isinstance(found, type) and f"{found.__module__}.{found.__qualname__}" == path
    if not is_class or not (issubclass(found, Enum) or _VALUES.match(path)):
        raise Refused(f"a record holds values of ttnn's classes only, got {path}")
    return found


@cache
def _operations() -> dict[str, Callable]:
    """Registered operations by name. Left out: those in Python, which take names of files, and generic_op."""
    named = {op.python_fully_qualified_name: op for op in ttnn.query_registered_operations(include_experimental=True)}
    plain = ("ttnn.reallocate", "ttnn.unsqueeze_to_4D")  # in Python
    return {n: op for n, op in named.items() if n in plain or (op.is_cpp_operation and not n.endswith("generic_op"))}


def operation(name: str) -> Callable:
    """The operation that ttnn registered as "ttnn.experimental.all_reduce_async". It takes neither files nor kernels.

    Refused: something else has that name. AttributeError: this ttnn has nothing there.
    """
    found = _operations().get(name)
    if found is None:
        if name.split(".")[0] == "ttnn":
            reduce(getattr, name.split(".")[1:], ttnn)
        raise Refused(f"{name} is no operation of ttnn that a record may hold")
    return found


def fields_of(config: Any) -> dict[str, Any]:
    """The keyword arguments that make a config object again, from the signature in nanobind's docstring."""
    names = re.findall(r"(\w+): ", (type(config).__init__.__doc__ or "").split(" -> None")[0])
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


_CORE, _CORES, _CORE_SET, _UNARY = ttnn.CoreCoord, ttnn.CoreRange, ttnn.CoreRangeSet, ttnn.UnaryWithParam

# The first kind that holds a value counts. Tensors, meshes and semaphores are the caller's: to_plain's `own`.
KINDS = (
    Kind("scalar", lambda v: v is None or type(v) in (bool, int, float, str), lambda v: v, lambda v: v),
    Kind("list", lambda v: type(v) is list, lambda v: v, lambda v: v),
    Kind("tuple", lambda v: type(v) is tuple, list, tuple),
    Kind("core", lambda v: isinstance(v, _CORE), lambda v: [v.x, v.y], lambda v: _CORE(*v)),
    Kind("cores", lambda v: isinstance(v, _CORES), lambda v: [v.start, v.end], lambda v: _CORES(*v)),
    Kind("core set", lambda v: isinstance(v, _CORE_SET), lambda v: list(v.ranges()), lambda v: _CORE_SET(v)),
    Kind("shape", lambda v: isinstance(v, ttnn.Shape), list, ttnn.Shape),
    Kind("activation", lambda v: isinstance(v, _UNARY), lambda v: [v.op_type, *v.params], lambda v: _UNARY(*v)),
    Kind("enum", lambda v: isinstance(v, Enum), lambda v: [class_path(v), v.name], lambda v: named_class(v[0])[v[1]]),
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


def _each(form: list | dict, function: Callable) -> list | dict:
    """A plain form with the function's result for each value inside. A config's form has a dict of values."""
    if isinstance(form, dict):
        return {name: function(value) for name, value in form.items()}
    return [_each(item, function) if isinstance(item, dict) else function(item) for item in form]


def to_plain(value: Any, own: Callable[[Any], Any] = lambda _: None) -> Any:
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
    return plain if kind.name == "scalar" else (kind.name, _each(plain, partial(to_plain, own=own)))


def from_plain(plain: Any, own: dict[str, Callable] = {}) -> Any:
    """The value of to_plain's result. own: makes the value of each further kind."""
    if type(plain) is not tuple:
        return plain
    name, form = plain
    if name in own:
        return own[name](form)
    if name not in _BY_NAME:
        raise Refused(f"a record has no kind {name!r}")
    return _BY_NAME[name].value(_each(form, partial(from_plain, own=own)))


def named(path: str) -> str:
    """ttnn.DataType for ttnn._ttnn.tensor.DataType, where ttnn has the name."""
    short = path.rpartition(".")[2]
    return f"ttnn.{short}" if getattr(ttnn, short, None) is named_class(path) else path


_CODE = {
    "list": "[{}]", "tuple": "({})", "core": "ttnn.CoreCoord({})", "cores": "ttnn.CoreRange({})",
    "core set": "ttnn.CoreRangeSet([{}])", "shape": "ttnn.Shape([{}])", "activation": "ttnn.UnaryWithParam({})",
}  # fmt: skip


def code(plain: Any) -> str:
    """The Python expression that makes the value of a plain form."""
    if type(plain) is not tuple:
        return f"float({str(plain)!r})" if isinstance(plain, float) and not math.isfinite(plain) else repr(plain)
    kind, form = plain
    if kind in ("tensor", "mesh", "semaphore"):
        return {"tensor": f"t{form}", "mesh": "device", "semaphore": "semaphore(device)"}[kind]
    if kind in _CODE:
        return _CODE[kind].format(", ".join(map(code, form)) + "," * (kind == "tuple" and len(form) == 1))
    if kind == "enum":
        return f"{named(form[0])}.{form[1]}"
    for name in ("DRAM_MEMORY_CONFIG", "L1_MEMORY_CONFIG"):
        if plain == to_plain(getattr(ttnn, name)):
            return f"ttnn.{name}"
    if kind == "json":
        return f"{named(form[0])}.from_json({form[1]!r})"
    return f"{named(form[0])}({', '.join(f'{name}={code(value)}' for name, value in form[1].items())})"


def call(op: dict[str, Any]) -> str:
    """The Python of an operation's call: tensor i of its record is ti."""
    args, kwargs = op["arguments"]
    given = [*map(code, args[1]), *(f"{name}={code(value)}" for name, value in kwargs.items())]
    return f"{op['op']}({', '.join(given)})"
