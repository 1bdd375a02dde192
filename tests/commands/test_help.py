"""Help is quick and shows a user two command lines to start from."""

import re
import subprocess
import sys

import pytest

from models.demos.qwen25_7b.demo import demo
from models.demos.qwen25_7b.evaluation import __main__ as evaluation
from models.demos.qwen25_7b.perf import __main__ as perf

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
