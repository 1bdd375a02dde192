"""Stages that hang, crash, fail or run out of memory are named, the next stage runs, and the report says so."""

import json
import signal
import subprocess
import sys
import time

import pytest

from models.demos.qwen25_7b.bringup import runner
from models.demos.qwen25_7b.bringup.__main__ import main
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
# stage's program -> verdict, words, what ran last; {file} is the program's file
BROKEN = {
    "hang": (FOREVER, "hang", "no end within", "{file}:4: time.sleep(1000)  # ttnn.linear"),
    "crash": ("import os\nprint('running matmul [32, 64]')\nos.abort()", "crash", "SIGABRT", "matmul [32, 64]"),
    "wrong": (PYTEST, "failed", "1 tests, the first: tests/pcc/test_mlp.py::test_mlp[N300]", ""),
    "memory": ("raise RuntimeError('Out of Memory: Not enough space to allocate 9 B')", "out of memory", "Out of Memory", ""),
    "kernel": ("import os\nos.kill(os.getpid(), 9)", "out of memory", "", ""),
    "refused": ("print('running add')\nprint('add 0.0 1.0')\nprint('error: no card')\nraise SystemExit(2)", "failed", "error: no card", ""),
    "green": ("print('error: none')", "green", "", ""),
}  # fmt: skip


def stage(tmp_path, name, program, minutes=0.5, **options) -> Stage:
    file = tmp_path / f"{name}.py"
    file.write_text(program)
    return Stage(name, ((sys.executable, f"{file}"),), minutes, **options)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stage_is_named(tmp_path, name):
    program, verdict, words, last = BROKEN[name]
    outcome = run_stage(
        stage(tmp_path, name, program, minutes=0.03 if name == "hang" else 0.5), tmp_path / "log"
    )
    assert (outcome.verdict, words in outcome.words) == (verdict, True), outcome
    if last:
        assert outcome.last == last.format(file=tmp_path / f"{name}.py")


def test_the_next_stage_runs_and_a_second_run_keeps_outcomes(tmp_path):
    count = tmp_path / "count"
    counting = f"open({str(count)!r}, 'a').write('x')"
    two = [stage(tmp_path, "wrong", f"{counting}\n{PYTEST}"), stage(tmp_path, "green", counting)]
    run_stages(two, tmp_path, print)
    run_stages(two, tmp_path, print)
    assert [o.verdict for o in known_outcomes(tmp_path).values()] == ["failed", "green"]
    assert count.read_text() == "xx"
    run_stages(two, tmp_path, print, again=["green"])
    assert count.read_text() == "xxx"


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
    op = {
        "op": "ttnn.linear",
        "shown": "linear [32, 64]",
        "failed": None,
        "error": 1e-3,
        "gain": 1.0,
        "equal": 0.5,
        "device_op": "AllReduceAsync None: [1, 1, 32, 64] bfloat16 L1 interleaved; [1]",
    }
    ops = [
        op | {"us": 20.0, "modeled_us": 10.0},
        op | {"us": None, "modeled_us": None, "shown": "pad [1]", "failed": "RuntimeError: no"},
        op | {"us": 12.0, "modeled_us": None, "setting": "math_fidelity=LoFi", "of": 0},
    ]
    speed = [{"recipe": "bfp8", "users": 32, "prompt": 128, "first_token_ms": 50.0, "step_ms": 40.0, "modeled_ms": 30.0, "share_of_dram": 0.4}]  # fmt: skip
    for name, rows in (("machine", facts), ("ops", ops), ("speed", speed)):
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    outcomes = {
        "machine": Outcome("green", 1),
        "modules": Outcome("hang", 60, "no end within 1 minutes", "mlp.py:9: ttnn.linear("),
        "server": Outcome("skipped", 0, "needs .venv-vllm: make serve once"),
    }
    report = write_report(tmp_path, "Bring-up", "7b", outcomes)
    text = (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / "report.json").read_text()) == report
    head = text.split("## What failed")[0]
    for line in (
        "**1 stages did not end well: modules.** 1 green; skipped: server (needs .venv-vllm: make serve once).",
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
    assert "- AllReduceAsync None: [1, 1, 32, 64] bfloat16 L1 interleaved: 20.0 us" in text
    assert "- linear [32, 64] math_fidelity=LoFi: 12.0 instead of 20.0 us" in text
    assert all(
        "say nothing about hardware)" in line
        for line in text.splitlines()
        if "measured beside" in line
    )


def test_an_unknown_stage_is_one_line(tmp_path, capsys):
    assert main(["--out", f"{tmp_path}", "--only", "dance"]) == 2
    assert "'dance' is no stage: there are machine, ops, modules" in capsys.readouterr().err
