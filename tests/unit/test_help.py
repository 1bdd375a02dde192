"""Help shows a user two command lines to start from."""

import pytest

from models.demos.qwen25_7b.evaluation import __main__ as evaluation
from models.demos.qwen25_7b.loading import __main__ as loading
from models.demos.qwen25_7b.perf import __main__ as perf


@pytest.mark.parametrize(
    "program, command",
    [(loading, command) for command in ("", "list", "verify", "prune")]
    + [
        (perf, command)
        for command in ("", "model", "ops", "splits", "models", "l1", "host", "speculate")
    ]
    + [(evaluation, command) for command in ("", "eval", "ablate", "reference", "tasks")],
)
def test_help_ends_with_two_examples(capsys, program, command):
    with pytest.raises(SystemExit):
        program.main([*command.split(), "--help"])
    examples = capsys.readouterr().out.partition("\nexamples:\n")[2].splitlines()
    assert len(examples) >= 2 and all(command in example for example in examples)
