"""Stages that hang, crash, fail or run out of memory are named, the next stage runs, and the report says so."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from golden_mesh.replay import difference
from programs import run_python
from qwen25_7b_lab.bringup import __main__ as command
from qwen25_7b_lab.bringup import runner
from qwen25_7b_lab.bringup.ops import variants
from qwen25_7b_lab.bringup.report import write_report
from qwen25_7b_lab.bringup.runner import Outcome, Stage, known_outcomes, run_stage, run_stages

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
    "out of time": (
        "import time\nfor i in range(10**4):\n    print(f'running op\\nop 0.0\\n{i} of 10000 operations', flush=True)\n"
        "    time.sleep(0.05)", "time", " of 10000 operations", "{file}:4: time.sleep",
    ),
    "crash": ("import os\nprint('running matmul [32, 64]')\nos.abort()", "crash", "SIGABRT", "matmul [32, 64]"),
    "wrong value": (PYTEST, "wrong value", "1 test, the first: tests/pcc/test_mlp.py::test_mlp[N300]", ""),
    "wrong operation": (OPS, "wrong value", "the first: add: wrong values", ""),
    "memory": (FULL, "out of memory", "Out of Memory",
        "{file}:3: raise RuntimeError('Out of Memory: Not enough space to allocate 9 B')  # ttnn.linear"),
    "memory in a test": (FULL_IN_PYTEST, "out of memory", "Out of Memory", "{file}:8:"),
    "memory of a core": (FULL.replace("Out of Memory: Not enough space to allocate 9 B",
        "dataflow buffers clash with L1 buffers"), "out of memory", "clash with L1", "{file}:3:"),
    "memory of the host": (KILLED, "out of memory", "", "tests/pcc/test_mlp.py::test_mlp[N300]"),
    "refused": ("print('running add')\nprint('add 0.0 1.0')\nprint('error: no card')\nraise SystemExit(2)", "failed",
        "error: no card", ""),
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
SLOW = """
import signal, sys, time
def stop(*_):
    time.sleep(1)
    open({file!r}, "w")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("started", flush=True)
time.sleep(1000)
"""
OTHER_MACHINE = """
from importlib import metadata
version = metadata.version
metadata.version = lambda name: "0.80.0" if name == "ttnn" else version(name)
from dataclasses import replace
from golden_mesh.start.systems import SYSTEMS
from qwen25_7b_lab.bringup import machine
four = SYSTEMS["N150x4"]
SYSTEMS["N150x4"] = replace(four, harvested_rows=(0b1000001,) * 4, links=four.links[::4])
machine.run_program("", machine.compare)
"""


def stage(tmp_path, name, program, minutes=0.5, **options) -> Stage:
    file = tmp_path / f"{name}.py".replace(" ", "-")
    file.write_text(program)
    return Stage(name, ((sys.executable, f"{file}"),), minutes, **options)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stage_is_named(tmp_path, name):
    program, verdict, words, last = BROKEN[name]
    minutes = 0.04 if verdict in ("hang", "time") else 0.5
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


def test_the_next_stage_runs_after_one_that_fails_or_is_skipped(tmp_path):
    wrong, green = stage(tmp_path, "wrong", PYTEST), stage(tmp_path, "green", "")
    run_stages([wrong, replace(green, name="answers", skip="needs MODEL"), green], tmp_path, print)
    verdicts = {name: outcome.verdict for name, outcome in known_outcomes(tmp_path).items()}
    assert verdicts == {"wrong": "wrong value", "answers": "skipped", "green": "green"}


@pytest.mark.parametrize("verdict, on, again, kept", [
    ("green", "a", [], "keep"), ("failed", "a", [], "keep"), ("hang", "a", [], "keep"), ("green", "b", [], "new"),
    ("wrong value", "a", [], "keep"), ("skipped", "a", [], "go on"), ("time", "a", [], "go on"),
    ("stopped", "a", [], "go on"), ("stopped", "b", [], "new"), ("time", "a", ["ops"], "new"),
    ("green", "a", ["ops"], "new"),
])  # fmt: skip
def test_what_a_stage_ran_on_decides_what_is_kept(tmp_path, verdict, on, again, kept):
    (tmp_path / "ops.json").write_text("x")
    before = asdict(Outcome(verdict, 1, on={"code": on}))
    (tmp_path / "outcomes.json").write_text(json.dumps({"ops": before}))
    appends = f"open({str(tmp_path / 'ops.json')!r}, 'a').write('y')"
    ops = stage(tmp_path, "ops", appends, on={"code": "a"}, results=("ops.json",))
    run_stages([ops], tmp_path, print, again)
    assert (tmp_path / "ops.json").read_text() == {"keep": "x", "new": "y", "go on": "xy"}[kept]
    assert known_outcomes(tmp_path)["ops"].on["code"] == ("a" if kept != "keep" else on)


def test_two_edits_of_the_programs_are_two_states(tmp_path, monkeypatch):
    """Without git, too, and with the file's size and time kept."""
    monkeypatch.setattr(command, "ROOTS", [tmp_path])
    found = []
    for text in ("x = 1", "x = 2", "x = 1"):
        (tmp_path / "program.py").write_text(text)
        os.utime(tmp_path / "program.py", (0, 0))
        found.append(command._code())
    assert found[0] == found[2] != found[1]


