"""Files that a user names: one line of error, outputs tried before the work, written whole or not at all."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from models.demos.qwen25_7b.files import FileError, check_output, read_json, read_json_lines, read_text, write_whole

UNREADABLE = {
    "absent": ("file", lambda path: None, "No such file"),
    "a directory": ("file", Path.mkdir, "Is a directory"),
    "a link to itself": ("file", lambda path: path.symlink_to(path), "symbolic links"),
    "not UTF-8": ("file", lambda path: path.write_bytes(b"ab\xff"), "not UTF-8 (byte 2"),
    "a long name": (256 * "n", lambda path: None, "File name too long"),
    "a long path": (3000 * "n/", lambda path: None, "File name too long"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_unreadable_file_is_one_line_that_names_it(tmp_path, case):
    name, make, reason = UNREADABLE[case]
    make(tmp_path / name)
    for read in (read_text, read_json):
        with pytest.raises(FileError) as refused:
            read(tmp_path / name, "--text")
        message = str(refused.value)
        assert message.startswith(f"--text {tmp_path / name}: ") and reason in message
        assert "\n" not in message


@pytest.mark.parametrize("content, reason", [
    ("", "not JSON .*Expecting value"), ("{'a': 1}", "not JSON .*property name"),
])  # fmt: skip
def test_a_file_that_is_not_json_is_one_line(tmp_path, content, reason):
    (tmp_path / "file").write_text(content)
    with pytest.raises(FileError, match=f"file: .*{reason}"):
        read_json(tmp_path / "file")
    with pytest.raises(FileError, match=f"lines, line 2: .*{reason}"):
        read_json_lines(f"1\n{content or '?'}", "lines")


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


def test_a_full_disk_is_one_line_that_names_the_option_and_the_file(tmp_path):
    file = tmp_path / "result.json"
    with pytest.raises(FileError, match=f"--out {file}: cannot be written .No space left on device.; make room"):
        write_whole(file, lambda part: Path("/dev/full").write_text("x"))
    assert not list(tmp_path.iterdir())


def test_a_file_may_be_read_by_others(tmp_path):
    """safetensors writes a file for its user alone."""
    write_whole(tmp_path / "a", lambda part: save_file({"a": torch.zeros(1)}, part))
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.parametrize("name", [255 * "n", 84 * "\N{EURO SIGN}" + ".py"], ids=["ascii", "of three bytes"])
def test_a_file_may_have_the_longest_name(tmp_path, name):
    check_output("--out", tmp_path / "new" / name)
    write_whole(tmp_path / "new" / name, lambda part: part.write_text("new"))
    assert [file.name for file in (tmp_path / "new").iterdir()] == [name]
