"""The golden mesh knows every method of ttnn.Tensor, every operation and every other function.

An addition of the next ttnn fails here until it has an entry in a table. Until then it refuses tensors on a
device.
"""

import types

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError, MissingGolden

NO_METHODS = {
    "__module__",
    "__doc__",
    "__new__",
    "__hash__",
}  # attributes of the class, not of a tensor
PROPERTIES = {"dtype", "layout", "padded_shape", "shape", "spec", "tensor_id", "tile"}
REFUSED_METHODS = {"extract_shard"}


def names_of(operations) -> set[str]:
    return {operation.python_fully_qualified_name for operation in operations}


def operations():
    return sorted(ttnn.decorators.REGISTERED_OPERATIONS)


def test_every_attribute_of_a_tensor_is_in_one_table():
    from golden_mesh.tensor_methods import HOST_ONLY, METHODS, OPERATIONS, PLAIN

    tables = [PROPERTIES, PLAIN, HOST_ONLY, OPERATIONS, set(METHODS), REFUSED_METHODS]
    assert sum(map(len, tables)) == len(set().union(*tables)), "in two tables"
    assert set(vars(ttnn.Tensor)) - NO_METHODS == set().union(*tables)
    assert {
        name for name, value in vars(ttnn.Tensor).items() if isinstance(value, property)
    } == PROPERTIES
    assert all(isinstance(vars(ttnn.Tensor)[name], types.FunctionType) for name in OPERATIONS), (
        "not Python's"
    )


def test_unhandled_methods_refuse_tensors_on_a_device(golden):
    for name in REFUSED_METHODS:
        with pytest.raises(MissingGolden, match=name):
            getattr(golden.full(1), name)(0)


def test_methods_for_the_host_are_refused_by_the_library(golden):
    from golden_mesh.tensor_methods import HOST_ONLY

    tensor = golden.full(1, 1, 1, 5, 7, layout=ttnn.ROW_MAJOR_LAYOUT)
    arguments = {
        "host_buffer": (),
        "pad": ([1, 1, 8, 8], [0, 0, 0, 0], 0.0),
        "pad_to_tile": (0.0,),
        "unpad": ([0, 0, 0, 0], [1, 1, 2, 2]),
        "unpad_from_tile": ([1, 1, 2, 2],),
    }
    assert set(arguments) == HOST_ONLY
    for name, values in arguments.items():
        with pytest.raises(RuntimeError, match="must be on host"):
            getattr(tensor, name)(*values)


def test_every_operation_is_handled_has_a_golden_or_is_an_error_that_names_it(golden, monkeypatch):
    """The library's answer does not matter.

    Here it is a tensor on the device, also for calls without tensors.
    """
    from golden_mesh import dispatch
    from golden_mesh.registry import GOLDENS

    tensor = golden.full(1)
    monkeypatch.setattr(dispatch, "REAL_CALL", lambda operation, *args, **kwargs: tensor)
    known = set(GOLDENS) | set(dispatch.HANDLERS) | dispatch.TRANSPARENT
    unknown = [
        operation
        for operation in operations()
        if operation.python_fully_qualified_name not in known
    ]
    assert len(unknown) + len(known) > 750 and len(known) > 450
    silent = []
    for operation in unknown:
        for arguments in ((tensor,), ([None, (tensor,)],), (), (1.0, "text")):
            try:
                operation(*arguments)
            except MissingGolden as error:
                if str(error).startswith(operation.python_fully_qualified_name + " "):
                    continue
            silent.append((operation.python_fully_qualified_name, arguments))
    assert not silent


def test_every_name_in_a_table_is_an_operations(golden):
    from golden_mesh import dispatch
    from golden_mesh.arguments import ON_HOST
    from golden_mesh.install import UNREGISTERED
    from golden_mesh.registry import GOLDENS

    named = set(GOLDENS) | set(dispatch.HANDLERS) | dispatch.TRANSPARENT | ON_HOST
    in_no_list = {"ttnn.Tensor.__getitem__", *UNREGISTERED.values()}
    assert named - names_of(operations()) == in_no_list
    transparent = [
        op for op in operations() if op.python_fully_qualified_name in dispatch.TRANSPARENT
    ]
    assert all(isinstance(operation.function, types.FunctionType) for operation in transparent), (
        "not Python's"
    )
    assert not dispatch.TRANSPARENT & (set(GOLDENS) | set(dispatch.HANDLERS))


