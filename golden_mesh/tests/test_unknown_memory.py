"""Memory that was only allocated. Ops may take it, as in a compile run. Their results cannot be read."""

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import sharded

SHAPE = (1, 1, 32, 64)


@pytest.fixture
def empty(golden):
    """empty(): a tensor on the device that was never written, of SHAPE or another shape."""

    def empty(*shape, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT):
        return ttnn.empty(shape or SHAPE, dtype, layout, golden.device, ttnn.DRAM_MEMORY_CONFIG)

    return empty


def refused(golden, tensor, why: str, read=None) -> None:
    with pytest.raises(GoldenError, match=why):
        (read or golden.get)(tensor)


READS = {
    "to_torch": lambda golden: golden.get,
    "cpu": lambda golden: lambda x: x.cpu(),
    "repr": lambda golden: repr,
    "copy": lambda golden: lambda x: ttnn.copy_device_to_host_tensor(x, golden.host(torch.zeros(SHAPE))),
}


@pytest.mark.parametrize("how", READS)
def test_the_host_cannot_read_memory_before_it_is_written(golden, empty, how):
    x, read = empty(), READS[how](golden)
    why = rf"\[1, 1, 32, 64\].*{x.buffer_address():#x}, which was allocated and never"
    refused(golden, x, why, read)
    ttnn.copy_host_to_device_tensor(golden.host(torch.ones(SHAPE)), x)
    read(x)
    assert golden.holds(x, 1)


def test_results_of_unknown_memory_are_unknown_and_the_error_names_the_first_op(golden, empty):
    x = empty()
    first = ttnn.relu(x)
    later = ttnn.concat([ttnn.reshape(first, (1, 1, 64, 32)), golden.full(2, 1, 1, 64, 32)], 3)
    ttnn.copy_host_to_device_tensor(golden.host(torch.ones(SHAPE)), x)  # too late for both
    why = rf"ttnn.relu read .*{x.buffer_address():#x}, which was allocated and never"
    for unknown in (first, ttnn.add(golden.full(1, 1, 1, 64, 64), later)):
        refused(golden, unknown, why)
    assert golden.holds(ttnn.relu(x), 1)
    if golden.chips > 1:
        refused(golden, ttnn.all_gather(empty(), 3), "ttnn.all_gather read")


def test_a_compile_run_before_the_input_is_written_leaves_a_trace_that_works(golden, empty):
    def step():
        return ttnn.add(ttnn.mul(x, 3.0), 1.0)

    x = empty()
    unknown = step()
    trace, y = golden.capture(step)
    ttnn.execute_trace(golden.device, trace, cq_id=0, blocking=True)
    for result in (unknown, y):
        refused(golden, result, "ttnn.mul.* read")
    ttnn.copy_host_to_device_tensor(golden.host(torch.ones(SHAPE)), x)
    ttnn.execute_trace(golden.device, trace, cq_id=0, blocking=True)
    assert golden.holds(y, 4)
    ttnn.release_trace(golden.device, trace)


def test_an_op_in_place_that_reads_its_tensor_leaves_it_unknown(golden, empty):
    counter = empty(1, 32, dtype=ttnn.int32, layout=ttnn.ROW_MAJOR_LAYOUT)
    ttnn.plus_one(counter)
    refused(golden, counter, "ttnn.plus_one read")
    known = golden.full(1, *SHAPE)
    ttnn.add_(known, empty())
    refused(golden, known, "ttnn.add_ read")


@pytest.mark.parametrize("kind", ["bfloat16", "float32", "int32", "uint32", "bfloat8_b"])
def test_a_copy_of_the_whole_tensor_makes_it_known(golden, empty, kind):
    dtype = getattr(ttnn, kind)
    x, y = golden.full(3, *SHAPE, dtype=dtype), empty(dtype=dtype)
    ttnn.copy(x, y)
    assert golden.holds(y, 3)
    assert golden.holds(ttnn.assign(x, empty(dtype=dtype)), 3)
    ttnn.copy(empty(dtype=dtype), y)
    refused(golden, y, "ttnn.copy read")
    ttnn.copy(x, y)
    assert golden.holds(y, 3)


def test_a_cache_is_known_when_all_of_it_is_written(golden, empty):
    cache, prompt = empty(2, 2, 64, 32), golden.full(5, 1, 2, 64, 32)
    ttnn.fill_cache(cache, prompt, 0)
    refused(golden, cache, "which was allocated and is written only in part")
    ttnn.fill_cache(cache, prompt, 1)
    assert golden.holds(cache, 5)


