"""What every command does where stdout, stderr or the program itself fails it."""

import os
import subprocess

import pytest

from models.common.terminal import printable
from tests.unit.program import start

LINES = "for i in range(100000): say(f'line {i}')"


def result(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_an_error_is_one_line_on_stderr():
    assert result(start("say('a'); raise UserError('b\\nc')")) == (2, "a\n", "error: b c\n")


def test_an_error_never_brings_control_characters():
    _, _, err = result(start("raise UserError('\\x1b[31mred\\x9b \\u202e')"))
    assert err == "error: \\x1b[31mred\\x9b \\u202e\n"


def test_a_defect_keeps_its_traceback_without_control_characters():
    status, _, err = result(start("raise ValueError('\\x1b[31m')"))
    assert status == 1 and "Traceback" in err and "line" in err and "\\x1b[31m" in err and printable(err) == err


def test_a_reader_that_leaves_is_no_error():
    process = start(LINES)
    assert process.stdout.readline() == "line 0\n"
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (141, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("what", [LINES, "say('once')", "print('from a library')"])
def test_a_full_disk(what, unbuffered):
    environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        status, _, err = result(start(what, stdout=full, env=environment))
    if "print" in what and unbuffered:
        assert status == 1 and "No space left" in err  # a library's own
    else:
        assert (status, err) == (2, "error: standard output cannot be written: No space left on device\n")


def test_a_closed_stdout():
    """Else it would compute for nobody, and the next file that is opened would take what libraries print."""
    status, _, err = result(start("say('a')", stdout=None, preexec_fn=lambda: os.close(1)))
    assert status == 2 and err.startswith("error: standard output is closed") and err.count("\n") == 1


@pytest.mark.parametrize("broken", ["closed", "full"])
def test_a_stderr_that_takes_nothing_changes_no_status(broken):
    def breaks():
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2) if broken == "full" else os.close(2)

    status, out, _ = result(start("say('a'); raise UserError('b')", stderr=None, preexec_fn=breaks))
    assert (status, out) == (2, "a\n")


@pytest.mark.parametrize("encoding", ["ascii", "ascii:strict", "latin-1", "cp1252"])
def test_what_the_locale_cannot_show_is_written_out(encoding):
    environment = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": encoding}
    process = start("say('Gr\\xfc\\xdfe \\u20ac \\U0001f600 \\udcff')", env=environment, text=False)
    out, err = process.communicate(timeout=60)
    codec = encoding.split(":")[0]
    shown = "Grüße € \U0001f600".encode(codec, "backslashreplace")
    assert (process.returncode, out, err) == (0, shown + b" \\udcff\n", b"")


def test_help_of_a_command_says_no_default_none(capsys):
    from models.demos.qwen25_7b.demo import demo
    from models.demos.qwen25_7b.perf.__main__ import main as perf

    for main, argv in ((demo.main, []), (perf, ["model"]), (perf, ["host"])):
        with pytest.raises(SystemExit) as stopped:
            main([*argv, "--help"])
        shown = capsys.readouterr().out
        assert stopped.value.code == 0 and "--mesh" in shown and "None" not in shown and "N300" in shown


def test_libraries_keep_quiet(tmp_path):
    """Whatever is imported after it, and whoever prints: ttnn its whole configuration, for one."""
    program = """
    from models.common.command import quiet_libraries
    quiet_libraries()
    import ttnn, warnings
    from loguru import logger
    from transformers.utils import logging
    logger.debug("chatter"); logging.get_logger("transformers").warning("chatter"); warnings.warn("chatter")
    """
    # without a home the import of ttnn crashes
    environment = {"PATH": os.environ["PATH"], "HOME": f"{tmp_path}", "TMPDIR": f"{tmp_path}"}
    process = start(program.replace("\n    ", "\n"), env=environment, cwd=tmp_path)
    assert result(process) == (0, "", "")
