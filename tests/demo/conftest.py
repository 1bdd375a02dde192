"""A run of the demo that must refuse its input."""

from pathlib import Path

import pytest

from models.demos.qwen25_7b.cli.command import status_of
from models.demos.qwen25_7b.cli.terminal import printable
from models.demos.qwen25_7b.demo import demo


def files_below(place: Path) -> dict[str, tuple]:
    """Return every path with its size and modification time."""
    return {f"{path}": (path.stat().st_size, path.stat().st_mtime_ns) for path in place.rglob("*") if path.is_file()}


@pytest.fixture
def refused(capsys, tmp_path, tmp_path_factory, monkeypatch):
    """refused(*argv): run the demo, which must fail and change no file. Returns its error line."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "prompts.json").write_text('["Hi"]')
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path_factory.mktemp('cache')}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(work)

    def run(*argv) -> str:
        before = files_below(tmp_path)
        status = status_of(lambda: demo.main([f"{arg}" for arg in argv]))
        message = capsys.readouterr().err
        assert status == 2 and files_below(tmp_path) == before, message
        assert message.startswith("error: ") and message.count("\n") == 1, message
        assert printable(message) == message
        return message

    return run
