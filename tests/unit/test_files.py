"""Files that a user names: one line of error, outputs tried before the work, written whole or not at all."""

from pathlib import Path

import pytest

from models.demos.qwen25_7b.cli.options import Parser, path
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import FileError, check_directory, check_output, read_json, read_text, write_whole

UNREADABLE = {
    "absent": (lambda path: None, "not found"),
    "a directory": (Path.mkdir, "Is a directory"),
    "a link to itself": (lambda path: path.symlink_to(path), "symbolic links"),
    "not UTF-8": (lambda path: path.write_bytes(b"ab\xff"), "not UTF-8 (byte 2"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_unreadable_file_is_one_line_that_names_it(tmp_path, case):
    make, reason = UNREADABLE[case]
    make(tmp_path / "file")
    for read in (read_text, read_json):
        with pytest.raises(FileError) as refused:
            read(tmp_path / "file", "--text")
        message = str(refused.value)
        assert message.startswith(f"--text {tmp_path / 'file'}: ") and reason in message
        assert "\n" not in message


@pytest.mark.parametrize("content, reason", [("", "Expecting value"), ("{'a': 1}", "property name")])
def test_a_file_that_is_not_json_is_one_line(tmp_path, content, reason):
    (tmp_path / "file").write_text(content)
    with pytest.raises(FileError, match=f"not JSON .*{reason}"):
        read_json(tmp_path / "file")


def test_trying_an_output_leaves_nothing_behind(tmp_path):
    check_output("--out", tmp_path / "new/deep/result.json")
    check_directory("--out", tmp_path / "other/deep")
    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    file = tmp_path / "result.json"
    file.write_text("old")

    def fail(part):
        part.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(file, fail)
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]
    write_whole(file, lambda part: part.write_text("new"))
    assert file.read_text() == "new" and list(tmp_path.iterdir()) == [file]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    def fail(part):
        part.write_text("half")
        with open("/dev/full", "w") as full:
            full.write("x")

    with pytest.raises(UserError, match="result.json: cannot be written .No space left on device"):
        write_whole(tmp_path / "result.json", fail)
    assert not list(tmp_path.iterdir())


def test_an_empty_file_name_is_refused():
    """An unset variable would be the current directory."""
    parser = Parser()
    parser.add_argument("--out", type=path("--out"))
    with pytest.raises(UserError, match="^--out is empty"):
        parser.parse_args(["--out", ""])
