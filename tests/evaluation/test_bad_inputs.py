"""Bad inputs of the commands of evaluation/ and quantize/ change no file.

The command prints one line and exits with status 2.
"""

import json
import shutil
from pathlib import Path

import pytest
from qwen25_7b_lab.evaluation.__main__ import main as evaluation
from qwen25_7b_lab.quantize.__main__ import main as quantize

from models.demos.qwen25_7b.cli.command import status_of
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

SMALL = f"{SMALL_CHECKPOINT}"
COMMANDS = {
    "eval": lambda argv: evaluation(["eval", *argv]),
    "tasks": lambda argv: evaluation(["tasks", *argv]),
    "quantize": quantize,
}
BAD = """
eval --recipes bf16,int3 | int3
eval --recipes layer99.json | layer 99
eval --texts 0 | --texts: must be 1 or more
eval --steps 5000 | 4096 positions
eval --model no/such/model | no/such/model
eval --model notes.txt | notes.txt
eval --mesh N600 | N600
eval --tp 3 | tp must divide
eval --by-position 128,many | --by-position
eval --by-position 256,128 | ascending
eval --by-position 128,160 | --steps 64 exceeds the bucket from position 128 to 160
eval --by-position 128 --text notes.txt | one text takes 129
eval --backend tea | tea
eval --text absent.txt | --text absent.txt: No such file
eval --text binary.txt | not UTF-8
eval --text empty.txt | 0 tokens
eval --text notes.txt | one text takes
eval --out notes.txt | --out notes.txt
eval --quantized no/such/model | no/such/model
eval --quantized other | other
tasks | --questions
tasks --questions absent.jsonl | absent.jsonl
tasks --questions long.txt | line 1
tasks --questions empty.txt | has no questions
tasks --questions sums.jsonl --limit 0 | --limit
tasks --questions sums.jsonl --max-new-tokens 1024 | --max-new-tokens 1024
tasks --questions sums.jsonl --tp 2,x | --tp
tasks --questions sums.jsonl --tp 3 | tp must divide
tasks --questions sums.jsonl --out notes.txt | --out notes.txt
quantize --calibration notes.txt --out new | --model
quantize --model SMALL --calibration absent.txt --out new | absent.txt: No such file
quantize --model SMALL --calibration notes.txt --out new | --calibration
quantize --model SMALL --calibration long.txt --tokens 0 --out new | --tokens
quantize --model SMALL --calibration long.txt --steps -1 --out new | --steps: must be 0 or more, got -1
quantize --model SMALL --calibration long.txt --recipe int3 --out new | int3
quantize --model SMALL --calibration long.txt --recipe layer99.json --out new | layer 99
quantize --model SMALL --calibration long.txt --out notes.txt | --out notes.txt
quantize --model SMALL --calibration long.txt --out mine | --out mine
quantize --model SMALL --out . | --out .: exists
quantize --model no/such/model --calibration long.txt --out new | no/such/model
"""
ROWS = [tuple(part.strip() for part in line.split("|")) for line in BAD.strip().splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("user")
    for folder in ("folder", "mine/unfinished"):
        (place / folder).mkdir(parents=True)
    for file in ("notes.txt", "folder/notes.txt", "mine/unfinished/notes.txt"):
        (place / file).write_text("A user's own notes.\n")
    (place / "long.txt").write_text("What is the capital of France? " * 200)
    (place / "binary.txt").write_bytes(b"ab\xff")
    (place / "empty.txt").write_text("")
    (place / "layer99.json").write_text(json.dumps({"layers": {"99": {"mlp_in": "bfloat4_b"}}}))
    (place / "sums.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}) + "\n")
    other = Path(shutil.copytree(SMALL_CHECKPOINT, place / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5}))
    return place


def tree(place: Path) -> dict[Path, bytes | None]:
    """Return each path with its content."""
    return {path: path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


@pytest.mark.parametrize("command, message", ROWS, ids=[row[0] for row in ROWS])
def test_a_bad_input_is_one_line_and_changes_no_file(command, message, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    name, *argv = [word.strip("'") for word in command.replace("SMALL", SMALL).split()]
    before = tree(place)
    status = status_of(lambda: COMMANDS[name](argv))
    shown = capsys.readouterr()
    assert status == 2, shown.err
    assert shown.err.startswith("error: ") and len(shown.err.splitlines()) == 1, shown.err
    assert message in shown.err and shown.out == ""
    assert tree(place) == before