def test_no_time_where_the_traces_do_not_differ():
    assert difference([30.0, 31.0, 90.0], [20.0, 21.0, 22.0], 2) == 5.0
    assert difference([20.0, 23.0, 90.0], [19.0, 20.0, 22.0], 2) is None
    assert difference([19.0, 20.0, 21.0], [20.0, 20.0, 20.0], 2) is None


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
def test_a_signal_ends_the_stage_and_keeps_the_others(tmp_path, number):
    """Twice, as a terminal that closes sends it. The stage has a process that takes its time to end."""
    slow = SLOW.format(file=f"{tmp_path}/ended")
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {slow!r}])"
    program = f"""
import sys
sys.path.insert(0, {str(runner.__file__.split("/models/")[0])!r})
from pathlib import Path
from qwen25_7b_lab.bringup.runner import Stage, run_stages
from models.demos.qwen25_7b.cli.command import run
command = lambda code: ((sys.executable, "-c", code),)
stages = [Stage("a", command("pass"), 1), Stage("b", command({code!r}), 1)]
run(lambda: run_stages(stages, Path({str(tmp_path)!r}), print))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    log = tmp_path / "b.log"
    deadline = time.monotonic() + 60
    while not (log.exists() and "\nstarted" in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    time.sleep(0.3)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    verdicts = {name: outcome.verdict for name, outcome in known_outcomes(tmp_path).items()}
    assert verdicts == {"a": "green", "b": "stopped"}
    assert (tmp_path / "ended").exists()


def test_the_report_begins_with_the_verdict_and_has_each_stages_results(tmp_path):
    facts = [
        {"what": "below ttnn", "found": "golden mesh", "assumed": "silicon"},
        {"what": "chips", "found": "2", "assumed": "2"},
        {"what": "driver", "found": "2.1", "assumed": None},
    ]  # fmt: skip
    sum_of = "{} None: [1, 1, 32, 64] bfloat16 L1 interleaved; [1]".format
    op = dict(op="ttnn.linear", shown="linear [32, 64]", failed=None, error=1e-3, gain=1.0, equal=0.5)
    op["device_op"] = sum_of("AllReduceAsync")
    ops = [
        op | {"us": 20.0, "modeled_us": 10.0},
        op | {"us": None, "modeled_us": None, "shown": "pad [1]", "failed": "RuntimeError: no"},
        op | {"us": 12.0, "modeled_us": None, "setting": "math_fidelity=LoFi", "of": 0},
        op | {"us": 10.0, "modeled_us": None, "device_op": sum_of("ReduceScatter")},
        op | {"us": 5.0, "modeled_us": None, "device_op": sum_of("AllGather")},
    ]
    speed = [{"recipe": "bfp8", "users": 32, "prompt": 128, "first_token_ms": 50.0, "step_ms": 40.0, "modeled_ms": 30.0,
        "share_of_dram": 0.4, "transfers": {"writes": 0, "reads": 1.0, "bytes read": 128.0}},
        {"recipe": "bf16", "users": 32, "prompt": 128, "refused": "no room"}]  # fmt: skip
    answers = {"results": [{"recipe": {"name": "bfp8"}, "kl_mean": 0.0055, "top1": 0.97, "top5": 1.0, "top100": 1.0,
        "tokens": 1008}]}  # fmt: skip
    served = {"total_input_tokens": 512, "total_output_tokens": 512, "completed": 4, "max_concurrency": 1,
        "mean_ttft_ms": 60, "mean_tpot_ms": 40, "output_throughput": 24}  # fmt: skip
    stages = ("machine", facts), ("ops", ops), ("speed", speed), ("small-N300-tp2-decode", answers)
    scores = {"runs": [{"split": "N300, tp 2 x dp 1", "recipe": {"name": "bfp8"},
        "results": {"questions": {"exact_match,flexible-extract": 0.75}},
        "answers": ["Paris", 20 * "the the cat "]}]}  # fmt: skip
    stages += (("small-N300-tp2-tasks", scores),)
    stages += ("server-1", served), ("server-32", served | {"max_concurrency": 32})
    for name, rows in stages:
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    outcomes = {
        **{name: Outcome("green", 1) for name in ("machine", "ops", "speed", "answers", "server")},
        "modules": Outcome("hang", 60, "no end within 1 minutes", "mlp.py:9: ttnn.linear("),
        "memory": Outcome("skipped", 0, "no room"),
    }
    other = write_report(tmp_path, "", "N300", "7b", {"machine": Outcome("green", 1)})
    assert other["machine"] and not any(other[name] for name in ("ops", "speed", "answers", "server"))
    report = write_report(tmp_path, "Bring-up", "N300", "7b", outcomes)
    text = (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / "report.json").read_text()) == report
    head = text.split("## What failed")[0]
    for line in (
        "**1 stage did not end well: modules.** Green: machine, ops, speed, answers, server; skipped: memory (no "
        "room).",
        "**Times are of a golden mesh and say nothing about hardware.**",
    ):
        assert line in head, line
    assert "driver" not in head and "chips" not in head
    assert "- modules: hang after 60 s: no end within 1 minutes, last ran: mlp.py:9: ttnn.linear(" in text
    assert "| bfp8 | 32 | 128 | 50.0 | 40.00 | 30.0 | -25% | 25.0 | 40% |" in text
    assert "Host transfers of a step, the most of these: 0 writes, 1 reads, 128 bytes read." in text
    assert "| linear [32, 64] | 1.0e-03 | 1.0000 | 50.0% | 20.0 | 10.0 | -50% |" in text
    assert "without values: pad [1]." in text
    assert "| bfp8 | 0.0055 | 97.00% | 100.00% | 100.00% | 1008 |" in text
    assert "| N300, tp 2 x dp 1 | bfp8 | 75.0% | 1 of 2 degenerate, the first is answer 1: 34% of 60 words" in text
    assert "the fastest is reduce_scatter + all_gather:" in text
    assert "- all_reduce_async of bfloat16: 20.0 us\n- reduce_scatter + all_gather: 15.0 us" in text
    assert "- linear [32, 64] math_fidelity=LoFi: 12.0 instead of 20.0 us, error 1.0e-03" in text
    assert "| 128 | 128 | 1 | 60 | 25.0 | 24 | complete |" in text
    assert "| 128 | 128 | 32 | 60 | 25.0 | 24 |  |" in text
    assert all("say nothing about hardware)" in line for line in text.splitlines() if "measured beside" in line)


def test_a_report_of_another_machine_says_so_first(tmp_path):
    """A grid of 8x7 (a further harvested row), one link instead of four, another ttnn."""
    options = ["--mesh", "N150x4", "--backend", "golden", "--out", f"{tmp_path}"]
    assert run_python("-c", OTHER_MACHINE, *options).returncode == 0
    write_report(tmp_path, "Bring-up", "N150x4", "tiny", {"machine": Outcome("green", 1)})
    assert (tmp_path / "report.md").read_text().splitlines()[2:11] == [
        "**Every stage that ran is green.** Green: machine.",
        "",
        "This machine differs from what the plans assume:",
        "",
        "- below ttnn: found golden mesh, plans assume silicon",
        "- ttnn: found 0.80.0, plans assume 0.81.1",
        "- decode attention of several cores a KV head, float32 dest: found wrong below 0.81 (tt-metal 56171), "
        "plans assume right",
        "- compute grid: found 8x7, plans assume 8x8",
        "- links between neighbors: found 1, plans assume 4",
    ]


@pytest.mark.parametrize("links, timed", [(1, []), (4, ["num_links=1"])])
def test_one_link_is_timed_where_the_plan_has_more(links, timed):
    op = {"op": "ttnn.reduce_scatter", "arguments": [[], {"dim": 3, "num_links": links}]}
    assert [other["setting"] for other in variants([op])] == timed
    assert op["arguments"][1]["num_links"] == links
