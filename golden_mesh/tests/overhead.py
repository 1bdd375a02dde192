"""Microseconds of a call on one golden chip: with values / by the library alone / by torch in float32.

    python golden_mesh/tests/overhead.py

Times are of the thread, medians. No test looks at them.
"""

import time
import timeit
from statistics import median

import golden_mesh

SIZES = 32, 1024


def calls(ttnn, a, b):
    return {
        "add": lambda: ttnn.add(a, b),
        "rms_norm": lambda: ttnn.rms_norm(a),
        "matmul": lambda: ttnn.matmul(a, b),
        "sum": lambda: ttnn.sum(a, -1),
        "softmax": lambda: ttnn.softmax(a, -1),
    }


def torch_calls(torch, a, b):
    return {
        "add": lambda: a + b,
        "rms_norm": lambda: torch.nn.functional.rms_norm(a, a.shape[-1:]),
        "matmul": lambda: a @ b,
        "sum": lambda: a.sum(-1),
        "softmax": lambda: a.softmax(-1),
    }


def microseconds(call) -> float:
    """The median of a thread's time for one call."""
    return 1e6 * median(timeit.repeat(call, timer=time.thread_time, number=1, repeat=100))


def main() -> None:
    golden_mesh.activate("N150", hazards="warn")
    import torch
    import ttnn

    torch.set_num_threads(1)
    torch.manual_seed(0)  # some steps take longer with some values
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    put = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT, "device": device}
    for size in SIZES:
        on_host = [torch.randn(1, 1, size, size).bfloat16() for _ in range(2)]
        ours = calls(ttnn, *(ttnn.from_torch(x, **put) for x in on_host))
        for (name, call), plain in zip(ours.items(), torch_calls(torch, *(x.float() for x in on_host)).values()):
            with_values = microseconds(call)
            with golden_mesh.without_values():
                library = microseconds(call)
            print(f"{name:10} {size:5} {with_values:9,.0f} / {library:,.0f} / {microseconds(plain):,.0f}", flush=True)


if __name__ == "__main__":
    main()
