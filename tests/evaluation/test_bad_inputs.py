"""Bad inputs of the commands of evaluation/, quantize/ and reference/ change no file.

The command prints one line and exits with status 2.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from models.demos.qwen25_7b.evaluation.__main__ import main as evaluation
from models.demos.qwen25_7b.quantize.__main__ import main as quantize
from models.demos.qwen25_7b.quantize.compare import main as compare
from models.demos.qwen25_7b.quantize.keys import main as keys
from models.demos.qwen25_7b.quantize.pareto import main as pareto
from models.demos.qwen25_7b.reference.measure_small import main as measure_small
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.reference.train_small import main as train_small

SMALL = f"{SMALL_CHECKPOINT}"
DEEP = '{"a":' * 1000 + "1" + "}" * 1000
COMMANDS = {
    "eval": lambda argv: evaluation(["eval", *argv]),
    "ablate": lambda argv: evaluation(["ablate", *argv]),
    "reference": lambda argv: evaluation(["reference", *argv]),
    "smollm2": lambda argv: evaluation(["smollm2", *argv]),
    "tasks": lambda argv: evaluation(["tasks", *argv]),
    "parity": lambda argv: evaluation(["parity", *argv]),
    "attention": lambda argv: evaluation(["attention-by-position", *argv]),
    "quantize": quantize,
    "compare": compare,
    "keys": keys,
    "pareto": pareto,
    "measure": measure_small,
    "train": train_small,
}
BAD = """
eval --recipes bf16,int3 | int3
eval --recipes '' | --recipes
eval --recipes deep.json | deep.json
eval --recipes fifo | fifo
eval --recipes layer99.json | layer 99
eval --texts 0 | --texts must be 1 or more
eval --texts x | --texts
eval --steps -1 | --steps must be 1 or more
eval --steps 5000 | 4096 positions
eval --prompt-tokens 0 | --prompt-tokens must be 1 or more
eval --model no/such/model | no/such/model
eval --model notes.txt | notes.txt
eval --model '' | --model
eval --mesh N600 | N600
eval --tp 3 | tp must divide
eval --by-position '' | --by-position
eval --by-position 128,many | --by-position
eval --by-position 256,128 | ascending
eval --by-position 0,128 | ascending
eval --by-position 128,160 | --steps 64 exceeds the bucket from position 128 to 160
eval --by-position 8192 | 4096 positions
eval --by-position --prefill | leave --prefill out
eval --by-position --texts 0 | --texts must be 1 or more
eval --by-position 128 --text notes.txt | one text takes 129
eval --by-position --text empty.txt | 0 tokens
eval --by-position 128 --out notes.txt | --out notes.txt
eval --tp 0 | tp
eval --backend tea | tea
eval --text absent.txt | --text absent.txt: not found
eval --text folder | a directory
eval --text fifo | a FIFO
eval --text endless | a device
eval --text binary.txt | not UTF-8
eval --text empty.txt | 0 tokens
eval --text notes.txt | one text takes
eval --out notes.txt | --out notes.txt
eval --out notes.txt/results | --out notes.txt/results
eval --out /proc/1/results | --out /proc/1/results
eval --out '' | --out
eval --quantized no/such/model | no/such/model
eval --quantized other | other
ablate --base int3 | int3
ablate --by group,head | head
ablate --by '' | --by
ablate --formats int3 | int3
ablate --texts 0 | --texts must be
ablate --out notes.txt | --out notes.txt
reference | --out
reference --out new.refpt --tokens 2000 | --tokens
reference --out new.refpt --tokens 3 | --tokens
reference --out folder | --out folder
reference --out notes.txt | exists
reference --out notes.txt/new.refpt | --out notes.txt
reference --out new.refpt --text notes.txt --tokens 900 | notes.txt
reference --out new.refpt --text endless | a device
smollm2 | --out
smollm2 --out / | exists
smollm2 --out folder | exists
smollm2 --out dangling | exists
smollm2 --out notes.txt/new | --out notes.txt
tasks | --questions
tasks --questions absent.jsonl | absent.jsonl
tasks --questions fifo | a FIFO
tasks --questions endless | a device
tasks --questions deep.jsonl | nested
tasks --questions long.txt | line 1
tasks --questions empty.txt | has no questions
tasks --questions sums.jsonl --limit 0 | --limit
tasks --questions sums.jsonl --fewshot -1 | --fewshot
tasks --questions sums.jsonl --max-new-tokens 0 | --max-new-tokens
tasks --questions sums.jsonl --max-new-tokens 1024 | --max-new-tokens 1024
tasks --questions sums.jsonl --max-seq-len 0 | --max-seq-len
tasks --questions sums.jsonl --include absent | --include absent
tasks --questions sums.jsonl --recipe int3 | int3
tasks --questions sums.jsonl --out notes.txt | --out notes.txt
parity --splits N600 | N600
parity --splits T3K:x | T3K:x
parity --splits N300:3 | tp must divide
parity --splits '' | --splits
parity --recipes int3 | int3
parity --limit 0 | --limit
parity --max-new-tokens 0 | --max-new-tokens
parity --max-new-tokens 1024 | --max-new-tokens 1024
parity --questions absent.jsonl | absent.jsonl
parity --out notes.txt | --out notes.txt
attention --positions 256,128 | --positions: takes ascending
attention --positions 4 | --positions must be
attention --draws 0 | --draws must be
quantize --calibration notes.txt --out new | --model
quantize --model SMALL --calibration absent.txt --out new | absent.txt: not found
quantize --model SMALL --calibration fifo --out new | a FIFO
quantize --model SMALL --calibration endless --out new | a device
quantize --model SMALL --calibration binary.txt --out new | not UTF-8
quantize --model SMALL --calibration notes.txt --out new | --calibration
quantize --model SMALL --calibration long.txt --tokens 0 --out new | --tokens
quantize --model SMALL --calibration long.txt --recipe int3 --out new | int3
quantize --model SMALL --calibration long.txt --recipe layer99.json --out new | layer 99
quantize --model SMALL --calibration long.txt --out notes.txt | --out notes.txt
quantize --model SMALL --calibration long.txt --out folder | --out folder
quantize --model SMALL --calibration long.txt --out mine | --out mine
quantize --model SMALL --calibration long.txt --out linked | --out linked
quantize --model SMALL --calibration long.txt --out '' | --out
quantize --model no/such/model --calibration long.txt --out new | no/such/model
pareto --model SMALL --calibration long.txt --out new | --text
pareto --model SMALL --calibration long.txt --text absent.txt --out new | absent.txt
pareto --model SMALL --calibration notes.txt --text long.txt --out new | --calibration
pareto --model SMALL --calibration long.txt --text long.txt --tokens 0 --out new | --tokens
pareto --model SMALL --calibration long.txt --text long.txt --score-tokens 0 --out new | --score-tokens
pareto --model SMALL --calibration long.txt --text long.txt --out folder | --out folder
compare --model SMALL --text absent.txt | absent.txt
compare --model SMALL --text fifo | a FIFO
compare --model SMALL --text notes.txt | --text
compare --model SMALL --text long.txt --tokens 0 | --tokens
compare --model SMALL --text long.txt absent | absent
compare --model SMALL --text long.txt other | other
keys --model SMALL | --text
keys --model SMALL --text endless | a device
keys --tokens 0 | --tokens
measure --each 0 | --each
measure --checkpoint absent | absent
train | --out
train --out new --minutes 0 | --minutes
train --out new --minutes nan | --minutes
train --out new --minutes x | --minutes
train --out folder | --out folder
train --out notes.txt/new | --out notes.txt
train --out new --start-from folder | --start-from folder
train --out new --seed x | --seed
"""
ROWS = [tuple(part.strip() for part in line.split("|")) for line in BAD.strip().splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("user")
    for folder in ("folder", "mine/unfinished", "linked", "elsewhere"):
        (place / folder).mkdir(parents=True)
    for file in ("notes.txt", "folder/notes.txt", "mine/unfinished/notes.txt"):
        (place / file).write_text("A user's own notes.\n")
    (place / "linked/unfinished").symlink_to("../elsewhere")
    (place / "elsewhere/settings.json").write_text("{}")
    (place / "long.txt").write_text("What is the capital of France? " * 200)
    (place / "binary.txt").write_bytes(b"ab\xff")
    (place / "empty.txt").write_text("")
    (place / "deep.json").write_text(DEEP)
    (place / "deep.jsonl").write_text(DEEP + "\n")
    (place / "layer99.json").write_text(json.dumps({"layers": {"99": {"mlp_in": "bfloat4_b"}}}))
    (place / "sums.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}) + "\n")
    (place / "endless").symlink_to("/dev/zero")
    (place / "dangling").symlink_to("nowhere")
    os.mkfifo(place / "fifo")
    other = Path(shutil.copytree(SMALL_CHECKPOINT, place / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5}))
    return place


def tree(place: Path) -> dict[str, tuple]:
    """Return each path with its kind and content."""
    found = {}
    for path in sorted(place.rglob("*")):
        kind = path.lstat().st_mode
        link = os.readlink(path) if path.is_symlink() else None
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[f"{path.relative_to(place)}"] = kind, link, content
    return found


@pytest.mark.parametrize("command, message", ROWS, ids=[row[0] for row in ROWS])
def test_a_bad_input_is_one_line_and_changes_no_file(command, message, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    name, *argv = [word.strip("'") for word in command.replace("SMALL", SMALL).split()]
    before = tree(place)
    status = COMMANDS[name](argv)
    shown = capsys.readouterr()
    assert status == 2, shown.err
    assert shown.err.startswith("error: ") and len(shown.err.splitlines()) == 1, shown.err
    assert message in shown.err and shown.out == ""
    assert tree(place) == before
