"""Calls in other people's programs: each was refused or crashed once, though a chip computes it."""

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError, UnknownMemory
from goldens.support import assert_same, cores


def test_programs_run_with_sub_devices_loaded(chips):
    x = chips.put(torch.ones(32, 32))
    first, second = (ttnn.SubDevice([cores(8, start)]) for start in (0, 8))
    manager = chips.device.create_sub_device_manager([first, second], 3200)
    chips.device.load_sub_device_manager(manager)
    chips.device.set_sub_device_stall_group([ttnn.SubDeviceId(1)])
    assert_same(ttnn.sum(x, dim=0, keepdim=True), torch.ones(1, 32) * 32)
    ttnn.synchronize_device(chips.device, sub_device_ids=[ttnn.SubDeviceId(1)])
    assert_same(ttnn.matmul(x, x, sub_device_id=ttnn.SubDeviceId(1)), torch.full((32, 32), 32.0))
    chips.device.reset_sub_device_stall_group()
    chips.device.clear_loaded_sub_device_manager()
    chips.device.remove_sub_device_manager(manager)


def test_a_result_of_a_trace_that_was_not_executed_names_the_trace(chips):
    x = chips.put(torch.ones(32, 32))
    ttnn.neg(x)
    trace = ttnn.begin_trace_capture(chips.device, cq_id=0)
    result = ttnn.neg(x)
    ttnn.end_trace_capture(chips.device, trace, cq_id=0)
    with pytest.raises(UnknownMemory, match=rf"result of trace {int(trace)}, .*execute_trace"):
        chips.get(result)
    ttnn.execute_trace(chips.device, trace, cq_id=0)
    assert_same(result, -torch.ones(32, 32))
    ttnn.release_trace(chips.device, trace)


def test_a_golden_that_fails_names_its_op(chips, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cumsum", None)
    with pytest.raises(GoldenError, match=r"golden of ttnn.cumsum .*\[1, 1, 32, 32\] BFLOAT16"):
        ttnn.cumsum(chips.put(torch.ones(1, 1, 32, 32)), 2)
