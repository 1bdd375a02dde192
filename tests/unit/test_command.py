"""Every command's behavior when stdout, stderr or the program itself fails."""

import os
import resource
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


def test_an_error_has_no_control_characters():
    _, _, err = result(start("raise UserError('\\x1b[31mred\\x9b \\u202e')"))
    assert err == "error: \\x1b[31mred\\x9b \\u202e\n"


def test_a_defect_keeps_its_traceback_without_control_characters():
    status, _, err = result(start("raise ValueError('\\x1b[31m')"))
    assert (
        status == 1
        and "Traceback" in err
        and "line" in err
        and "\\x1b[31m" in err
        and printable(err) == err
    )


def test_a_closed_pipe_is_no_error():
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
        assert status == 1 and "No space left" in err  # a library's print fails
    else:
        assert (status, err) == (
            2,
            "error: standard output cannot be written: No space left on device\n",
        )


def test_a_closed_stdout():
    """Otherwise the result would be lost, and the next opened file would get libraries' output."""
    status, _, err = result(start("say('a')", stdout=None, preexec_fn=lambda: os.close(1)))
    assert (
        status == 2 and err.startswith("error: standard output is closed") and err.count("\n") == 1
    )


@pytest.mark.parametrize("broken", ["closed", "full"])
def test_a_full_stderr_changes_no_status(broken):
    def breaks():
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2) if broken == "full" else os.close(2)

    status, out, _ = result(start("say('a'); raise UserError('b')", stderr=None, preexec_fn=breaks))
    assert (status, out) == (2, "a\n")


@pytest.mark.parametrize("encoding", ["ascii", "ascii:strict", "latin-1", "cp1252"])
def test_characters_outside_the_locale_are_escaped(encoding):
    environment = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": encoding}
    process = start("say('Gr\\xfc\\xdfe \\u20ac \\U0001f600 \\udcff')", env=environment, text=False)
    out, err = process.communicate(timeout=60)
    codec = encoding.split(":")[0]
    shown = "Grüße € \U0001f600".encode(codec, "backslashreplace")
    assert (process.returncode, out, err) == (0, shown + b" \\udcff\n", b"")


def test_help_of_a_command_shows_no_default_none(capsys):
    from models.demos.qwen25_7b.demo import demo
    from models.demos.qwen25_7b.perf.__main__ import main as perf

    for main, argv in ((demo.main, []), (perf, ["model"]), (perf, ["host"])):
        with pytest.raises(SystemExit) as stopped:
            main([*argv, "--help"])
        shown = capsys.readouterr().out
        assert (
            stopped.value.code == 0
            and "--mesh" in shown
            and "None" not in shown
            and "N300" in shown
        )


def test_libraries_print_nothing(tmp_path):
    """Libraries imported after quiet_libraries() print nothing. ttnn prints its configuration."""
    program = """
    from models.common.command import quiet_libraries
    quiet_libraries()
    import ttnn, warnings
    from loguru import logger
    from transformers.utils import logging
    logger.debug("chatter"); logging.get_logger("transformers").warning("chatter"); warnings.warn("chatter")
    """
    # without HOME the import of ttnn crashes
    environment = {"PATH": os.environ["PATH"], "HOME": f"{tmp_path}", "TMPDIR": f"{tmp_path}"}
    process = start(program.replace("\n    ", "\n"), env=environment, cwd=tmp_path)
    assert result(process) == (0, "", "")


def test_a_missing_package_is_one_line_that_names_the_environment():
    status, _, err = result(start("import no_such_package.part"))
    assert status == 2 and err.count("\n") == 1
    assert "no_such_package" in err and "source .venv/bin/activate" in err


def test_a_missing_module_of_this_project_is_a_defect():
    status, _, err = result(start("import models.common.no_such_module"))
    assert status == 1 and "Traceback" in err


def test_no_progress_bar_of_a_download_is_written_to_a_file():
    program = "from huggingface_hub.utils import are_progress_bars_disabled as off; say(f'{off()}')"
    assert result(start(program)) == (0, "True\n", "")


def test_a_python_without_docstrings_is_refused():
    environment = {"PATH": os.environ["PATH"], "PYTHONOPTIMIZE": "2"}
    status, out, err = result(start("say('a')", env=environment))
    assert (status, out) == (2, "") and "PYTHONOPTIMIZE" in err and err.count("\n") == 1


def test_a_low_limit_of_open_files_is_refused():
    """ttnn would end in a C++ backtrace."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))

    status, out, err = result(start("say('a')", preexec_fn=limit))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "20 open files" in err and "`ulimit -n 1024`" in err
