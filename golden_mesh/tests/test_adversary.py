"""golden-mesh --adversarial names what a card hides in nearly every run."""

import re

import pytest

QUEUES = """
import torch, ttnn

def run(left_out, traced, reads=True):
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), num_command_queues=2, trace_region_size=1 << 20)
    OPEN.append(device)
    host = [ttnn.from_torch(torch.full((32, 32), float(n)), ttnn.bfloat16, layout=ttnn.TILE_LAYOUT) for n in range(3)]
    x = ttnn.to_device(host[0], device)
    y = ttnn.neg(x)
    ttnn.synchronize_device(device)
    if traced:
        trace = ttnn.begin_trace_capture(device, cq_id=0)
        ttnn.neg(x, output_tensor=y)
        ttnn.end_trace_capture(device, trace, cq_id=0)

    def wait(name, waiting, on):
        if name != left_out:
            ttnn.wait_for_event(waiting, ttnn.record_event(device, on))

    for step in range(3):
        wait("before a write", 1, 0)
        ttnn.copy_host_to_device_tensor(host[step], x, cq_id=1)
        wait("before a step", 0, 1)
        if traced:
            ttnn.execute_trace(device, trace, cq_id=0, blocking=False)
        else:
            ttnn.neg(x, output_tensor=y)
        if reads:
            wait("before a read", 1, 0)
            read = y.cpu(blocking=False, cq_id=1)
            done = ttnn.record_event(device, 1)
            early = ttnn.to_torch(read)
            wait("after a read", 0, 1)
            if left_out != "for a read":
                ttnn.event_synchronize(done)
    ttnn.synchronize_device(device)
    return early.isnan().all().item(), ttnn.to_torch(read)[0, 0].item()
"""
RUNS = {  # the arguments of `run` -> what it returns, or the error
    "'', False": r"\(True, -2.0\)",
    "'', True": r"\(True, -2.0\)",
    "'for a read', True": r"\(True, -2.0\)",
    "'before a step', False": "ttnn.neg .* reads .* on queue 0, which ttnn.copy_host_to_.* on queue 1 may still write",
    "'before a step', True": "ttnn.neg .* reads .* on queue 0, which ttnn.copy_host_to_.* on queue 1 may still write",
    "'before a read', False": "ttnn.Tensor.cpu .* reads .* on queue 1, which ttnn.neg .* on queue 0 may still write",
    "'before a read', True": "ttnn.Tensor.cpu .* reads .* on queue 1, which ttnn.neg .* on queue 0 may still write",
    "'before a write', True, False": "copy_host_to_.* writes .* on queue 1, which ttnn.neg .* queue 0 may still read",
}
COLLECTIVES = """
import torch, ttnn
cores = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(3, 0))])

def sharded(width):
    spec = ttnn.ShardSpec(cores, (32, width // 4), ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.L1, spec)

def run(buffers, semaphores, between, traced):
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2), trace_region_size=1 << 20)
    OPEN.append(mesh)

    def put(width, memory):
        how = dict(dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, mesh_mapper=ttnn.ReplicateTensorToMesh(mesh))
        return ttnn.from_torch(torch.ones(1, 1, 32, width), device=mesh, memory_config=memory, **how)

    x, other = put(256, sharded(256)), put(256, ttnn.DRAM_MEMORY_CONFIG)
    spaces = [put(512, sharded(512)) for _ in range(buffers)]
    counters = [ttnn.create_global_semaphore(mesh, cores, 0) for _ in range(semaphores)]

    def all_reduce(i):
        y = ttnn.experimental.all_reduce_async(
            x, spaces[i % buffers], cluster_axis=1, mesh_device=mesh, multi_device_global_semaphore=counters[i %
            semaphores], dtype=ttnn.bfloat16, memory_config=sharded(256), num_links=1, topology=ttnn.Topology.Linear)
        if between == "gather":
            ttnn.all_gather(other, dim=3, topology=ttnn.Topology.Linear)
        if between == "synchronize" and not traced:
            ttnn.synchronize_device(mesh)
        if between == "neg":
            ttnn.neg(other)
        return y

    y = all_reduce(0)
    ttnn.synchronize_device(mesh)
    if traced:
        trace = ttnn.begin_trace_capture(mesh, cq_id=0)
        for i in range(2):
            all_reduce(i)
        ttnn.end_trace_capture(mesh, trace, cq_id=0)
        for _ in range(2):
            ttnn.execute_trace(mesh, trace, cq_id=0, blocking=False)
    else:
        for i in range(3):
            y = all_reduce(i)
    return ttnn.to_torch(ttnn.get_device_tensors(y)[0]).mean().item()
"""
BUFFER, SEMAPHORE = (f"all_reduce_async .* writes a {kind} at address" for kind in ("buffer", "semaphore"))
# Two all-reduces in a row must not share a buffer or a semaphore: a chip may be behind its neighbor.
CHIPS = {  # buffers, semaphores, what stands between two all-reduces, traced
    "2, 2, '', False": "2.0",
    "2, 2, '', True": "2.0",
    "1, 2, '', False": BUFFER,
    "1, 2, '', True": BUFFER,
    "2, 1, '', False": SEMAPHORE,
    "1, 1, 'gather', False": "2.0",
    "1, 1, 'synchronize', False": "2.0",
    "1, 2, 'neg', True": BUFFER,
}
EACH = """
for case in CASES:
    try:
        print(case, eval(f"run({case})"), sep=": ")
    except Exception as error:
        print(case, str(error).split(chr(10))[0], sep=": ")
    ttnn.close_mesh_device(OPEN.pop())
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
"""


@pytest.mark.parametrize(
    "system, program, cases", (("N150", QUEUES, RUNS), ("N300", COLLECTIVES, CHIPS)), ids=["queues", "chips"]
)
def test_races_are_named_and_nothing_else(launch, system, program, cases):
    code = f"{program}\nCASES, OPEN = {list(cases)}, []\n{EACH}"
    done = launch("--system", system, "--adversarial", 1, "-c", code)
    printed = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    for case, expected in cases.items():
        assert re.search(expected, printed[case]), (case, printed, done.stderr[-2000:])
