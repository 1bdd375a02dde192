"""Runs stages one after the other, each in processes of its own with a time limit and a log. Knows nothing of ttnn.

A stage's outcome is kept in OUT/outcomes.json as soon as it is known, so a run that was interrupted goes on where it stopped.
"""

import json
import linecache
import os
import re
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Callable, Literal, Optional, Sequence

Verdict = Literal["green", "failed", "hang", "crash", "wrong value", "out of memory", "skipped"]
PATIENCE = 20  # seconds that a stopped process has to say where it was, and to close its devices
OUT_OF_MEMORY = re.compile(
    r".*(Out of Memory|MemoryError|bad_alloc|not enough space to allocate|beyond max L1 size|clash with L1 buffers).*"
)
WRONG_VALUE = re.compile(r" - (AssertionError|assert)\b|wrong values")  # pytest's, the stage ops'
# A line of a traceback: of faulthandler or Python, or of pytest.
FRAME = re.compile(r'File "(.+?)", line (\d+),? in |^(\S+\.py):(\d+): (?:\w*Error.*)?$', re.M)
LIBRARIES = ("/lib/python", "/site-packages/", "<frozen", "/golden_mesh/")


@dataclass(frozen=True)
class Stage:
    """Commands that run in order; the first that fails ends the stage. skip: why it cannot run."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    minutes: float  # for all commands
    skip: str = ""


@dataclass(frozen=True)
class Outcome:
    verdict: Verdict
    seconds: float
    words: str = ""  # what went wrong, in one line
    last: str = ""  # the operation, line or test that ran last

    def __str__(self) -> str:
        after = f", last ran: {self.last}" if self.last else ""
        return f"{self.verdict} after {self.seconds:.0f} s{': ' + self.words if self.words else ''}{after}"


def known_outcomes(out: Path) -> dict[str, Outcome]:
    """Of this run and of earlier ones with the same folder."""
    file = out / "outcomes.json"
    if not file.exists():
        return {}
    return {name: Outcome(**fields) for name, fields in json.loads(file.read_text()).items()}


def run_stages(
    stages: Sequence[Stage], out: Path, say: Callable[[str], None], again: Sequence[str] = ()
) -> None:
    """Run the stages that have no outcome yet or were skipped, and those in `again`. Ctrl-C ends the run; what is known is kept."""
    known = known_outcomes(out)
    for stage in stages:
        done = stage.name in known and known[stage.name].verdict != "skipped"
        if done and stage.name not in again:
            say(f"{stage.name:8} {known[stage.name]} (kept from an earlier run)")
            continue
        known[stage.name] = run_stage(stage, out / f"{stage.name}.log")
        say(f"{stage.name:8} {known[stage.name]}")
        kept = {name: asdict(outcome) for name, outcome in known.items()}
        (out / "outcomes.json").write_text(json.dumps(kept, indent=1))


def run_stage(stage: Stage, log: Path) -> Outcome:
    if stage.skip:
        return Outcome("skipped", 0, stage.skip)
    begin = time.monotonic()
    log.write_text("")
    for command in stage.commands:
        left = 60 * stage.minutes - (time.monotonic() - begin)
        with log.open("a") as lines:
            print(f"$ {' '.join(command)}", file=lines, flush=True)
            status = _run(command, lines, max(left, 1))
        spent = time.monotonic() - begin
        text = log.read_text(errors="replace").split("\n$ ")[-1]
        if status is None:
            words = f"no end within {stage.minutes:g} minutes"
            return Outcome("hang", spent, words, last_operation(text))
        if status:
            return _failure(status, spent, text)
    return Outcome("green", time.monotonic() - begin)


def _run(command: Sequence[str], log, seconds: float) -> Optional[int]:
    """The exit status, or None for a hang. Python writes where it is to the log when it crashes or is stopped."""
    process = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        env=os.environ | {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGABRT)  # faulthandler answers
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        _end_group(process.pid)


def _end_group(group: int) -> None:
    """End what a stage started: SIGTERM, upon which scripts/serve.py ends its engines in their session, then SIGKILL."""
    try:
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            os.killpg(group, 0)  # ProcessLookupError: all have ended
            time.sleep(0.1)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _failure(status: int, seconds: float, text: str) -> Outcome:
    words = what_failed(text)
    full = OUT_OF_MEMORY.search(text)
    if full or status == -signal.SIGKILL:
        words = full[0].strip()[:300] if full else words
        return Outcome("out of memory", seconds, words, last_operation(text))
    if status < 0:
        return Outcome("crash", seconds, signal.Signals(-status).name, last_operation(text))
    verdict = "wrong value" if WRONG_VALUE.search(words) else "failed"
    return Outcome(verdict, seconds, words, _running(text))


def what_failed(text: str) -> str:
    """pytest's failures, else the last error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    failed = [
        line.removeprefix("FAILED ").removeprefix("ERROR ")
        for line in lines
        if line.startswith(("FAILED ", "ERROR "))
    ]
    if failed:
        return f"{len(failed)} tests, the first: {failed[0]}"[:300]
    errors = [line for line in lines if re.match(r"error: |[\w.]*(Error|Exception)\b.*:", line)]
    return (errors or lines or [""])[-1][:300]


def last_operation(text: str) -> str:
    """Of a log: the operation that it names as running, else our own innermost line in a traceback, else the last test."""
    if running := _running(text):
        return running
    dump = text.rfind("\nCurrent thread")  # of faulthandler, innermost line first
    frames = FRAME.findall(text[max(dump, 0) :])
    for groups in frames if dump >= 0 else reversed(frames):
        file, number = filter(None, groups)
        if not any(part in file for part in LIBRARIES):
            return f"{file}:{number}: {linecache.getline(file, int(number)).strip()}"
    end = text.rpartition("\n")[
        2
    ].strip()  # a test that pytest -v has named, and not said how it ended
    return end if ".py::" in end else ""


def _running(text: str) -> str:
    """The operation after the last "running " that has no line of its own after it."""
    _, mark, after = f"\n{text}".rpartition("\nrunning ")
    name, _, after = after.partition("\n")
    return name if mark and f"\n{name}" not in f"\n{after}" else ""
