"""An interrupt prints one line. The status is 128 + the signal's number. Shielded code completes."""

import os
import signal
import time

import pytest

from tests.unit.program import start

SLEEP = "say('ready'); time.sleep(60)"
COMPILE = "os.system('echo ready; sleep 0.5; echo compiled')\nsay('went on')"
CLOSE = """
try:
    say('ready'); time.sleep(60)
finally:
    with interrupt.shielded():
        time.sleep(0.5); say('closed')
say('went on')
"""
OPEN = """
with interrupt.shielded():
    say('ready'); time.sleep(0.5); say('opened')
say('went on')
"""
CONSEQUENCE = """
try:
    say('ready'); time.sleep(60)
except KeyboardInterrupt:
    raise RuntimeError('gone')
"""
DESTRUCTOR = """
class Slow:
    def __del__(self):
        say('ready'); time.sleep(60)
Slow()
say('after'); time.sleep(60)
"""
EXIT = """
import atexit
def late():
    say('ready'); time.sleep(0.5); say('tidy')
atexit.register(late)
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
    "number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_sleeping_program(number, status):
    assert interrupt(start(SLEEP), number) == (status, "", "interrupted\n")


@pytest.mark.parametrize(
    "body, out",
    [
        pytest.param(COMPILE, "compiled\n", id="a compiler of ttnn ends first"),
        pytest.param(CLOSE, "closed\n", id="a mesh is closed"),
        pytest.param(OPEN, "opened\n", id="a mesh is opened before the interrupt"),
        pytest.param(CONSEQUENCE, "", id="an error caused by the interrupt"),
        pytest.param(DESTRUCTOR, "after\n", id="where Python cannot raise"),
    ],
)
def test_an_interrupt_is_one_line(body, out):
    assert interrupt(start(body)) == (130, out, "interrupted\n")


def test_an_interrupt_while_python_exits_changes_nothing():
    assert interrupt(start(EXIT)) == (0, "tidy\n", "")


def test_a_signal_ignored_at_the_start_stays_ignored():
    """nohup and scripts start background programs with signals ignored."""
    body = "say('ready'); time.sleep(0.5); say('went on')"
    process = start(body, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert interrupt(process) == (0, "went on\n", "")


HANDLED = """
pressed = []
with interrupt.ctrl_c_calls(lambda: pressed.append(1)):
    say('ready')
    for press in (1, 2):
        while len(pressed) < press: time.sleep(0.01)
        say(f'pressed {press}')
    time.sleep(SECONDS)
say('after'); time.sleep(60)
"""


@pytest.mark.parametrize(
    "number, seconds, after, status",
    [(signal.SIGINT, 0, ["after"], 130), (signal.SIGTERM, 60, [], 143)],
)
def test_a_program_that_handles_ctrl_c_continues(number, seconds, after, status):
    """A chat. SIGTERM ends it, and so does Ctrl-C afterwards."""
    process = start(HANDLED.replace("SECONDS", f"{seconds}"))
    for line in ["ready", "pressed 1"]:
        assert process.stdout.readline() == f"{line}\n", process.stderr.read()
        os.killpg(process.pid, signal.SIGINT)
    for line in ["pressed 2", *after]:
        assert process.stdout.readline() == f"{line}\n", process.stderr.read()
    time.sleep(0.2)
    os.killpg(process.pid, number)
    assert process.communicate(timeout=60) == ("", "interrupted\n")
    assert process.returncode == status
