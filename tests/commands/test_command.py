"""How every command shows its lines and ends: an error of the user, a defect, a full disk, a closed pipe, a signal.

An interrupt prints one line. The status is 128 + the signal's number. Shielded code completes.
"""

import io
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from qwen25_7b_lab.evaluation import __main__ as evaluation
from qwen25_7b_lab.perf import __main__ as perf

from models.demos.qwen25_7b.cli.terminal import complain, printable, say
from models.demos.qwen25_7b.demo import demo

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, os, time; sys.path.insert(0, {repository!r})
from models.demos.qwen25_7b.cli.command import run, status_of
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.cli.terminal import say

def work():
{body}

run(lambda: status_of(work))
"""


def start(body: str, **options) -> subprocess.Popen:
    """Start a process that runs `body` as a command, in its own process group, as a shell does.

    options: of Popen.
    """
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    source = PROGRAM.format(repository=f"{REPOSITORY}", body=indented)
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen([sys.executable, "-c", source], **(pipes | {"env": environment} | options))


QUIET = """
from models.demos.qwen25_7b.cli.command import quiet_libraries
quiet_libraries()
import ttnn, warnings
from loguru import logger
from transformers.utils import logging
logger.debug("chatter"); logging.get_logger("transformers").warning("chatter"); warnings.warn("chatter")
"""


def result(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_user_error_is_one_line_without_control_characters():
    body = r"say('a'); raise UserError('b\nc \x1b[31m')"
    assert result(start(body)) == (2, "a\n", "error: b c \\x1b[31m\n")


def test_a_defect_keeps_its_traceback():
    status, _, err = result(start("raise ValueError('b')"))
    assert status == 1 and "Traceback" in err and "ValueError: b" in err


def test_a_missing_package_is_one_line_that_says_what_to_run():
    status, _, err = result(start("import no_such_package.part"))
    assert status == 2 and err.count("\n") == 1
    assert "no_such_package" in err and "source .venv/bin/activate" in err


def test_a_closed_pipe_is_no_error():
    process = start("for i in range(100000): say(f'line {i}')")
    assert process.stdout.readline() == "line 0\n"
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (141, "")


@pytest.mark.parametrize("body", ["say('once')", "open('/dev/full', 'w', 1).write('once\\n')"])
def test_a_full_disk_is_one_line(body):
    with open("/dev/full", "w") as full:
        status, _, err = result(start(body, stdout=full))
    assert status == 2 and err == "error: the output: No space left on device\n"


def test_libraries_print_nothing(tmp_path):
    """Libraries imported after quiet_libraries() print nothing. ttnn prints its configuration."""
    # without HOME the import of ttnn crashes
    environment = {"PATH": os.environ["PATH"], "HOME": f"{tmp_path}", "TMPDIR": f"{tmp_path}"}
    process = start(textwrap.dedent(QUIET), env=environment, cwd=tmp_path)
    assert result(process) == (0, "", "")


def test_control_characters_are_written_out():
    assert printable("\x1b[2J\a\x9b\x7f\r\n\t é😀") == "\\x1b[2J\\x07\\x9b\\x7f\\x0d\n\t é😀"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_error_after_half_an_answer_starts_a_new_line(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    say("The capital", end="")
    say("", end="")
    complain("error: a")
    say("b")
    complain("error: c")
    assert screen.getvalue() == "The capital\nerror: a\nb\nerror: c\n"


QUICK = """
import sys
from models.demos.qwen25_7b.demo.demo import main
try:
    main([sys.argv[1]])
finally:
    assert not {"torch", "ttnn", "transformers"} & set(sys.modules), "this takes seconds to import"
"""


@pytest.mark.parametrize("program", [demo, perf, evaluation])
def test_help_ends_with_two_examples(program, capsys):
    """Also that of each subcommand."""

    def help_of(*command: str) -> str:
        with pytest.raises(SystemExit):
            program.main([*command, "--help"])
        return capsys.readouterr().out

    subcommands = re.search(r"^  {([\w,]+)}$", help_of(), re.MULTILINE)
    for command in [(), *((name,) for name in (subcommands[1].split(",") if subcommands else ()))]:
        text = help_of(*command)
        examples = text.partition("\nexamples:\n")[2].splitlines()
        assert len(examples) >= 2, command
        assert all(" ".join(command) in example for example in examples)
        assert "None" not in text, command


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_no_library(option):
    done = subprocess.run([sys.executable, "-c", QUICK, option], capture_output=True, text=True)
    assert done.returncode == 0 and ("--mesh" in done.stdout or "0.81.1" in done.stdout), done.stderr


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
