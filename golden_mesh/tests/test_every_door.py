"""The golden mesh knows every method of ttnn.Tensor, every operation and every other function.

An addition of the next ttnn fails here until it has an entry in a table. Until then it refuses tensors on a device.
"""

import types

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError, MissingGolden
from golden_mesh.mesh import dispatch, doors
from golden_mesh.mesh.arguments import ON_HOST
from golden_mesh.mesh.tensor_methods import HOST_ONLY, METHODS, PLAIN
from golden_mesh.mesh.transfer import STAND_INS
from golden_mesh.registry import GOLDENS
from golden_mesh.start.install import UNREGISTERED

CLASS_ATTRIBUTES = {"__module__", "__doc__", "__new__", "__hash__"}
PROPERTIES = {"dtype", "layout", "padded_shape", "shape", "spec", "tensor_id", "tile"}
REFUSED_METHODS = {"extract_shard"}
# Functions of Python that call registered operations.
OPERATIONS = frozenset(
    """
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __matmul__ __getitem__
    __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    """.split()
)
HANDLED = set(dispatch.HANDLERS) | dispatch.TRANSPARENT


def operations() -> dict[str, object]:
    """All registered operations by name."""
    found = ttnn.decorators.REGISTERED_OPERATIONS
    return {operation.python_fully_qualified_name: operation for operation in found}


def test_every_attribute_of_a_tensor_is_in_one_table():
    attributes = vars(ttnn.Tensor)
    tables = [PROPERTIES, PLAIN, HOST_ONLY, OPERATIONS, set(METHODS), REFUSED_METHODS]
    assert sum(map(len, tables)) == len(set().union(*tables)), "in two tables"
    assert set(attributes) - CLASS_ATTRIBUTES == set().union(*tables)
    assert {n for n, value in attributes.items() if isinstance(value, property)} == PROPERTIES
    written_in_python = [isinstance(attributes[name], types.FunctionType) for name in OPERATIONS]
    assert all(written_in_python)


@pytest.mark.parametrize(
    "method, arguments, error, message",
    [
        ("extract_shard", (0,), MissingGolden, "extract_shard"),
        ("host_buffer", (), RuntimeError, "must be on host"),  # the library's own errors
        ("pad", ([1, 1, 8, 8], [0, 0, 0, 0], 0.0), RuntimeError, "must be on host"),
    ],
)
def test_methods_that_refuse_tensors_on_a_device(golden, method, arguments, error, message):
    tensor = golden.full(1, 1, 1, 5, 7, layout=ttnn.ROW_MAJOR_LAYOUT)
    with pytest.raises(error, match=message):
        getattr(tensor, method)(*arguments)


def test_every_operation_is_handled_has_a_golden_or_is_an_error_that_names_it(golden, monkeypatch):
    """The library's answer does not matter. Here it is a tensor on the device, also for calls without tensors."""
    tensor = golden.full(1)
    monkeypatch.setattr(dispatch, "REAL_CALL", lambda operation, *args, **kwargs: tensor)
    known = set(GOLDENS) | HANDLED
    unknown = {name: op for name, op in operations().items() if name not in known}
    assert len(unknown) + len(known) > 750 and len(known) > 450
    for name, operation in unknown.items():
        for arguments in ((tensor,), ([None, (tensor,)],), (), (1.0, "text")):
            with pytest.raises(MissingGolden, match=f"^{name} "):
                operation(*arguments)


def test_every_name_in_a_table_is_an_operations():
    in_no_list = {"ttnn.Tensor.__getitem__", *(f"ttnn.{name}" for name in UNREGISTERED)}
    assert (set(GOLDENS) | HANDLED | ON_HOST) - set(operations()) == in_no_list
    transparent = [op for name, op in operations().items() if name in dispatch.TRANSPARENT]
    assert all(isinstance(op.function, types.FunctionType) for op in transparent), "not Python's"
    assert not dispatch.TRANSPARENT & (set(GOLDENS) | set(dispatch.HANDLERS))


def test_every_operation_refuses_tensors_on_the_host_but_those_that_take_them(monkeypatch, golden):
    """The library itself crashes on most such calls."""

    def crash(operation, *args, **kwargs):
        raise AssertionError(f"the library was called: {operation.python_fully_qualified_name}")

    monkeypatch.setattr(dispatch, "REAL_CALL", crash)
    host = ttnn.Tensor(torch.ones(1, 1, 32, 32))
    for name in set(operations()) - ON_HOST - HANDLED:
        with pytest.raises(GoldenError, match=rf"^{name} runs on a device, and its .* on the host"):
            operations()[name]([host] if "concat" in name else host)


REFUSED_ON_HOST = {
    "add": (lambda placed, host: ttnn.add(placed, host), "input_tensor_b"),
    "rms_norm": (lambda placed, host: ttnn.rms_norm(placed, weight=host), "weight"),
    "concat": (lambda placed, host: ttnn.concat([placed, host], dim=0), "tensors"),
}


@pytest.mark.parametrize("name", REFUSED_ON_HOST)
def test_the_refusal_of_a_tensor_on_the_host_names_the_argument(golden, name):
    call, argument = REFUSED_ON_HOST[name]
    with pytest.raises(GoldenError, match=f"its {argument} is a tensor on the host"):
        call(golden.full(1), golden.host(torch.ones(1, 1, 32, 32)))


def test_every_other_function_is_plain_replaced_or_refuses(golden):
    """Covers everything below ttnn._ttnn that takes or gives tensors, under any other name too."""
    found = {door.name: door.function for door in doors.doors()}
    assert doors.PLAIN | set(STAND_INS) <= set(found), "in a table, but not in the library"
    left = {door.name for door in doors.doors() if doors.takes_or_gives_tensors(door)}
    assert left == doors.PLAIN, "neither stood in for nor refused"
    tensor = golden.full(1)
    for name, arguments in {
        "operations.data_movement._prim_fold": (tensor, 1, 1),
        "operations.matmul.MatmulDeviceOperation.invoke": (tensor, tensor),
        "hd_socket.H2DSocket.write_tensor": (None, tensor),
        "tensor.dump_overlapped_tensors": ("file", [tensor]),
    }.items():
        with pytest.raises(MissingGolden, match=rf"ttnn\._ttnn\.{name}"):
            found[name](*arguments)
    for name in ("get_device_tensors", "distribute_tensor"):
        assert getattr(ttnn, name) is found[f"multi_device.{name}"]


def test_aliases_of_operations_are_wrapped_too(golden):
    values = {id(door.function) for door in doors.doors()}
    bare = [name for name, op in operations().items() if id(op.function) in values]
    assert not bare, "an operation without its wrapper"
    assert len(values & {id(operation) for operation in operations().values()}) > 700
    host = golden.host(torch.ones(1, 1, 32, 32))
    assert golden.holds(ttnn._ttnn.operations.core.to_device(host, golden.device), 1)


def test_the_parts_of_a_complex_tensor_are_seen(golden):
    parts = golden.full(1), golden.full(2)
    number = ttnn._ttnn.operations.complex.ComplexTensor(parts)
    with pytest.raises(MissingGolden, match="ttnn.conj"):
        ttnn.conj(number)
