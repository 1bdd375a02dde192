"""What a command refuses: one line that names it, status 2, nothing loaded, and every file as it was.

A row is a command, the words of its line, and files of a stranger that lie there, where the row needs some.
"""

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from qwen25_7b_lab.bringup.__main__ import main as bringup
from qwen25_7b_lab.bringup.runner import Outcome
from qwen25_7b_lab.evaluation.__main__ import main as evaluation
from qwen25_7b_lab.perf.__main__ import main as perf
from qwen25_7b_lab.quantize.__main__ import main as quantize

from models.demos.qwen25_7b.cli.command import status_of
from models.demos.qwen25_7b.cli.terminal import printable
from models.demos.qwen25_7b.demo.demo import main as demo
from models.demos.qwen25_7b.engine.open_model import open_model
from models.demos.qwen25_7b.errors import UserError, shown
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.text.request import check_request, check_strings

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "demo": demo,
    "eval": lambda argv: evaluation(["eval", *argv]),
    "tasks": lambda argv: evaluation(["tasks", *argv]),
    "quantize": quantize,
    "bringup": bringup,
    "perf": perf,
}
SHORT = {"SMALL": f"{SMALL_CHECKPOINT}", "SELF": sys.executable, "TINY": "--mesh N300 --backend golden --size tiny"}
OPTIONS = """
demo --banana | --banana
demo --mesh N200 | N200 ; N150, N300, N150x4, T3K
demo --mesh '\x1b[2J' | \\x1b[2J ; N150, N300, N150x4, T3K
demo --backend cuda | --backend ; cuda ; golden
demo --recipe int3 | --recipe ; int3 ; bfp8-kv8
demo --tp 3 | N300 ; 3
demo --model no/such/model | no/such/model: no directory here, and no hub id
demo --model folder | config.json ; No such file
demo --prompt | --prompt ; one argument
demo --prompt ' ' | prompt 0
demo --prompt-file long.txt --max-new-tokens 4000 | 4096
demo --prompt a --prompts b | --prompt ; --prompts
demo --prompt-file nothing | --prompt-file nothing ; No such file
demo --prompts nothing | --prompts nothing ; No such file
demo --batch-size 0 | --batch-size ; 0
demo --max-new-tokens 0 | --max-new-tokens ; 0
demo --max-new-tokens 4090 | 4090 ; 4096
demo --max-seq-len 4097 | max_seq_len ; 4097 ; 4096
demo --temperature -1 | temperature ; -1
demo --top-k -1 | top_k ; -1
demo --top-p 1.5 | top_p ; 1.5
demo --repetition-penalty 0 | repetition_penalty ; 0
demo --temperature 1 --seed -1 | seed ; -1
demo --stop '' | --stop ; one character
demo --speculate 9 | speculate ; 1 to 8
demo --speculate 2 --sample-on host | speculate ; host
demo --out / | --out / ; not a regular file
demo --out '' | --out ; empty name
demo --cache '' | --cache ; empty name
demo --cache x --no-cache | --cache ; --no-cache
demo --chat --no-instruct | --chat needs the chat template
demo --chat --batch-size 2 | --chat ; --batch-size
demo --chat --out x | --chat ; --out
demo --chat --prompt Hi | --chat ; not allowed with
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
eval --text '' | --text ; empty name
eval --text absent.txt | --text absent.txt: No such file
eval --text binary.txt | not UTF-8
eval --text empty.txt | 0 tokens
eval --text notes.txt | one text takes
eval --out notes.txt | --out notes.txt
eval --out '' | --out ; empty name
eval --quantized '' | --quantized ; empty name
eval --quantized no/such/model | no/such/model
eval --quantized other | other
tasks | --questions
tasks --questions absent.jsonl | absent.jsonl
tasks --questions long.txt | line 1
tasks --questions empty.txt | has no questions
tasks --questions unmarked.jsonl | --questions unmarked.jsonl, line 2: must be
tasks --questions sums.jsonl --limit 0 | --limit
tasks --questions sums.jsonl --max-new-tokens 1024 | --max-new-tokens 1024
tasks --questions sums.jsonl --tp 2,x | --tp
tasks --questions sums.jsonl --tp 3 | tp must divide
tasks --questions sums.jsonl --out notes.txt | --out notes.txt
quantize --calibration notes.txt --out new | --model
quantize --model SMALL --out '' | --out ; empty name
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
bringup --out new --reference '' | --reference ; empty name
perf model --mesh T3K --tp 3 | tp must divide 8, got 3
perf model --mesh GALAXY --tp 16 | tp must divide 8, got 16
perf model --batch 0 | got 0
perf ops --recipe fp4 | fp4
perf model --backend paper | paper
perf model --position 32768 | 32768
perf model --links 0 | --links must be 1 to 4
perf model --measured report.json --prefill 32 | leave out --prefill
perf model --measured absent.json | absent.json: No such file
perf models --config absent.json | absent.json: No such file
perf l1 --prefill 7 | --prefill must be 32 to 16384 rows, got 7
perf l1 --cached-prefix | --cached-prefix needs --prefill
demo --cache ~nobody-of-this-name/x | ~nobody-of-this-name/x
bringup TINY --out damaged | outcomes.json: damaged
bringup TINY --out older | outcomes.json: damaged
bringup TINY --out 7b | give another --out
bringup TINY --out N150 | (N150)
bringup TINY --out silicon | (silicon)
bringup TINY --out new --reference absent.refpt | --reference ; absent.refpt
bringup TINY --out new --questions absent.jsonl | --questions ; absent.jsonl
bringup TINY --out new --model folder | config.json
bringup TINY --out new --only dance | 'dance' is not a stage; the stages are machine, ops, modules
bringup TINY --out new --only '' | '' is not a stage
bringup TINY --out new --from '' | '' is not a stage
bringup TINY --out new --slower 0 | --slower
bringup TINY --out notes.txt | --out
bringup TINY --out notes.txt/x | --out
bringup TINY --out /proc/x | /proc/x
quantize --calibration long.txt --model SMALL --out damaged | settings.json: not JSON
quantize --calibration long.txt --model SMALL --out other-settings | another ; formats
"""
# JSON files of recipes: content, words of the line
RECIPES = (
    ("{", "not JSON"),
    ('{"base": "fast"}', "base: must be one of bf16, bfp8, bfp8-kv8, accuracy, performance; got 'fast'"),
    ('{"mlp": "bfloat8_b"}', "knows base, attention, mlp_in"),
    ('{"mlp_in": "bfp4"}', "mlp_in: must be one of bfloat16, bfloat8_b, bfloat4_b; got 'bfp4'"),
    ('{"mlp_in": {"fidelity": "LoFi"}}', "mlp_in: must be one of bfloat16, bfloat8_b, bfloat4_b; got None"),
    ('{"mlp_in": {"format": "bfloat4_b", "fidelity": "HiFi4"}}', "must be one of LoFi, HiFi2, HiFi3; got 'HiFi4'"),
    ('{"kv_cache": "bfloat4_b"}', "kv_cache: must be one of bfloat16, bfloat8_b"),
    ('{"all_reduce_dtype": "bfloat4_b"}', "all_reduce_dtype: must be one of bfloat16, bfloat8_b"),
    ('{"layers": {"first": {}}}', "layer first: must be a layer's number"),
    ('{"layers": {"0": {"lm_head": "bfloat16"}}}', "layer 0: knows attention"),
)
OPTIONS += "".join(f"demo --recipe recipe{i}.json | recipe{i}.json ; {words}\n" for i, (_, words) in enumerate(RECIPES))
OPTIONS += "demo --recipe recipes/none.json | none.json: No such file\n"
# Folder -> what an earlier bring-up ran on
EARLIER = {"7b": {"size": "7b"}, "N150": {"mesh": "N150"}, "silicon": {"backend": "silicon"}}
# What a program did not make stays: it would remove or overwrite these files.
MAKE, VENV = (
    f"make --silent -f {ROOT}/Makefile -o .venv/ready",
    f"sh scripts/vllm_venv.sh box {ROOT}/scripts/find_python.sh",
)
KEPT = "is no Python environment: nothing was removed"
STRANGERS = f"""
demo --out thesis.txt | --out thesis.txt: exists | thesis.txt
eval --out box | small-checkpoint-N300-tp2-decode.json: exists | box/small-checkpoint-N300-tp2-decode.json
eval --by-position 128 --out box | by-position.json: exists | box/small-checkpoint-N300-tp2-by-position.json
tasks --questions sums.jsonl --out box | tasks.json: exists | box/small-checkpoint-N300-tp2-tasks.json
quantize --model SMALL --calibration long.txt --out box | --out box: exists | box/thesis.txt
bringup --out box | --out box: exists | box/thesis.txt
bringup --out box | --out box: exists | box/machine.json
perf run --csv box -c pass | modeled.csv: exists | box/ops_perf_results_modeled.csv
perf fit rows.csv --to thesis.txt | --to thesis.txt: exists | thesis.txt
SELF scripts/make_bundle.py --out box | box exists | box/thesis.txt
{VENV} | box {KEPT} | box/thesis.txt
{VENV} | box {KEPT} | box/bin/thesis.txt
{VENV} | box holds thesis.txt | box/pyvenv.cfg box/thesis.txt
{VENV} | not installed from here | box/pyvenv.cfg box/lib/python3.12/site-packages/thesis.py
{VENV} | box {KEPT} | box
sh install.sh box | box {KEPT} | box/thesis.txt
env VENV=box sh install.sh | box {KEPT} | box/thesis.txt
sh install.sh . | . {KEPT} |
sh scripts/make_venv.sh box | box exists and is not an environment | box/thesis.txt
{MAKE} clean | .venv-vllm holds thesis.txt | .venv-vllm/pyvenv.cfg .venv-vllm/steps .venv-vllm/thesis.txt
{MAKE} .venv-transformers5/ready | {KEPT} | .venv-transformers5/thesis.txt
{MAKE} .venv-python310/ready | {KEPT} | .venv-python310/thesis.txt
{MAKE} serve | {KEPT} | .venv-vllm/thesis.txt
"""
ROWS = [[part.strip() for part in line.split("|")] for line in (OPTIONS + STRANGERS).splitlines() if line]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("user")
    for folder in ("folder", "mine/unfinished", "damaged/unfinished", "older", "other-settings/unfinished", *EARLIER):
        (place / folder).mkdir(parents=True)
    (place / "other-settings/unfinished/settings.json").write_text('{"formats": ["gate"]}')
    (place / "older/outcomes.json").write_text('{"ops": {"verdict": "green", "seconds": 1}}')
    for folder, other in EARLIER.items():
        on = {"mesh": "N300", "backend": "golden mesh", "size": "tiny", "cards": []} | other
        (place / folder / "outcomes.json").write_text(json.dumps({"ops": asdict(Outcome("green", 1, on=on))}))
    for file in ("outcomes.json", "unfinished/settings.json"):  # an earlier run's
        (place / "damaged" / file).write_text("[")
    for i, (content, _) in enumerate(RECIPES):
        (place / f"recipe{i}.json").write_text(content)
    (place / "notes.txt").write_text("A user's own notes.\n")
    (place / "long.txt").write_text("What is the capital of France? " * 200)
    (place / "binary.txt").write_bytes(b"ab\xff")
    (place / "empty.txt").write_text("")
    (place / "layer99.json").write_text(json.dumps({"layers": {"99": {"mlp_in": "bfloat4_b"}}}))
    (place / "sums.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}) + "\n")
    unmarked = json.dumps({"question": "1 + 1?", "answer": "2"})
    (place / "unmarked.jsonl").write_text((place / "sums.jsonl").read_text() + unmarked)
    config = Path(shutil.copytree(SMALL_CHECKPOINT, place / "other")) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rope_theta": 5e5}))
    (place / "rows.csv").write_text("op,device_us\n")
    (place / "scripts").symlink_to(ROOT / "scripts")
    (place / "install.sh").symlink_to(ROOT / "scripts/bundle/install.sh")
    return place


def tree(place: Path) -> dict[Path, bytes | None]:
    """Return each path with its content."""
    return {path: path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


@pytest.fixture
def refusal(place, monkeypatch, capfd, tmp_path):
    """refusal(command): run it in `place`, where it must fail and change no file. Returns its line."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path / 'cache'}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(place)

    def run(command: str) -> str:
        name, *argv = shlex.split(functools.reduce(lambda text, short: text.replace(*short), SHORT.items(), command))
        before = tree(place)
        if name in COMMANDS:
            status = status_of(lambda: COMMANDS[name](argv))
        else:
            # MAKELEVEL: under `make test` a make of the tests would name its folder, too
            path = {"PYTHONPATH": f"{ROOT}", "CPYTHON": sys.executable, "MAKELEVEL": "", "MAKEFLAGS": ""}
            status = subprocess.run([name, *argv], env=os.environ | path, timeout=120).returncode
        lines = [line for line in capfd.readouterr().err.splitlines(keepends=True) if not line.startswith("make: ***")]
        assert status == 2 and tree(place) == before and not (tmp_path / "cache").exists(), lines
        (line,) = lines
        assert (line.startswith("error: ") or name not in COMMANDS) and printable(line) == line
        return line

    return run


@pytest.mark.parametrize("row", ROWS, ids=[ascii(row[0].replace(f"{ROOT}", "")[:60]) for row in ROWS])
def test_a_refusal_is_one_line_and_changes_no_file(row, place, refusal):
    command, words, *files = row
    made = [place / file for file in " ".join(files).split()]
    for file in made:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("my thesis\n")
    line = refusal(command)
    assert all(word in line for word in words.split(" ; ")), line
    for top in {file.relative_to(place).parts[0] for file in made}:
        (shutil.rmtree if (place / top).is_dir() else os.remove)(place / top)


@pytest.mark.parametrize(
    "contents, named",
    [("[", "not JSON"), ("{}", "item 0"), ("[]", "JSON list or JSON lines"), ("\n", "JSON list or JSON lines"),
        ('["a", {"text": "b"}]', "item 1"),
     ('{"prompt": "a"}\n\n{"prompt": ', "line 3: not JSON"),
     ('{"question": "a"}\n{"question": "b"}', 'an object with a "prompt"'),
     ('{"messages": [{"role": "user", "content": "a"}]}', 'an object with a "prompt"'),
     ("What is 2 + 3?", "line 1: not JSON"),
     ('["a", "  "]', "prompt 1"), ("\xff", "not UTF-8"),
     ('["a", "half \\ud83d"]', "half \\ud83d")],
)  # fmt: skip
def test_a_file_of_prompts_that_is_none(refusal, tmp_path, contents, named):
    (tmp_path / "prompts.json").write_bytes(contents.encode("latin-1"))
    assert named in refusal(f"demo --prompts {tmp_path}/prompts.json")


# The same from Python: a UserError that names the argument.
FROM_PYTHON = [
    *((lambda name=name, value=value: open_model(**dict(model=SMALL_CHECKPOINT, backend="golden") | {name: value}),
        value if name == "model" else name) for name, value in (
        ("model", "no/such/directory"), ("mesh", "N200"), ("mesh", None), ("tp", 3), ("backend", "x"),
        ("recipe", "int3"), ("users", 0), ("users", 33), ("max_seq_len", 0), ("max_seq_len", 4097),
        ("speculate", 0), ("speculate", 9))),
    *((lambda value=value: check_strings("prompts", value), "prompts must be a list of strings")
        for value in ("Hello", ["a", ""], ["a", 7])),
    *((lambda prompts=prompts, new=new: check_request(prompts, new, 128, vocab_size=8), message)
        for prompts, new, message in (
        ([], 1, "prompts must hold at least one prompt"), ([[7], [7], [], [7]], 1, "prompt 2 is empty"),
        ([[7], [7] * 101], 28, "prompt 1 has 101 tokens; with 28 new ones .* context of 128"),
        ([[7]], 0, "max_new_tokens .*0"),
        ([[7], [8]], 1, "prompt 1 has token ids 8 to 8, the model's are 0 to 7"))),
]  # fmt: skip


@pytest.mark.parametrize("call, message", FROM_PYTHON, ids=lambda value: shown(value)[:30])
def test_a_wrong_argument_from_python(call, message, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=message):
        call()


def test_a_request_that_just_fits():
    check_request([[7]], 1, 2, vocab_size=8)
    check_request([[7] * 100] * 32, 28, 128, vocab_size=8)
