"""The demo in another folder, with a bare environment and every option."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "models/demos/qwen25_7b/demo/demo.py"
PROMPTS = [
    "What is the capital of France?",
    {"prompt": "What is the capital of Japan?"},
    "What is the capital of Italy?",
]

# Runs the demo several times in one process. Prints the outputs as one JSON document.
MANY_RUNS = """
import contextlib, io, json, sys
from models.demos.qwen25_7b.demo import demo

class Pieces(io.StringIO):
    def __init__(self):
        super().__init__()
        self.flushed = []

    def flush(self):
        self.flushed.append(len(self.getvalue()))

results = []
for argv in json.loads(sys.argv[1]):
    out = Pieces()
    with contextlib.redirect_stdout(out):
        status = demo.main(argv)
    results.append([status, out.getvalue(), out.flushed])
print()
print(json.dumps(results))
"""


class Run:
    def __init__(self, place: Path, *command: str):
        self.work, home = place / "work", place / "home"
        self.work.mkdir(parents=True)
        home.mkdir()
        bare = {"PATH": os.environ["PATH"], "HOME": f"{home}"}
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self.work,
            env=bare,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> str:
        """Return the output. Check status, empty stderr, and that the run leaves no file."""
        out, err = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, err[-3000:]
        assert not err, "no library logs, and progress is for terminals"
        assert not list(self.work.iterdir()), "something was written into the user's folder"
        return out


def summary_of(out: str, where: str, users: int) -> str:
    """Return the figures at the end, which begin with the mesh and the number of users."""
    found = re.search(rf"^{where}, {users} user\(s\).*\Z", out, re.MULTILINE | re.DOTALL)
    assert found, out
    return found.group()


def answers_in(out: str) -> list[str]:
    """Return each user's prompt and answer."""
    return [part.strip() for part in re.split(r"^> |^N300, tp", out, flags=re.MULTILINE)[1:-1]]


def test_the_default_is_an_answer_on_an_n300(tmp_path):
    out = Run(tmp_path, f"{DEMO}", "--backend", "golden").finish()
    assert re.search(r"^> What is the capital of France\?\n.*Paris", out, re.MULTILINE)
    summary = summary_of(out, "N300.*", 1)
    assert (
        "golden mesh" in summary
        and re.search(r"first token +\d+ ms", summary)
        and "tokens/s" in summary
    )


def test_eight_chips_give_the_same_answer(tmp_path):
    out = Run(
        tmp_path, f"{DEMO}", "--backend", "golden", "--mesh", "T3K", "--max-new-tokens", "16"
    ).finish()
    assert "Paris" in out and "golden mesh" in summary_of(out, "T3K, tp 8.*", 1)


def test_a_prompt_file_on_one_chip_gives_whole_answers(tmp_path):
    (tmp_path / "prompts.json").write_text(json.dumps(PROMPTS))
    file, answers = f"{tmp_path / 'prompts.json'}", tmp_path / "answers.jsonl"
    out = Run(
        tmp_path,
        f"{DEMO}",
        "--backend",
        "golden",
        "--mesh",
        "n150",
        "--prompts",
        file,
        "--max-new-tokens",
        "16",
        "--out",
        f"{answers}",
    ).finish()
    records = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    capitals = (("France", "Paris"), ("Japan", "Tokyo"), ("Italy", "Rome"))
    for user, (country, capital) in enumerate(capitals):
        assert re.search(rf"^> .*{country}\?\n.*{capital}\.$", out, re.MULTILINE), out
        record = records[user]
        assert record["user"] == user and country in record["prompt"]
        assert capital in record["answer"] and record["answer"] in out
        assert record["finish_reason"] == "stop" and 0 < record["new_tokens"] < 16
    assert len(records) == 3 and {path.name for path in tmp_path.iterdir()} == {
        "answers.jsonl", "home", "prompts.json", "work"
    }  # fmt: skip
    assert "golden mesh" in summary_of(out, "N150.*", 3)


def test_streaming_plain_text_and_seeds(tmp_path):
    golden = ["--backend", "golden"]
    sampled = [
        "--batch-size",
        "2",
        "--temperature",
        "4",
        "--seed",
        "1",
        "--max-new-tokens",
        "8",
        "--recipe",
        "bf16",
    ]
    plain = ["--no-instruct", "--prompt", "The capital of France is", "--max-new-tokens", "6"]
    several = ["--speculate", "4", "--max-new-tokens", "8"]
    runs = [
        [*golden, *run] for run in (["--max-new-tokens", "8"], plain, sampled, sampled, several)
    ]
    program = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n{MANY_RUNS}"
    results = json.loads(Run(tmp_path, "-c", program, json.dumps(runs)).finish().splitlines()[-1])
    assert [status for status, _, _ in results] == [0] * len(runs)
    streamed, completed, first, again, verified = (out for _, out, _ in results)

    answer = re.search(r"^> .*\n(.*Paris.*)$", streamed, re.MULTILINE)
    seen = {at for at in results[0][2] if answer.start(1) < at <= answer.end(1)}
    assert len(seen) >= 4, "the answer came in one piece"
    assert re.search(r"^> The capital of France is\n.*Paris", completed, re.MULTILINE), completed
    one, other = answers_in(first)
    assert "capital of France?" in one and one == other, "the seed is the users', not the row's"
    assert answers_in(again) == [one, other], "the same seed, another text"
    assert answer.group() in verified and re.search(
        r"speculation +7 tokens in [1-7] steps .* draft tokens", verified
    ), verified


def test_more_chips_than_there_are(tmp_path):
    program = f"""
import sys; sys.path.insert(0, {str(REPOSITORY)!r})
from models.common.errors import UserError
from models.common.mesh import open_mesh, select_backend
select_backend("golden", "N300")
try:
    with open_mesh("T3K"):
        pass
except UserError as error:
    print("refused:", error)
"""
    run = Run(tmp_path, "-c", program)
    out, _ = run.process.communicate(timeout=120)
    refusal = re.search("^refused: .*$", out, re.MULTILINE).group()
    assert "T3K" in refusal and "8" in refusal and "2" in refusal


NARROWED = {  # options -> meshes and sizes allowed in a test's id
    ("--mesh", "n300", "--size", "7b", "--backend", "golden"): {"N300", "7b"},
    ("--mesh", "T3K"): {"T3K", "tiny", "7b"},
}


def test_pytests_options_narrow_what_is_collected(tmp_path):
    def start(number, *options):
        command = ["-m", "pytest", "--collect-only", f"{REPOSITORY}/tests/pcc/test_mlp.py"]
        return Run(tmp_path / f"{number}", *command, *options).process

    bad_mesh = start("nowhere", "--mesh", "N200")
    for process, allowed in [
        (start(i, *options), allowed) for i, (options, allowed) in enumerate(NARROWED.items())
    ]:
        out, err = process.communicate(timeout=300)
        words = set(re.findall(r"N150|N300|T3K|tiny|7b", " ".join(re.findall(r"\[.*?\]", out))))
        assert process.returncode == 0 and words == allowed, out + err
    out, err = bad_mesh.communicate(timeout=300)
    lines = [line for line in err.splitlines() if line.strip()]
    assert (
        bad_mesh.returncode != 0 and len(lines) == 1 and "N200" in lines[0] and "T3K" in lines[0]
    ), err
