"""Stages that hang, crash, fail or run out of memory are named, the next stage runs, and the report says so."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from models.demos.qwen25_7b.bringup import runner
from models.demos.qwen25_7b.bringup.__main__ import main
from models.demos.qwen25_7b.bringup.ops import variants
from models.demos.qwen25_7b.bringup.report import write_report
from models.demos.qwen25_7b.bringup.runner import (
    Outcome,
    Stage,
    known_outcomes,
    run_stage,
    run_stages,
)

FOREVER = """
import time
def forward(x):
    time.sleep(1000)  # ttnn.linear
forward(1)
"""
PYTEST = """
print("..F")
print("FAILED tests/pcc/test_mlp.py::test_mlp[N300] - AssertionError: PCC 0.91 < 0.99")
raise SystemExit(1)
"""
OPS = """
print('running add')
print('add 0.0 1.0')
print('error: 1 of 2 operations failed, the first: add: wrong values, error 0.4')
raise SystemExit(2)
"""
FULL = """
def forward(x):
    raise RuntimeError('Out of Memory: Not enough space to allocate 9 B')  # ttnn.linear
forward(1)
"""
FULL_IN_PYTEST = """
print("E  RuntimeError: Out of Memory: Not enough space to allocate 9 B")
print()
print(__file__ + ":8: RuntimeError")  # ttnn.add
print("/lib/python3/ttnn/decorators.py:7: RuntimeError")
print("FAILED tests/pcc/test_mlp.py::test_mlp[N300] - RuntimeError: Out of Memory")


raise SystemExit(1)
"""
KILLED = """
import os
print("tests/pcc/test_mlp.py::test_mlp[N300] ", end="", flush=True)
os.kill(os.getpid(), 9)
"""
# stage's program -> verdict, words, what ran last; {file} is the program's file
BROKEN = {
    "hang": (f"print('running linear [32, 64]')\n{FOREVER}", "hang", "no end within", "linear [32, 64]"),
    "hang between operations": (FOREVER, "hang", "no end within", "{file}:4: time.sleep(1000)  # ttnn.linear"),
    "crash": ("import os\nprint('running matmul [32, 64]')\nos.abort()", "crash", "SIGABRT", "matmul [32, 64]"),
    "wrong value": (PYTEST, "wrong value", "1 tests, the first: tests/pcc/test_mlp.py::test_mlp[N300]", ""),
    "wrong operation": (OPS, "wrong value", "the first: add: wrong values", ""),
    "memory": (FULL, "out of memory", "Out of Memory", "{file}:3: raise RuntimeError('Out of Memory: Not enough space to allocate 9 B')  # ttnn.linear"),
    "memory in a test": (FULL_IN_PYTEST, "out of memory", "Out of Memory", "{file}:8:"),
    "memory of a core": (FULL.replace("Out of Memory: Not enough space to allocate 9 B", "dataflow buffers clash with L1 buffers"), "out of memory", "clash with L1", "{file}:3:"),
    "memory of the host": (KILLED, "out of memory", "", "tests/pcc/test_mlp.py::test_mlp[N300]"),
    "refused": ("print('running add')\nprint('add 0.0 1.0')\nprint('error: no card')\nraise SystemExit(2)", "failed", "error: no card", ""),
    "green": ("print('error: none')", "green", "", ""),
}  # fmt: skip
SERVER = """
import os, signal, subprocess, sys, time
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
def stop(*_):
    engine.kill()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open({file!r}, "w").write(str(engine.pid))
