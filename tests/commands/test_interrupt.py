"""An interrupt prints one line. The status is 128 + the signal's number. Shielded code completes."""

import os
import signal

import pytest

from tests.commands.program import start

# Short sleeps: Python handles a signal that arrives just before a sleep at the sleep's end.
SLEEP = "say('ready')\nfor _ in range(600): time.sleep(0.1)"
CLOSE = """
from models.demos.qwen25_7b.tt.mesh import shielded
try:
    say('ready'); time.sleep(60)
finally:
    with shielded():
        time.sleep(0.5); say('closed')
say('went on')
"""


def interrupt(process, number=signal.SIGINT) -> tuple[int, str, str]:
    """Signal the process group, as a terminal does, once the program prints that it is ready.

    Returns its status, its further output and its stderr.
    """
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    "body, number, status, out",
    [
        pytest.param(SLEEP, signal.SIGTERM, 143, "", id="a program that sleeps"),
        pytest.param(CLOSE, signal.SIGINT, 130, "closed\n", id="a mesh is closed"),
    ],
)
def test_an_interrupt_is_one_line(body, number, status, out):
    assert interrupt(start(body), number) == (status, out, "interrupted\n")


def test_a_signal_ignored_at_the_start_stays_ignored():
    """nohup and scripts start background programs with signals ignored."""
    body = "say('ready'); time.sleep(0.5); say('went on')"
    process = start(body, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert interrupt(process) == (0, "went on\n", "")
