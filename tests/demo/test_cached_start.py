"""The demo's second start, from the tile cache: without the weights, and with an unusable cache."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

REPOSITORY = Path(__file__).resolve().parents[2]

# Starts the demo several times, each after a shell command. One process imports everything once.
STARTS = """
import contextlib, io, json, subprocess, sys
from models.demos.qwen25_7b.demo import demo
from models.demos.qwen25_7b.serving.open_model import open_model

def from_python(name):
    with open_model(name, backend="golden") as model:
        print("".join(delta.text for delta in model.generate(["What is the capital of France?"], 8)))
    return 0

results = []
for before, argv in json.loads(sys.argv[1]):
    subprocess.run(before, shell=True, check=True)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if argv[0] == "from python":
            status = from_python(argv[1])
        else:
            status = demo.main(["--backend", "golden", "--max-new-tokens", "8", *argv])
    results.append([status, out.getvalue(), err.getvalue()])
print()
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def starts(tmp_path_factory) -> dict[str, tuple[int, str, list[str]]]:
    """Start -> (status, stdout, lines of stderr). The second start deletes the weights first."""
    work = tmp_path_factory.mktemp("starts")
    model = shutil.copytree(SMALL_CHECKPOINT, work / "model")
    cache, shared = work / "home/.cache/qwen25-7b-ttnn", work / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    of_model = ["--model", f"{model}"]
    plan = {
        "no cache": ("true", [*of_model, "--no-cache"]),
        "first": (f"test ! -e {cache}", of_model),
        "second": (f"rm {model}/model.safetensors", [*of_model, "--verify-cache"]),
        "from python": ("true", ["from python", f"{model}"]),
        "damaged": (
            f"printf x >> $(ls {cache}/tiles/*/* | head -1)",
            [*of_model, "--verify-cache"],
        ),
        "shared": ("true", ["--cache", f"{shared}"]),
    }
    done = subprocess.run(
        [sys.executable, "-c", STARTS, json.dumps(list(plan.values()))],
        env={"PATH": os.environ["PATH"], "HOME": f"{work}/home", "PYTHONPATH": f"{REPOSITORY}", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600, cwd=work,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results = {}
    for name, (status, out, err) in zip(
        plan, json.loads(done.stdout.splitlines()[-1]), strict=True
    ):
        lines = [
            line
            for line in re.split(r"[\r\n]+", err)
            if line.strip() and not line.startswith("weights")
        ]
        results[name] = (
            status,
            out.replace(f"{work}", ""),
            [line.replace(f"{work}", "") for line in lines],
        )
    return results


def answer(out: str) -> str:
    """Return the output from the prompt to the figures."""
    return re.search(r"^> .*?(?=^N300)", out, re.MULTILINE | re.DOTALL).group()


def test_the_first_start_prints_the_caches_directory_and_size(starts):
    status, out, lines = starts["first"]
    assert (status, lines) == (0, []) and "Paris" in answer(out)
    assert re.search(
        r"^cache: [\d.]+ MB written to /home/.cache/qwen25-7b-ttnn$", out, re.MULTILINE
    )


def test_the_second_start_needs_no_weights_and_gives_the_same_answer(starts):
    status, out, lines = starts["second"]
    assert (status, lines) == (0, []) and answer(out) == answer(starts["first"][1])
    assert re.search(
        r"^cache: [\d.]+ MB mapped from /home/.cache/qwen25-7b-ttnn$", out, re.MULTILINE
    )


def test_open_model_uses_the_same_cache_for_a_name(starts):
    status, out, lines = starts["from python"]
    assert status == 0 and "Paris" in out
    assert len(lines) == 1 and "mapped from /home/.cache/qwen25-7b-ttnn" in lines[0]


def test_damage_without_the_weights_is_one_line_and_no_answer(starts):
    status, out, lines = starts["damaged"]
    assert status == 2 and "damaged" in out and "> " not in out
    assert len(lines) == 1 and "/model: its weights were deleted" in lines[0]


def test_the_option_no_cache_writes_no_cache(starts):
    status, out, lines = starts["no cache"]  # the next start checks that there is no cache
    assert (
        (status, lines) == (0, [])
        and answer(out) == answer(starts["first"][1])
        and "cache" not in out
    )


def test_a_cache_where_others_may_write_is_refused_before_anything_is_loaded(starts):
    status, out, lines = starts["shared"]
    assert (
        status == 2
        and out == ""
        and len(lines) == 1
        and "/shared: others may write there" in lines[0]
    )
