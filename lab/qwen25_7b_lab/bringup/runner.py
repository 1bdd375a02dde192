"""Runs stages one after the other, each in processes of its own with a time limit and a log. Knows nothing of ttnn.

OUT/outcomes.json keeps the outcome of each stage, and what the stage ran on. So a run that was interrupted goes on
where it stopped.
"""

import linecache
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Literal, Optional, Sequence

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import FileError, read_json, write_json
from models.demos.qwen25_7b.tt.mesh import shielded

REPOSITORY = Path(__file__).resolve().parents[3]
OUTCOMES = "outcomes.json"  # marks a folder of ours

Verdict = Literal["green", "failed", "hang", "time", "stopped", "crash", "wrong value", "out of memory", "skipped"]
PATIENCE = 20  # seconds that a stopped process has to say where it was, and to close its devices
OUT_OF_MEMORY = re.compile(
    r".*(Out of Memory|MemoryError|bad_alloc|not enough space to allocate|beyond max L1 size|clash with L1 buffers).*"
)
WRONG_VALUE = re.compile(r" - (AssertionError|assert)\b|wrong values")  # pytest's, the stage ops'
# A line of a traceback: of faulthandler or Python, or of pytest.
FRAME = re.compile(r'File "(.+?)", line (\d+),? in |^(\S+\.py):(\d+): (?:\w*Error.*)?$', re.M)
PROGRESS = re.compile(r"^\d+ of \d+ \w+$", re.M)  # a line of a stage that counts what it does
LIBRARIES = ("/lib/python", "/site-packages/", "<frozen", "/golden_mesh/")