def test_every_operation_refuses_tensors_on_the_host_but_those_that_take_them(golden, monkeypatch):
    """The library itself crashes on most such calls."""
    from golden_mesh import dispatch
    from golden_mesh.arguments import ON_HOST

    def crash(operation, *args, **kwargs):
        raise AssertionError(f"the library was called: {operation.python_fully_qualified_name}")

    monkeypatch.setattr(dispatch, "REAL_CALL", crash)
    host = ttnn.Tensor(torch.ones(1, 1, 32, 32))
    for operation in operations():
        name = operation.python_fully_qualified_name
        if name in ON_HOST | set(dispatch.HANDLERS) | dispatch.TRANSPARENT:
            continue
        with pytest.raises(GoldenError, match=rf"^{name} runs on a device, and its .* on the host"):
            operation([host] if "concat" in name else host)


def test_the_refusal_of_a_tensor_on_the_host_names_the_argument(golden):
    placed, host = golden.full(1), golden.host(torch.ones(1, 1, 32, 32))
    for call, argument in (
        (lambda: ttnn.silu(host), "input_tensor"),
        (lambda: ttnn.add(placed, host), "input_tensor_b"),
        (lambda: ttnn.rms_norm(placed, weight=host), "weight"),
        (lambda: ttnn.concat([placed, host], dim=0), "tensors"),
        (lambda: placed + host, "input_tensor_b"),
    ):
        with pytest.raises(GoldenError, match=f"its {argument} is a tensor on the host"):
            call()


def test_every_other_function_is_plain_replaced_or_refuses(golden):
    """Covers everything below ttnn._ttnn that takes or gives tensors, under any other name too."""
    from golden_mesh import doors
    from golden_mesh.transfer import STAND_INS

    found = {door.name: door.function for door in doors.doors()}
    assert doors.PLAIN | set(STAND_INS) <= set(found), "in a table, but not in the library"
    left = {door.name for door in doors.doors() if doors.takes_or_gives_tensors(door)}
    assert left == doors.PLAIN, "neither stood in for nor refused"
    for name, called in {
        "operations.data_movement._prim_fold": lambda refused, tensor: refused(tensor, 1, 1),
        "operations.matmul.MatmulDeviceOperation.invoke": lambda refused, tensor: refused(
            tensor, tensor
        ),
        "hd_socket.H2DSocket.write_tensor": lambda refused, tensor: refused(None, tensor),
    }.items():
        with pytest.raises(MissingGolden, match=rf"ttnn\._ttnn\.{name}"):
            called(found[name], golden.full(1))
    assert ttnn.get_device_tensors is found["multi_device.get_device_tensors"]
    assert ttnn.distribute_tensor is found["multi_device.distribute_tensor"]


def test_aliases_of_operations_are_wrapped_too(golden):
    ours = {id(operation) for operation in operations()}
    functions = {id(operation.function) for operation in operations()}
    from golden_mesh import doors

    values = [door.function for door in doors.doors()]
    assert not [value for value in values if id(value) in functions], (
        "an operation without its wrapper"
    )
    assert len({id(value) for value in values} & ours) > 700
    assert golden.holds(
        ttnn._ttnn.operations.core.to_device(golden.host(torch.ones(1, 1, 32, 32)), golden.device),
        1,
    )


def test_the_parts_of_a_complex_tensor_are_seen(golden):
    parts = golden.full(1), golden.full(2)
    number = ttnn._ttnn.operations.complex.ComplexTensor(parts)
    with pytest.raises(MissingGolden, match="ttnn.conj"):
        ttnn.conj(number)
