"""Every option that names a file, with a path that no file can have: status 2, and one line."""

import pytest
from qwen25_7b_lab.bringup.__main__ import main as bringup
from qwen25_7b_lab.evaluation.__main__ import main as evaluation
from qwen25_7b_lab.perf.__main__ import main as perf
from qwen25_7b_lab.quantize.__main__ import main as quantize

from models.demos.qwen25_7b.cli.command import status_of
from models.demos.qwen25_7b.demo import demo
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

COMMANDS = {"demo": demo.main, "bringup": bringup, "perf": perf, "quantize": quantize, "evaluation": evaluation}
# command and its last option, which names the file
DOORS = """
demo --prompts
demo --prompt-file
demo --recipe
demo --model
demo --cache
demo --out
evaluation eval --text
evaluation eval --quantized
evaluation eval --out
evaluation tasks --questions
quantize --model MODEL --out new --calibration
quantize --calibration text.txt --model MODEL --out
bringup --size tiny --backend golden --out
bringup --size tiny --backend golden --out new --reference
bringup --size tiny --backend golden --out new --questions
bringup --size tiny --backend golden --out new --model
perf models --config
perf model --measured
""".strip().splitlines()
PATHS = {"a long name": 300 * "n", "a long path": 3000 * "n/" + "n"}
OF_NO_USER = "~nobody-of-this-name/x"


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """refused(command line): run it in a folder of its own, where it must write nothing. Returns its error line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "text.txt").write_text("The capital of France is Paris. " * 400)

    def run(command: str, *argv: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        words = [word.replace("MODEL", f"{SMALL_CHECKPOINT}") for word in argv]
        status = status_of(lambda: COMMANDS[command](words))
        error = capsys.readouterr().err
        assert (status, error.count("\n"), error[:7]) == (2, 1, "error: "), error[-2000:]
        assert sorted(tmp_path.rglob("*")) == before
        return error

    return run


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("door", DOORS)
def test_a_path_that_cannot_be(refused, door, path):
    value = PATHS[path] + ".json" * door.endswith("--recipe")
    error = refused(*door.split(), value)
    assert PATHS[path][:3] in error


def test_a_cache_of_no_user(refused):
    assert OF_NO_USER in refused("demo", "--cache", OF_NO_USER)


@pytest.mark.parametrize("file", ["outcomes.json", "unfinished/settings.json"])
def test_what_an_earlier_run_left_may_be_damaged(refused, tmp_path, file):
    (tmp_path / "new/unfinished").mkdir(parents=True)
    (tmp_path / "new" / file).write_text("[")
    command = DOORS[12] if file == "outcomes.json" else DOORS[11]
    assert "new" in refused(*command.split(), "new")
