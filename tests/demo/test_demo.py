"""The demo in another folder with a bare environment: options, and starts with and without the cache."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from programs import run_python

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer
from tests.families import save
from tests.generation import greedy

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = f"{REPOSITORY}/models/demos/qwen25_7b/demo/demo.py"

# Runs a module's main several times, each after a shell command. One process imports everything once.
RUNS = """
import contextlib, importlib, io, json, subprocess, sys
from models.demos.qwen25_7b.cli.command import status_of

class Pieces(io.StringIO):
    flushes = 0

    def flush(self):
        self.flushes += 1

main, results = importlib.import_module(sys.argv[1]).main, []
for before, argv in json.loads(sys.argv[2]):
    subprocess.run(before, shell=True, check=True)
    out, err = Pieces(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = status_of(lambda: main(argv))
    results.append([status, out.getvalue(), err.getvalue(), out.flushes])
print()
print(json.dumps(results))
"""


def bare(home: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": f"{home}", "OMP_NUM_THREADS": "1", **more}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, tuple[int, str, str, int]]:
    """Run -> (status, stdout, stderr, number of flushes). The second start deletes the weights first."""
    work = tmp_path_factory.mktemp("runs")
    model = ["--model", shutil.copytree(SMALL_CHECKPOINT, work / "model").as_posix()]
    cache = work / "home/.cache/qwen25-7b-ttnn"
    sampled = ["--batch-size", "2", "--temperature", "4", "--seed", "1", "--no-cache"]
    plan = {
        "no cache": ("true", [*model, "--no-cache"]),
        "first": (f"test ! -e {cache}", model),
        "second": (f"rm {model[1]}/model.safetensors", model),
        "damaged": (f"truncate -s 100 $(ls {cache}/*/*.tensorbin | head -1)", model),
        "unwritable": ("true", ["--cache", "/dev/null"]),
        "plain": ("true", ["--no-instruct", "--prompt", "The capital of France is", "--no-cache"]),
        "sampled": ("true", sampled),
        "speculate": ("true", ["--speculate", "4", "--no-cache"]),
    }
    every = ["--backend", "golden", "--max-new-tokens", "8"]
    words = "models.demos.qwen25_7b.demo.demo", json.dumps([(before, every + argv) for before, argv in plan.values()])
    done = run_python("-c", RUNS, *words, env=bare(work / "home", PYTHONPATH=f"{REPOSITORY}"), cwd=work, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1].replace(f"{work}", ""))
    return dict(zip(plan, results, strict=True))


def answers(run: tuple[int, str, str, int], warnings: int = 0) -> list[str]:
    """Return each user's prompt and answer. warnings: lines of stderr."""
    status, out, err, _ = run
    assert (status, err.count("\n")) == (0, warnings), (out, err)
    return [part.strip() for part in re.split(r"^> |^\d+ user\(s\)", out, flags=re.MULTILINE)[1:-1]]


def refusal(run: tuple[int, str, str, int], warnings: int = 0) -> str:
    """Return the last line of stderr of a run that must fail before it answers. warnings: lines before it."""
    status, out, err, _ = run
    assert status == 2 and err.count("\n") == 1 + warnings and "> " not in out, (out, err)
    return err.splitlines()[-1]


def test_an_answer_comes_token_by_token_and_says_that_it_is_cut(runs):
    _, out, _, flushes = runs["no cache"]
    (answer,) = answers(runs["no cache"])
    assert "Paris" in answer and "(cut after 8 tokens: --max-new-tokens)" in answer
    assert flushes >= 8, "the answer came in one piece"
    assert re.search(r"first token +\d+ ms", out) and "tokens/s" in out and "golden mesh" in out
    assert "cache" not in out  # the first start checks that there is none


def test_the_second_start_needs_no_weights_and_gives_the_same_answer(runs):
    assert answers(runs["no cache"]) == answers(runs["first"], 1) == answers(runs["second"], 1)
    assert "/model: its weights are not there; using those packed on 2" in runs["second"][2]
    assert re.search(r"^cache: [\d.]+ MB written to /home/.cache/qwen25", runs["first"][2], re.M)
    assert "cache" not in runs["second"][1]


def test_damage_is_one_line_and_no_answer(runs):
    assert "/model: holds neither" in refusal(runs["damaged"], 2)
    unwritable = refusal(runs["unwritable"])
    assert "cannot be written" in unwritable and "--no-cache" in unwritable


def test_plain_text_seeds_and_speculation(runs):
    assert "Paris" in answers(runs["plain"])[0]
    one, other = answers(runs["sampled"])
    assert one == other, "the seed is the users', not the slot's"
    assert answers(runs["speculate"]) == answers(runs["no cache"])
    assert re.search(r"speculation +7 tokens in [1-7] steps; .* draft tokens", runs["speculate"][1])


def test_a_file_of_prompts_on_eight_chips(tmp_path):
    """The answers are a line of JSON each. Nothing else is written, and stderr is for progress at a terminal."""
    countries = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome"}
    prompts = [{"prompt": f"What is the capital of {country}?"} for country in countries]
    (tmp_path / "prompts.json").write_text(json.dumps([*prompts, "Count from 3 to 30."]))
    options = ["--prompts", "prompts.json", "--out", "answers.jsonl", "--max-new-tokens", "16"]
    command = DEMO, "--backend", "golden", "--mesh", "t3k", "--no-cache", *options
    done = run_python(*command, env=bare(tmp_path / "home"), cwd=tmp_path, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert "T3K, tp 8 x dp 1" in done.stdout and "[cut: --max-new-tokens]" in done.stdout
    records = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    for record, capital in zip(records, countries.values()):
        assert capital in record["answer"] and record["answer"] in done.stdout
        assert record["finish_reason"] == "stop" and 0 < record["new_tokens"] < 16
    assert records[3]["finish_reason"] == "length" and records[3]["new_tokens"] == 16
    assert {path.name for path in tmp_path.iterdir()} == {"answers.jsonl", "prompts.json"}


def test_a_checkpoint_of_another_family(tmp_path):
    model = save("qwen3", tmp_path / "model")
    options = ["--model", "model", "--prompt", "Hi", "--no-instruct", "--recipe", "bf16"]
    options += ["--out", "answer.jsonl"]
    command = DEMO, "--backend", "golden", "--mesh", "N150", "--no-cache", "--max-new-tokens", "8", *options
    done = run_python(*command, env=bare(tmp_path), cwd=tmp_path, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    tokenizer = ChatTokenizer(tmp_path / "model", instruct=False)
    answer = greedy(model, tokenizer.encode("Hi"), 8, tokenizer.stop_ids)
    (record,) = map(json.loads, (tmp_path / "answer.jsonl").read_text().splitlines())
    assert record["answer"] == tokenizer.hf.decode(answer, skip_special_tokens=True)


@pytest.mark.seven_b
@pytest.mark.make_test_on("N300")
def test_a_random_checkpoint_of_the_7bs_dims_gives_text(tmp_path):
    for words in (
        (f"{REPOSITORY}/lab/random_checkpoint.py", tmp_path / "random", 2),
        (DEMO, "--backend", "golden", "--model", tmp_path / "random", "--cache", tmp_path, "--max-new-tokens", "2"),
    ):
        done = run_python(*words, cwd=tmp_path, timeout=900)
        assert done.returncode == 0, done.stderr[-2000:]
    assert "cut after 2 tokens" in done.stdout