time.sleep(1000)
"""
OTHER_MACHINE = """
import sys
from dataclasses import replace
from golden_mesh.systems import SYSTEMS
from models.demos.qwen25_7b.bringup import machine
four = SYSTEMS["N150x4"]
SYSTEMS["N150x4"] = replace(four, harvested_rows=(0b1000001,) * 4, links=four.links[::4])
machine.version = lambda _: "0.80.0"
machine.run_program("", machine.compare)
"""


def stage(tmp_path, name, program, minutes=0.5, **options) -> Stage:
    file = tmp_path / f"{name}.py".replace(" ", "-")
    file.write_text(program)
    return Stage(name, ((sys.executable, f"{file}"),), minutes, **options)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stage_is_named(tmp_path, name):
    program, verdict, words, last = BROKEN[name]
    minutes = 0.03 if verdict == "hang" else 0.5
    outcome = run_stage(stage(tmp_path, name, program, minutes), tmp_path / "log")
    assert (outcome.verdict, words in outcome.words) == (verdict, True), outcome
    file = tmp_path / f"{name}.py".replace(" ", "-")
    assert outcome.last.startswith(last.format(file=file)) and bool(outcome.last) == bool(last)


def test_a_stage_that_hangs_leaves_no_engine(tmp_path):
    """An engine of vLLM has a session of its own; scripts/serve.py ends it upon SIGTERM."""
    engine = tmp_path / "engine"
    starts = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SERVER.format(file=f'{engine}')!r}])"
    assert run_stage(stage(tmp_path, "server", starts, 0.05), tmp_path / "log").verdict == "hang"
    process, deadline = Path(f"/proc/{engine.read_text()}"), time.monotonic() + 10
    while process.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not process.exists()


def test_the_next_stage_runs_and_a_second_run_keeps_outcomes(tmp_path):
    count = tmp_path / "count"
    counting = f"open({str(count)!r}, 'a').write('x')"
    two = [stage(tmp_path, "wrong", f"{counting}\n{PYTEST}"), stage(tmp_path, "green", counting)]
    run_stages(two, tmp_path, print)
    run_stages(two, tmp_path, print)
    assert [o.verdict for o in known_outcomes(tmp_path).values()] == ["wrong value", "green"]
    assert count.read_text() == "xx"
    run_stages(two, tmp_path, print, again=["green"])
    assert count.read_text() == "xxx"
    run_stages([replace(two[1], name="answers", skip="needs MODEL")], tmp_path, print)
    run_stages([replace(two[1], name="answers")], tmp_path, print)  # MODEL is given now
    assert known_outcomes(tmp_path)["answers"].verdict == "green"


def test_an_interrupt_ends_the_stage_and_keeps_the_others(tmp_path):
    program = f"""
