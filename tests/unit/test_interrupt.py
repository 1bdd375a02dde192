"""An interrupt prints one line. The status is 128 + signal number. Shielded code completes."""

import os
import signal
import time

import pytest

from tests.unit.program import start

SLEEP = "say('ready'); time.sleep(60)"


def interrupt(process, number=signal.SIGINT) -> tuple[int, str, str]:
    """Signal the process group, as a terminal does, once the program prints that it is ready.

    Returns its status, its further output and its stderr.
    """
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    "number, status",
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=lambda value: f"{value!r}",
)
def test_a_sleeping_program(number, status):
    assert interrupt(start(SLEEP), number) == (status, "", "interrupted\n")


def test_a_signal_for_this_process_alone():
    process = start(SLEEP)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert (process.wait(timeout=60), process.stderr.read()) == (130, "interrupted\n")


def test_a_swallowed_interrupt_is_raised_again():
    """Some libraries swallow the interrupt while they are imported."""
    process = start("try:\n    say('ready'); time.sleep(60)\nexcept:\n    time.sleep(60)")
    assert interrupt(process) == (130, "", "interrupted\n")


def test_a_signal_where_python_cannot_raise_prints_nothing():
    process = start(
        "class Slow:\n    def __del__(self):\n        say('ready'); time.sleep(60)\nSlow()\nsay('after'); time.sleep(60)"
    )
    assert interrupt(process) == (130, "after\n", "interrupted\n")


def test_an_error_caused_by_an_interrupt_is_an_interrupt():
    process = start(
        "try:\n    say('ready'); time.sleep(60)\nexcept KeyboardInterrupt:\n    raise RuntimeError('gone')"
    )
    assert interrupt(process) == (130, "", "interrupted\n")


def test_child_programs_are_not_interrupted(tmp_path):
    """ttnn crashes if its compilers are interrupted. It gets no interrupt while they run."""
    process = start(
        f"os.system('echo ready; sleep 0.5; echo compiled > {tmp_path}/result')\nsay('went on')"
    )
    status, _, err = interrupt(process)
    assert (status, err) == (130, "interrupted\n")
    assert (tmp_path / "result").read_text() == "compiled\n"


def test_a_shielded_block_runs_to_its_end():
    process = start(
        "try:\n    say('ready'); time.sleep(60)\n"
        "finally:\n    with interrupt.shielded():\n        time.sleep(0.5); say('closed')\nsay('went on')"
    )
    assert interrupt(process) == (130, "closed\n", "interrupted\n")


def test_an_interrupt_inside_a_shield_is_raised_after_it():
    process = start(
        "with interrupt.shielded():\n    say('ready'); time.sleep(0.5); say('opened')\nsay('went on')"
    )
    assert interrupt(process) == (130, "opened\n", "interrupted\n")


def test_an_interrupt_while_python_exits():
    process = start(
        "import atexit\ndef late():\n    say('ready'); time.sleep(0.5); say('tidy')\natexit.register(late)"
    )
    assert interrupt(process) == (130, "tidy\n", "interrupted\n")


def test_a_second_interrupt_ends_a_cleanup_that_hangs():
    hang = "with interrupt.shielded():\n    say('ready'); time.sleep(60)"
    process = start(hang, before="interrupt.PATIENCE = 0.5")
    assert process.stdout.readline() == "ready\n"
    for wait in (
        0.1,
        1.0,
    ):  # the second comes at once, like a key pressed twice: there is still time to clean up
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(wait)
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    assert (process.wait(timeout=60), process.stderr.read()) == (130, "interrupted\n")


def test_a_signal_ignored_at_the_start_stays_ignored():
    """nohup and scripts start background programs with signals ignored."""
    body = "say('ready'); time.sleep(0.5); say('went on')"
    process = start(body, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert interrupt(process) == (0, "went on\n", "")


def test_no_worker_stays_when_its_supervisor_is_killed():
    process = start("say(f'{os.getpid()}'); time.sleep(60)")
    worker = int(process.stdout.readline())
    assert worker != process.pid
    process.kill()
    process.communicate(timeout=30)  # ends when both processes have closed their pipes


def test_a_crash_is_one_line_too():
    process = start("import signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (
        128 + signal.SIGSEGV,
        "",
        "error: the program crashed (SIGSEGV)\n",
    )


HANDLED = """
pressed = []
with interrupt.ctrl_c_calls(lambda: pressed.append(1)):
    say('ready')
    for press in (1, 2):
        while len(pressed) < press: time.sleep(0.01)
        say(f'pressed {press}')
say('after'); time.sleep(60)
"""


def test_a_program_that_handles_ctrl_c_continues_and_is_interruptible_afterwards():
    process = start(HANDLED)
    for line in ("ready", "pressed 1", "pressed 2"):
        assert process.stdout.readline() == f"{line}\n", process.stderr.read()
        if line != "pressed 2":
            os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "after\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_a_program_that_handles_ctrl_c_ends_on_sigterm():
    process = start("with interrupt.ctrl_c_calls(lambda: None):\n    say('ready'); time.sleep(60)")
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "interrupted\n")