@dataclass(frozen=True)
class Stage:
    """Commands that run in order; the first that fails ends the stage. skip: why it cannot run."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    minutes: float  # for all commands
    skip: str = ""
    on: dict[str, Any] = field(default_factory=dict)  # machine, model, code: other ones, other results
    results: tuple[str, ...] = ()  # patterns of its files in OUT


@dataclass(frozen=True)
class Outcome:
    verdict: Verdict
    seconds: float
    words: str = ""  # what went wrong, in one line
    last: str = ""  # the operation, line or test that ran last
    on: dict[str, Any] = field(default_factory=dict)  # as Stage's

    def __str__(self) -> str:
        after = f", last ran: {self.last}" if self.last else ""
        return f"{self.verdict} after {self.seconds:.0f} s{': ' + self.words if self.words else ''}{after}"


def known_outcomes(out: Path) -> dict[str, Outcome]:
    """Outcomes of this run and of earlier ones with the same folder. UserError: a damaged file."""
    file = out / OUTCOMES
    if not file.exists():
        return {}
    try:
        return {name: Outcome(**(fields | {"on": fields["on"]})) for name, fields in read_json(file).items()}
    except (FileError, TypeError, LookupError, AttributeError) as error:
        raise UserError(f"{file}: damaged, or of another version; delete it, or give another --out") from error


def run_stages(stages: Sequence[Stage], out: Path, say: Callable[[str], None], again: Sequence[str] = ()) -> None:
    """Run the stages that have no outcome yet or ran on something else, and those in `again`.

    A stage that was stopped, or was out of time, goes on. A signal ends the run; what is known is kept.
    """
    known = known_outcomes(out)

    def keep(stage: Stage, outcome: Outcome) -> None:
        known[stage.name] = replace(outcome, on=stage.on)
        write_json(out / OUTCOMES, {name: asdict(each) for name, each in known.items()})

    for stage in stages:
        before = known.get(stage.name)
        is_current = before and before.on == stage.on and stage.name not in again
        if is_current and before.verdict not in ("skipped", "stopped", "time"):
            say(f"{stage.name:8} {before} (kept from an earlier run)")
            continue
        if not is_current:
            for file in (file for pattern in stage.results for file in out.glob(pattern)):
                file.unlink()
        keep(stage, Outcome("stopped", 0, "the run was interrupted"))
        keep(stage, run_stage(stage, out / f"{stage.name}.log"))
        say(f"{stage.name:8} {known[stage.name]}")


def run_stage(stage: Stage, log: Path) -> Outcome:
    if stage.skip:
        return Outcome("skipped", 0, stage.skip)
    begin = time.monotonic()
    log.write_text("")
    for command in stage.commands:
        left = 60 * stage.minutes - (time.monotonic() - begin)
        with log.open("a") as lines:
            print(f"$ {' '.join(command)}", file=lines, flush=True)
            status, grew = _run(command, lines, max(left, 1))
        spent = time.monotonic() - begin
        text = log.read_text(errors="replace").split("\n$ ")[-1]
        if status is None:
            words = ", ".join((f"no end within {stage.minutes:g} minutes", *PROGRESS.findall(text)[-1:]))
            return Outcome("time" if grew else "hang", spent, words, last_operation(text))
        if status:
            return _failure(status, spent, text)
    return Outcome("green", time.monotonic() - begin)


def _run(command: Sequence[str], log, seconds: float) -> tuple[Optional[int], bool]:
    """(exit status or None for no end in time, whether the log grew in the last quarter of the time).

    Python writes where it is to the log when it crashes or is stopped.
    """
    grew = False
    process = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, cwd=REPOSITORY,
        env=os.environ | {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        return process.wait(seconds), grew
    except subprocess.TimeoutExpired:
        grew = time.time() - os.fstat(log.fileno()).st_mtime < seconds / 4
        with shielded(), suppress(subprocess.TimeoutExpired):
            process.send_signal(signal.SIGABRT)  # faulthandler answers
            process.wait(PATIENCE)
        return None, grew
    finally:
        with shielded():  # a terminal that closes sends SIGHUP twice
            _end_group(process)


def _end_group(process: subprocess.Popen) -> None:
    """End a stage and what it started: SIGTERM, upon which programs close their devices and scripts/serve.py ends its
    engines in their session, then SIGKILL."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)  # ProcessLookupError: all have ended
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failure(status: int, seconds: float, text: str) -> Outcome:
    words = what_failed(text)
    full = OUT_OF_MEMORY.search(text)
    if full or status == -signal.SIGKILL:
        words = full[0].strip()[:300] if full else words
        return Outcome("out of memory", seconds, words, last_operation(text))
    if status < 0:
        return Outcome("crash", seconds, signal.Signals(-status).name, last_operation(text))
    return Outcome("wrong value" if WRONG_VALUE.search(words) else "failed", seconds, words, _running(text))


def count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def what_failed(text: str) -> str:
    """pytest's failures, else the last error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    failed = [
        line.removeprefix("FAILED ").removeprefix("ERROR ") for line in lines if line.startswith(("FAILED ", "ERROR "))
    ]
    if failed:
        return f"{count(len(failed), 'test')}, the first: {failed[0]}"[:300]
    errors = [line for line in lines if re.match(r"error: |[\w.]*(Error|Exception)\b.*:", line)]
    return (errors or lines or [""])[-1][:300]


def last_operation(text: str) -> str:
    """What a log names last: the running operation, else our innermost line in a traceback, else the last test."""
    if running := _running(text):
        return running
    dump = text.rfind("\nCurrent thread")  # faulthandler's, innermost line first
    frames = FRAME.findall(text[max(dump, 0) :])
    for groups in frames if dump >= 0 else reversed(frames):
        file, number = filter(None, groups)
        if not any(part in file for part in LIBRARIES):
            return f"{file}:{number}: {linecache.getline(file, int(number)).strip()}"
    end = text.rpartition("\n")[2].strip()  # a test that pytest -v has named, and not said how it ended
    return end if ".py::" in end else ""


def _running(text: str) -> str:
    """The operation after the last "running " that has no line of its own after it."""
    _, mark, after = f"\n{text}".rpartition("\nrunning ")
    name, _, after = after.partition("\n")
    return name if mark and f"\n{name}" not in f"\n{after}" else ""