import sys
sys.path.insert(0, {str(runner.__file__.split("/models/")[0])!r})
from pathlib import Path
from models.demos.qwen25_7b.bringup.runner import Stage, run_stages
command = lambda code: ((sys.executable, "-c", code),)
stages = [Stage("a", command("pass"), 1), Stage("b", command("print('started', flush=True); import time; time.sleep(1000)"), 1)]
run_stages(stages, Path({str(tmp_path)!r}), print)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    log = tmp_path / "b.log"
    deadline = time.monotonic() + 60
    while not (log.exists() and "\nstarted" in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    assert list(known_outcomes(tmp_path)) == ["a"]


def test_the_report_begins_with_the_verdict_and_what_differs(tmp_path):
    facts = [
        {"what": "below ttnn", "found": "golden mesh", "assumed": "silicon"},
        {"what": "ttnn", "found": "0.80.0", "assumed": "0.81.1"},
        {"what": "chips", "found": "2", "assumed": "2"},
        {"what": "compute grid", "found": "8x7", "assumed": "8x8"},
        {"what": "links between neighbors", "found": "1", "assumed": "4"},
        {"what": "driver", "found": "2.1", "assumed": None},
    ]  # fmt: skip
    sum_of = "{} None: [1, 1, 32, 64] bfloat16 L1 interleaved; [1]".format
    op = {
        "op": "ttnn.linear",
        "shown": "linear [32, 64]",
        "failed": None,
        "error": 1e-3,
        "gain": 1.0,
        "equal": 0.5,
        "device_op": sum_of("AllReduceAsync"),
    }
    ops = [
        op | {"us": 20.0, "modeled_us": 10.0},
        op | {"us": None, "modeled_us": None, "shown": "pad [1]", "failed": "RuntimeError: no"},
        op | {"us": 12.0, "modeled_us": None, "setting": "math_fidelity=LoFi", "of": 0},
        op | {"us": 10.0, "modeled_us": None, "device_op": sum_of("ReduceScatter")},
        op | {"us": 5.0, "modeled_us": None, "device_op": sum_of("AllGather")},
    ]
    speed = [{"recipe": "bfp8", "users": 32, "prompt": 128, "first_token_ms": 50.0, "step_ms": 40.0, "modeled_ms": 30.0, "share_of_dram": 0.4}]  # fmt: skip
    answers = {"results": [{"recipe": {"name": "bfp8"}, "kl_mean": 0.0055, "top1": 0.97, "top5": 1.0, "tokens": 1008}]}  # fmt: skip
    served = {"total_input_tokens": 512, "total_output_tokens": 512, "completed": 4, "max_concurrency": 1, "mean_ttft_ms": 60, "mean_tpot_ms": 40, "output_throughput": 24}  # fmt: skip
    stages = ("machine", facts), ("ops", ops), ("speed", speed), ("small-N300-tp2-decode", answers)
    scores = {"runs": [{"split": "N300, tp 2 x dp 1", "recipe": {"name": "bfp8"}, "results": {"questions": {"exact_match,flexible-extract": 0.75}}, "answers": []}]}  # fmt: skip
    stages += (("small-N300-tp2-tasks", scores),)
    stages += ("server-1", served), ("server-32", served | {"max_concurrency": 32})
    for name, rows in stages:
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    outcomes = {
        "machine": Outcome("green", 1),
        "modules": Outcome("hang", 60, "no end within 1 minutes", "mlp.py:9: ttnn.linear("),
        "server": Outcome("skipped", 0, "needs .venv-vllm: make serve once"),
    }
    report = write_report(tmp_path, "Bring-up", "N300", "7b", outcomes)
    text = (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / "report.json").read_text()) == report
    head = text.split("## What failed")[0]
    for line in (
        "**1 stages did not end well: modules.** Green: machine; skipped: server (needs .venv-vllm: make serve once).",
        "- ttnn: found 0.80.0, plans assume 0.81.1",
        "- compute grid: found 8x7, plans assume 8x8",
        "- links between neighbors: found 1, plans assume 4",
        "**Times are of a golden mesh and say nothing about hardware.**",
    ):
        assert line in head, line
    assert "driver" not in head and "chips" not in head
    assert (
        "- modules: hang after 60 s: no end within 1 minutes, last ran: mlp.py:9: ttnn.linear("
        in text
    )
    assert "| bfp8 | 32 | 128 | 50.0 | 40.00 | 30.0 | -25% | 25.0 | 40% |" in text
    assert "| linear [32, 64] | 1.0e-03 | 1.0000 | 50.0% | 20.0 | 10.0 | -50% |" in text
    assert "without values: pad [1]." in text
    assert "| bfp8 | 0.0055 | 97.00% | 100.00% | 1008 |" in text
    assert "| N300, tp 2 x dp 1 | bfp8 | 75.0% |" in text
    assert "the fastest is reduce_scatter + all_gather:" in text
    assert "- all_reduce_async of bfloat16: 20.0 us\n- reduce_scatter + all_gather: 15.0 us" in text
    assert "- linear [32, 64] math_fidelity=LoFi: 12.0 instead of 20.0 us, error 1.0e-03" in text
    assert "| 128 | 128 | 1 | 60 | 25.0 | 24 | complete |" in text
    assert "| 128 | 128 | 32 | 60 | 25.0 | 24 |  |" in text
    assert "bar [40.0]\n    line [30.0]" in text and "bar [20.0, 10.0, 5.0]" in text
    assert all(
        "say nothing about hardware)" in line
        for line in text.splitlines()
        if "measured beside" in line
    )


def test_a_report_of_another_machine_says_so_first(tmp_path):
    """A grid of 8x7 (a further harvested row), one link instead of four, another ttnn."""
    options = ["--mesh", "N150x4", "--backend", "golden", "--out", f"{tmp_path}"]
    subprocess.run([sys.executable, "-c", OTHER_MACHINE, *options], check=True, capture_output=True)
    write_report(tmp_path, "Bring-up", "N150x4", "tiny", {"machine": Outcome("green", 1)})
    assert (tmp_path / "report.md").read_text().splitlines()[2:10] == [
        "**Every stage that ran is green.** Green: machine.",
        "",
        "This machine differs from what the plans assume:",
        "",
        "- below ttnn: found golden mesh, plans assume silicon",
        "- ttnn: found 0.80.0, plans assume 0.81.1",
        "- compute grid: found 8x7, plans assume 8x8",
        "- links between neighbors: found 1, plans assume 4",
    ]


@pytest.mark.parametrize("links, timed", [(1, []), (4, ["num_links=1"])])
def test_one_link_is_timed_where_the_plan_has_more(links, timed):
    op = {"op": "ttnn.reduce_scatter", "arguments": [[], {"dim": 3, "num_links": links}]}
    assert [other["setting"] for other in variants([op])] == timed
    assert op["arguments"][1]["num_links"] == links


def test_an_unknown_stage_is_one_line(tmp_path, capsys):
    assert main(["--out", f"{tmp_path}", "--only", "dance"]) == 2
    assert "'dance' is no stage: there are machine, ops, modules" in capsys.readouterr().err
