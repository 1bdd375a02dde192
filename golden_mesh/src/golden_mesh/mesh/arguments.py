"""Tensors among a call's arguments and results, and the refusal of host tensors that would crash the library."""

from typing import Any, Callable, Iterable

import ttnn

from golden_mesh.errors import GoldenError
from golden_mesh.registry import Form
from golden_mesh.signatures import overloads

# Operations that take tensors on the host. Each was tried. The others fail: 283 operations of ttnn 0.81.1 end the
# process with a segmentation fault, and ttnn.pad returns its input.
ON_HOST = frozenset(
    """
    ttnn.full_like ttnn.ones_like ttnn.zeros_like ttnn.reshape ttnn.squeeze ttnn.unsqueeze ttnn.unsqueeze_to_4D
    ttnn.sharded_to_interleaved ttnn.to_layout ttnn.typecast ttnn.view ttnn.experimental.view
    ttnn.experimental.quantize_weights_via_host ttnn.conv2d ttnn.conv1d ttnn.conv_transpose2d
    ttnn.prepare_conv_weights ttnn.prepare_conv_bias ttnn.experimental.prepare_conv3d_weights ttnn.experimental.conv3d
    ttnn.prepare_conv_transpose2d_weights ttnn.prepare_conv_transpose2d_bias
    """.split()
)
_COMPLEX = ttnn._ttnn.operations.complex.ComplexTensor

_TENSOR, _DEVICE = ttnn.Tensor, ttnn.StorageType.DEVICE  # to look them up in ttnn takes as long as the rest


def on_device(value: Any) -> bool:
    return isinstance(value, _TENSOR) and value.storage_type() is _DEVICE


def tensors_in(value: Any) -> list[ttnn.Tensor]:
    """Return all ttnn tensors inside nested arguments or results."""
    found: list[ttnn.Tensor] = []
    _collect((value,), found)
    return found


# Types that hold no tensors.
PLAIN = frozenset({type(None), bool, int, float, str, ttnn.MemoryConfig, ttnn.DataType, ttnn.Layout})


def _collect(values: Iterable, found: list[ttnn.Tensor]) -> None:
    for value in values:
        if type(value) in PLAIN:
            continue
        if isinstance(value, _TENSOR):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            _collect(value, found)
        elif isinstance(value, dict):
            _collect(value.values(), found)
        elif isinstance(value, _COMPLEX):
            found += (value.real, value.imag)


def substitute(value: Any, kind: type, replace: Callable) -> Any:
    """Return `value` with everything of type `kind` inside nested containers replaced."""
    if isinstance(value, kind):
        return replace(value)
    if type(value) in (list, tuple):
        return type(value)([item if type(item) in PLAIN else substitute(item, kind, replace) for item in value])
    if type(value) is dict:
        return {name: item if type(item) in PLAIN else substitute(item, kind, replace) for name, item in value.items()}
    return value


GIVEN = "given"  # in place of a tensor that an operation writes and does not read


def without_outputs(given: dict, form: Form, may_be: Callable[[Any], bool]) -> dict:
    """Return the arguments with GIVEN in place of outputs: tensors that the library may also make by itself, because
    their parameter's default is None. Of a tensor given twice the last one is the output.

    may_be: whether the call returned the tensor, and nothing was in it before.
    """
    places = [name for name in form.parameters if name in given and form.parameters[name].default is None]
    found = {given[n].buffer_address(): n for n in places if on_device(given[n]) and may_be(given[n])}
    return given | dict.fromkeys(found.values(), GIVEN)


def check_on_device(operation, args: tuple, kwargs: dict) -> None:
    """Raise GoldenError, which names the first argument on the host, unless the operation takes such tensors."""
    name = operation.python_fully_qualified_name
    if name in ON_HOST:
        return
    first = next(iter(overloads(operation.function)), {})
    names = [name for name, parameter in first.items() if not parameter.keyword_only]
    names += [f"argument {i + 1}" for i in range(len(args))]
    given = list(zip(names, args)) + list(kwargs.items())
    on_host = next(name for name, value in given for t in tensors_in(value) if not on_device(t))
    raise GoldenError(
        f"{name} runs on a device, and its {on_host} is a tensor on the host: put it on the device first "
        "(ttnn.to_device)"
    )


# op -> fields of its configs that change its result and that its golden does not read: a call that sets one is refused.
REFUSED_FIELDS: dict[str, tuple[str, ...]] = {
    "ttnn.addmm": ("fused_activation",),
    "ttnn.sparse_matmul": ("fused_activation",),
    "ttnn.conv_transpose2d": ("padding_mode",),
    "ttnn.experimental.conv3d": ("enable_fp32_operand_split",),
} | {
    f"ttnn.transformer.{name}": ("matmul_math_fidelity", "segmented_accumulation")
    for name in """
    chunked_flash_mla_prefill chunked_scaled_dot_product_attention flash_mla_prefill
    flash_multi_latent_attention_decode joint_scaled_dot_product_attention
    paged_flash_multi_latent_attention_decode paged_scaled_dot_product_attention_decode
    ring_joint_scaled_dot_product_attention scaled_dot_product_attention scaled_dot_product_attention_decode
    """.split()
}


def check_fields(op: str, arguments: Iterable[Any]) -> None:
    """Raise GoldenError if a config among the arguments sets a field that the op's golden would have to read."""
    for field in REFUSED_FIELDS.get(op, ()):
        for config in arguments:
            value, kind = getattr(config, field, None), type(config).__name__
            if value not in (None, False) and getattr(value, "name", "") != "Zeros":
                raise GoldenError(f"{op}: its golden does not know {kind}.{field}={value}: leave it out")
