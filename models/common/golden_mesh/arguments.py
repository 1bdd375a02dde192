"""The tensors among a call's arguments and results, and those that the library would crash on."""

import re
from typing import Any, Callable, Iterator

import ttnn

from models.common.golden_mesh.errors import GoldenError

# Operations that do with tensors on the host what they should, as was seen of every one. The others fail on them at
# best; of ttnn 0.81.1's, 283 end the process with a segmentation fault, and ttnn.pad gives them back as they were.
ON_HOST = frozenset(
    """
    ttnn.full_like ttnn.ones_like ttnn.zeros_like ttnn.reshape ttnn.squeeze ttnn.unsqueeze ttnn.unsqueeze_to_4D
    ttnn.sharded_to_interleaved ttnn.to_layout ttnn.typecast ttnn.view ttnn.experimental.view
    ttnn.experimental.quantize_weights_via_host
    """.split()
)
_COMPLEX = ttnn._ttnn.operations.complex.ComplexTensor


def on_device(value: Any) -> bool:
    return isinstance(value, ttnn.Tensor) and value.storage_type() == ttnn.StorageType.DEVICE


def tensors_in(value: Any) -> Iterator[ttnn.Tensor]:
    """All ttnn tensors inside nested arguments or results."""
    if isinstance(value, ttnn.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, _COMPLEX):
        yield from (value.real, value.imag)


def substitute(value: Any, kind: type, replace: Callable) -> Any:
    """`value` with everything of type `kind` inside nested containers replaced."""
    if isinstance(value, kind):
        return replace(value)
    if type(value) in (list, tuple):
        return type(value)(substitute(item, kind, replace) for item in value)
    if type(value) is dict:
        return {name: substitute(item, kind, replace) for name, item in value.items()}
    return value


def host_tensor_refused(operation, args: tuple, kwargs: dict) -> GoldenError:
    """The error for a call with a tensor on the host that the operation cannot take; it names the argument."""
    names = _parameters(operation.function) + [f"argument {i + 1}" for i in range(len(args))]
    given = list(zip(names, args)) + list(kwargs.items())
    on_host = next(name for name, value in given for t in tensors_in(value) if not on_device(t))
    return GoldenError(
        f"{operation.python_fully_qualified_name} runs on a device, and its {on_host} is a tensor on the host: "
        "put it on the device first (ttnn.to_device)"
    )


def _parameters(function: Callable) -> list[str]:
    """Names of the positional parameters, as the first overload has them."""
    declared = getattr(function, "__nb_signature__", None) or type(function).__call__.__nb_signature__
    positional = declared[0][0].split(", *,")[0]
    return re.findall(r"[(,] ?(\w+): ", positional)
