"""Output paths are checked before the work. A result that cannot be written is saved elsewhere."""

import tempfile

import pytest

from models.common.errors import UserError
from models.common.options import Parser
from models.common.output_file import check_directory, check_output, write_whole
from models.demos.qwen25_7b.evaluation.report import add_out


def test_trying_an_output_leaves_nothing_behind(tmp_path):
    check_output("--out", tmp_path / "new/deep/result.json")
    check_directory("--out", tmp_path / "other/deep")
    assert not list(tmp_path.iterdir())


def test_an_output_that_can_not_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path, message in (
        (tmp_path / "file/result", "--out"),
        (tmp_path, "is a directory"),
        (tmp_path / "a\0b", "--out"),
        (tmp_path / ("n" * 300), "too long"),
        (tmp_path / "file", "exists"),
    ):
        with pytest.raises(UserError, match=message):
            check_output("--out", path, new=True)
    assert (tmp_path / "file").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    file = tmp_path / "result.json"
    file.write_text("old")

    def fail(part):
        part.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(file, fail)
    assert file.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["result.json"]
    write_whole(file, lambda part: part.write_text("new"))
    assert file.read_text() == "new" and [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_result_whose_directory_is_gone_is_kept_and_named(tmp_path, monkeypatch):
    """After an hour of work, the directory may no longer be a directory."""
    monkeypatch.setattr(tempfile, "tempdir", f"{tmp_path}/elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "results").write_text("a file now")
    with pytest.raises(UserError) as refused:
        write_whole(tmp_path / "results/result.json", lambda part: part.write_text("computed"))
    (kept,) = (tmp_path / "elsewhere").rglob("result.json")
    assert kept.read_text() == "computed" and str(kept) in str(refused.value)


@pytest.mark.parametrize("value, message", [("", "is empty"), ("a\0b", "zero bytes")])
def test_an_impossible_file_name_is_refused_by_every_command(value, message):
    """An unset variable would be the current directory; a zero byte ends in a ValueError."""
    parser = Parser()
    add_out(parser)
    with pytest.raises(UserError, match=f"^--out.*{message}"):
        parser.parse_args(["--out", value])
