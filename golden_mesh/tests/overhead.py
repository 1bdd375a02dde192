"""Microseconds of a call on one golden chip: with values / by the library alone / by torch in float32.

    python golden_mesh/tests/overhead.py [SOURCE ...]

SOURCE: a folder with a package golden_mesh, by default this repository's. Several are timed turn by turn in one run, so
that their ratios hold on a busy machine. Times are of the thread, medians. No test looks at them.
"""

import json
import os
import subprocess
import sys
import time
import timeit
from pathlib import Path
from statistics import median

SIZES = 32, 1024
ROUNDS = 5


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
    return 1e6 * median(timeit.repeat(call, timer=time.thread_time, number=1, repeat=20))


def measure() -> None:
    """Print a table as JSON for each line of stdin: {"add 32": [golden mesh, library, torch], ...}."""
    import golden_mesh

    golden_mesh.activate("N150", hazards="warn")
    import torch
    import ttnn

    torch.set_num_threads(1)
    torch.manual_seed(0)  # all sources get the same values: some steps take longer with some
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    put = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT, "device": device}
    for _ in sys.stdin:
        table = {}
        for size in SIZES:
            on_host = [torch.randn(1, 1, size, size).bfloat16() for _ in range(2)]
            ours = calls(ttnn, *(ttnn.from_torch(x, **put) for x in on_host))
            for (name, call), plain in zip(ours.items(), torch_calls(torch, *(x.float() for x in on_host)).values()):
                with_values = microseconds(call)
                with golden_mesh.without_values():
                    library = microseconds(call)
                table[f"{name} {size}"] = with_values, library, microseconds(plain)
        print(json.dumps(table), flush=True)


def main(sources: list[str]) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--measure"],
            env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for source in sources
    ]  # fmt: skip
    tables = [[] for _ in workers]
    for _ in range(ROUNDS):
        for worker, found in zip(workers, tables):
            print(file=worker.stdin, flush=True)
            found.append(json.loads(worker.stdout.readline()))
    print("call                 ", *sources)
    for name in tables[0][0]:
        cells = [" / ".join(f"{median(each):,.0f}" for each in zip(*(t[name] for t in found))) for found in tables]
        print(f"{name:16}", *(f"{cell:>24}" for cell in cells))
    for worker in workers:
        worker.communicate()


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["--measure"] else main(sys.argv[1:] or [f"{Path(__file__).parents[1] / 'src'}"])
