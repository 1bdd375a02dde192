"""User files are read up to a limit. Anything but a regular file is refused in one line."""

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from models.common import user_file
from models.common.json_file import DEPTH, parse_json, read_json
from models.common.user_file import MIB, FileError, read_bytes, read_text

LIMIT = 1 * MIB


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_endless_sparse_file(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


UNREADABLE = {
    "absent": (lambda path: None, "not found"),
    "a name with a NUL": (None, "not found"),
    "a name of 5000 characters": (None, "File name too long"),
    "a directory": (Path.mkdir, "is a directory"),
    "a FIFO": (make_fifo, "is a FIFO"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is a device"),
    "a link to itself": (lambda path: path.symlink_to(path), "symbolic links"),
    "a terabyte": (make_endless_sparse_file, "longer than 1 MiB, which is the limit"),
    "not UTF-8": (lambda path: path.write_bytes(b"ab\xff"), "not UTF-8 (byte 2"),
}
NAMES = {"a name with a NUL": "a\0b", "a name of 5000 characters": "x" * 5000}


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_unreadable_file_is_one_line_that_names_it(tmp_path, case):
    make, named = UNREADABLE[case]
    path = tmp_path / NAMES.get(case, "file")
    if make:
        make(path)
    begin = time.monotonic()
    with pytest.raises(FileError) as refused:
        read_text(path, LIMIT, "--text")
    assert time.monotonic() - begin < 5
    message = str(refused.value)
    assert message.startswith(f"--text {path}"), message
    assert named in message and "\n" not in message


def test_a_file_as_long_as_the_limit_is_read(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x" * LIMIT)
    assert read_bytes(file, LIMIT) == b"x" * LIMIT


def test_an_endless_pipe_is_read_up_to_the_limit():
    with subprocess.Popen(["cat", "/dev/zero"], stdout=subprocess.PIPE) as process:
        with pytest.raises(FileError, match="longer than 1 MiB"):
            read_bytes(f"/dev/fd/{process.stdout.fileno()}", LIMIT, pipe=True)
        process.kill()


def test_a_pipe_whose_writer_is_slow_is_read_whole(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(user_file, "NOTICE_SECONDS", 0.05)
    make_fifo(tmp_path / "fifo")

    def write():
        time.sleep(0.2)
        with open(tmp_path / "fifo", "w") as fifo:
            for word in ("one ", "two"):
                fifo.write(word)
                fifo.flush()
                time.sleep(0.2)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_text(tmp_path / "fifo", LIMIT, "--prompts", pipe=True) == "one two"
    writer.join()
    assert f"--prompts {tmp_path / 'fifo'}: waiting" in capsys.readouterr().err


def test_a_pipe_without_a_writer_times_out(tmp_path, monkeypatch):
    monkeypatch.setattr(user_file, "NOTICE_SECONDS", 0.05)
    monkeypatch.setattr(user_file, "SILENCE_SECONDS", 0.1)
    make_fifo(tmp_path / "fifo")
    with pytest.raises(FileError, match="fifo: this pipe gave nothing"):
        read_text(tmp_path / "fifo", LIMIT, "--prompts", pipe=True)


@pytest.mark.parametrize(
    "content, named",
    [
        ("", "Expecting value"),
        ("{'a': 1}", "property name"),
        ("[" * 1000 + "]" * 1000, f"deeper than {DEPTH}"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, f"deeper than {DEPTH}"),
        ("1" + "0" * 400, "an integer of 401 digits is too large"),
        ("1" + "0" * 9000, "an integer of 9001 digits is too large"),
        (b"\xff\xfe{}", "utf-8"),
    ],
)
def test_text_that_is_not_json_within_the_limits_is_refused(content, named):
    with pytest.raises(ValueError, match=named):
        parse_json(content)


def test_json_within_the_limits_is_read(tmp_path):
    """transformers writes an unlimited input length of a tokenizer as an integer of 31 digits."""
    deep = "[" * DEPTH + "]" * DEPTH
    (tmp_path / "file").write_text(f'{{"model_max_length": {int(1e30)}, "deep": {deep[1:-1]}}}')
    assert read_json(tmp_path / "file")["model_max_length"] == int(1e30)
