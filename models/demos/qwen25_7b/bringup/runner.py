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

Verdict = Literal["green", "failed", "hang", "crash", "out of memory", "skipped"]
PATIENCE = 20  # seconds that a stopped process has to say where it was, and to close its devices
OUT_OF_MEMORY = re.compile(
    r"Out of Memory|MemoryError|bad_alloc|not enough space to allocate|beyond max L1 size"
)
FRAME = re.compile(r'File "(.+?)", line (\d+) in ')  # of faulthandler
LIBRARIES = ("/lib/python", "/site-packages/", "<frozen")


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
    last: str = ""  # the operation or line that ran last

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
    """Run the stages that have no outcome yet, and those in `again`. Ctrl-C ends the run; what is known is kept."""
    known = known_outcomes(out)
    for stage in stages:
        if stage.name in known and stage.name not in again:
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
        if status is None:
            words = f"no end within {stage.minutes:g} minutes"
            return Outcome("hang", spent, words, last_operation(log))
        if status:
            return _failure(status, spent, log)
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
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what it started
        except ProcessLookupError:
            pass
        process.wait()


def _failure(status: int, seconds: float, log: Path) -> Outcome:
    text = log.read_text(errors="replace").split("\n$ ")[-1]
    words = what_failed(text)
    if OUT_OF_MEMORY.search(text) or status == -signal.SIGKILL:
        return Outcome("out of memory", seconds, words, last_operation(log))
    if status < 0:
        return Outcome("crash", seconds, signal.Signals(-status).name, last_operation(log))
    return Outcome("failed", seconds, words, _running(text))


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
    errors = [line for line in lines if re.match(r"error: |\w*(Error|Exception)\b.*:", line)]
    return (errors or lines or [""])[-1][:300]


def last_operation(log: Path) -> str:
    """The operation that a log names as running, else the innermost line of our own code in faulthandler's traceback."""
    text = log.read_text(errors="replace").split("\n$ ")[-1]
    if running := _running(text):
        return running
    threads = text[text.rfind("\nCurrent thread") :]
    for file, number in FRAME.findall(threads):  # innermost first
        if not any(part in file for part in LIBRARIES):
            return f"{file}:{number}: {linecache.getline(file, int(number)).strip()}"
    return ""


def _running(text: str) -> str:
    """The operation after the last "running " that has no line of its own after it."""
    lines = [line for line in text.splitlines() if line.strip()]
    at = max((i for i, line in enumerate(lines) if line.startswith("running ")), default=None)
    if at is None or any(
        line.startswith(lines[at].removeprefix("running ")) for line in lines[at + 1 :]
    ):
        return ""
    return lines[at].removeprefix("running ")
