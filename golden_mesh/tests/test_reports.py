"""Reports for ttnn-visualizer are written on a golden mesh, without ttnn's fast runtime mode too."""

import json
import sqlite3

PROGRAM = """
import torch, ttnn
from pathlib import Path
from ttnn.graph_report import import_report

device = ttnn.open_device(device_id=0)
ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NORMAL)
x = ttnn.from_torch(torch.ones(32, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
w = ttnn.from_torch(torch.ones(64, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
y = ttnn.relu(ttnn.add(ttnn.linear(x, w), -1.0))
print(ttnn.to_torch(y)[0, 0].item())
ttnn.graph.end_graph_capture_to_file("report.json")
import_report(Path("report.json"), Path("report"))
ttnn.close_device(device)
"""


def test_a_report_has_operations_tensors_and_buffers(run_as, tmp_path):
    config = {"enable_fast_runtime_mode": False, "enable_logging": True, "report_name": "three"}
    printed = run_as("N150", PROGRAM, TTNN_CONFIG_OVERRIDES=json.dumps(config))
    assert printed.splitlines()[-1] == "63.0"
    database = sqlite3.connect(tmp_path / "report/db.sqlite")
    names = [name for (name,) in database.execute("select name from operations")]
    assert [n for n in names if n in ("ttnn.linear", "ttnn.add", "ttnn.relu")] == [
        "ttnn.linear", "ttnn.add", "ttnn.relu",
    ]  # fmt: skip
    shapes = {shape for (shape,) in database.execute("select shape from tensors")}
    assert {"Shape([32, 64])", "Shape([64, 32])", "Shape([32, 32])"} <= shapes
    sizes = [size for (size,) in database.execute("select max_size_per_bank from buffers")]
    assert sizes and set(sizes) == {2048}, "one tile in a bank"