@pytest.mark.parametrize("kind", ["bfloat16", "bfloat8_b"])
def test_unknown_rows_in_a_known_cache_are_known_again_when_they_are_written(golden, empty, kind):
    """A compile run of a decode step writes one row of a cache that holds a prompt. The first real step writes it
    again.
    """
    dtype = getattr(ttnn, kind)
    cache = golden.full(5, 2, 2, 64, 32, dtype=dtype)
    ttnn.fill_cache(cache, empty(1, 2, 64, 32, dtype=dtype), 1)
    for unknown in (cache, ttnn.clone(cache)):
        refused(golden, unknown, "ttnn.fill_cache read")
    ttnn.fill_cache(cache, golden.full(5, 1, 2, 64, 32, dtype=dtype), 1)
    assert golden.holds(cache, 5)


def test_rows_written_at_unknown_positions_leave_the_cache_unknown(golden, empty):
    cache, rows = golden.full(5, 32, 1, 64, 32), golden.full(6, 1, 32, 1, 32)
    rows = ttnn.to_memory_config(rows, sharded("HEIGHT", (32, 32), 32))
    positions = empty(32, dtype=ttnn.int32, layout=ttnn.ROW_MAJOR_LAYOUT)
    ttnn.experimental.paged_update_cache(cache, rows, update_idxs_tensor=positions)
    ttnn.fill_cache(cache, golden.full(5, 1, 1, 64, 32), 0)
    refused(golden, cache, "ttnn.experimental.paged_update_cache read .*INT32")


# Calls with outputs of the caller, new(*shape), that nothing wrote; x(*shape) is an input.
OUTPUTS = [
    "moreh_layer_norm(x(2, 32, 64), 1, 1e-5, x(1, 64), x(1, 64), mean=new(2, 32), rstd=new(2, 32))",
    "moreh_layer_norm(x(2, 32, 64), 1, rstd=new(2, 32))",
    "moreh_group_norm(x(1, 4, 32, 32), 2, are_required_outputs=(True, True, True), mean=new(1, 1, 1, 2), "
    "rstd=new(1, 1, 1, 2))",
    "moreh_layer_norm_backward(x(2, 32, 64), x(2, 32, 64), x(2, 32), x(2, 32), 1, gamma=x(1, 64), "
    "input_grad=new(2, 32, 64), gamma_grad=new(1, 64), beta_grad=new(1, 64))",
    "moreh_dot_backward(x(1, 1, 1, 1), x(1, 1, 1, 64), x(1, 1, 1, 64), input_grad=new(1, 1, 1, 64), "
    "other_grad=new(1, 1, 1, 64))",
    "moreh_sgd(x(1, 1, 32, 64), x(1, 1, 32, 64), None, new(1, 1, 32, 64), momentum_initialized=False)",
    "full_like(x(1, 1, 32, 64), 3.0, optional_tensor=new(1, 1, 32, 64))",
    "add(x(1, 1, 32, 64), 1.0, output_tensor=new(1, 1, 32, 64))",
]


@pytest.mark.parametrize("call", OUTPUTS, ids=lambda call: call.split("(")[0])
def test_an_output_of_the_caller_is_not_read(golden, empty, call):
    results = eval(f"ttnn.{call}", {"ttnn": ttnn, "x": lambda *s: golden.full(0.5, *s), "new": empty})
    for result in results if isinstance(results, (list, tuple)) else [results]:
        assert result is None or all(values.isfinite().all() for values in golden.get(result))


def test_a_tensor_that_is_input_and_output_is_read(golden):
    """The momentum's buffer 0.5, written in place: 0.9 * 0.5 + 1."""
    x, buffer = golden.full(1.0, 1, 1, 32, 64), golden.full(0.5, 1, 1, 32, 64)
    ttnn.moreh_sgd(x, x, buffer, None, buffer, 0.1, 0.9, momentum_initialized=True)
    assert golden.holds(buffer, torch.full((1, 1, 32, 64), 1.45).bfloat16())


def test_the_librarys_error_for_wrong_arguments_comes_through(golden, empty):
    """Its message prints the tensors."""
    with pytest.raises(TypeError, match="relu_bw"):
        ttnn.relu_bw(golden.full(1.0), golden.full(1.0), input_grad=empty())
