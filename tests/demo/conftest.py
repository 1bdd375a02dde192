"""A run of the demo that must refuse its input."""

from pathlib import Path

import pytest

from models.common.terminal import printable
from models.demos.qwen25_7b.demo import demo


def files_below(place: Path) -> dict[str, tuple]:
    """Return every path with its mode. Files also have size and modification time."""
    found = {}
    for path in sorted(place.rglob("*")):
        state = path.lstat()
        of_file = () if path.is_dir() else (state.st_size, state.st_mtime_ns)
        found[f"{path}"] = state.st_mode, *of_file
    return found


@pytest.fixture
def refused(capsys, tmp_path, tmp_path_factory, monkeypatch):
    """refused(*argv): run the demo, which must fail and change no file. Returns its error line."""
    cache, work = tmp_path_factory.mktemp("cache"), tmp_path / "work"
    monkeypatch.setenv("XDG_CACHE_HOME", f"{cache}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    work.mkdir()
    monkeypatch.chdir(work)

    def run(*argv) -> str:
        before = files_below(tmp_path)
        status = demo.main([f"{arg}" for arg in argv])
        assert files_below(tmp_path) == before
        message = capsys.readouterr().err
        assert status == 2, message
        lines = message.splitlines()
        assert (
            len(lines) == 1 and lines[0].startswith("error: ") and printable(message) == message
        ), message
        return lines[0]

    return run
