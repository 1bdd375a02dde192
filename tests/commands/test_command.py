"""How every command ends: an error of the user, a defect, a full disk, a closed pipe."""

import os
import subprocess
import textwrap

import pytest
from tests.unit.program import start

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
    assert status == 2 and err == "error: the output cannot be written: No space left on device\n"


def test_libraries_print_nothing(tmp_path):
    """Libraries imported after quiet_libraries() print nothing. ttnn prints its configuration."""
    # without HOME the import of ttnn crashes
    environment = {"PATH": os.environ["PATH"], "HOME": f"{tmp_path}", "TMPDIR": f"{tmp_path}"}
    process = start(textwrap.dedent(QUIET), env=environment, cwd=tmp_path)
    assert result(process) == (0, "", "")
