"""Outputs and files of the commands. Refused inputs are in tests/commands/test_refusals.py."""

import json
import os
import shutil
from pathlib import Path

import pytest
from programs import run_python
from qwen25_7b_lab.evaluation.texts import HELD_OUT
from safetensors.torch import load_file, save_file

from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from tests.demo.test_demo import RUNS

REPOSITORY = Path(__file__).resolve().parents[2]
FEW = ["--texts", "4", "--prompt-tokens", "20", "--steps", "12"]
LATE = ["--recipes", "bfp8", "--texts", "2", "--steps", "8", "--text", f"{HELD_OUT}"]

SUMS = (2, 3), (4, 6), (6, 7)  # a, and what the file says that a + 1 is


def spoil(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"].zero_()
    save_file(tensors, model / "model.safetensors")


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """The output directory, and each command's printed output."""
    place = tmp_path_factory.mktemp("evaluation")
    (place / "sums.jsonl").write_text(
        "".join(json.dumps({"question": f"What is {a} + 1?", "answer": f"#### {c}"}) + "\n" for a, c in SUMS)
    )
    (place / "Qwen2.5-1B").symlink_to(SMALL_CHECKPOINT)  # the name has a dot, as real ones have
    (place / "four.json").write_text(json.dumps({"mlp_in": "bfloat4_b", "layers": {"0": {"mlp_in": "bfloat8_b"}}}))
    spoil(Path(shutil.copytree(SMALL_CHECKPOINT, place / "spoilt")))
    commands = {
        "eval": ["eval", *FEW, "--recipes", "bfp8,bfp8-kv8,four.json"],
        "quantized": [
            *("eval", *FEW, "--recipes", "bf16,four.json", "--model", f"{SMALL_CHECKPOINT}"),
            *("--quantized", "spoilt", "--text", f"{HELD_OUT}"),
        ],
        "by position": ["eval", *LATE, "--by-position", "32,64"],
        "late": ["eval", *LATE, "--prompt-tokens", "56", "--out", "late"],
        "text": [
            *("eval", *FEW, "--recipes", "bf16", "--tp", "1", "--out", "text"),
            *("--text", f"{REPOSITORY}/README.md", "--model", "Qwen2.5-1B"),
        ],
        "tasks": [
            *("tasks", "--questions", "sums.jsonl", "--tp", "1,2", "--recipes", "bf16,bfp8"),
            *("--max-new-tokens", "12", "--max-seq-len", "64", "--limit", "2"),
        ],
    }
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}"}
    words = "qwen25_7b_lab.evaluation.__main__", json.dumps([("true", argv) for argv in commands.values()])
    done = run_python("-c", RUNS, *words, cwd=place, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert all(status == 0 for status, *_ in results), results
    return place / "generated/evaluation", {name: out for name, (_, out, *_) in zip(commands, results)}


def rows(output: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines() if line.startswith("|")]


def test_eval_reports_the_divergence_of_each_recipe(ran):
    place, output = ran
    (_, _, *lines), written = (
        rows(output["eval"]),
        json.loads((place / "small-checkpoint-N300-tp2-decode.json").read_text()),
    )
    assert [line[0] for line in lines] == ["bfp8", "bfp8-kv8", "four"]
    conditions = [written[name] for name in ("model", "tp", "texts")]
    assert conditions == ["small checkpoint", 2, 4]
    for line, recipe in zip(lines, written["results"]):
        assert recipe["recipe"]["name"] == line[0] and int(line[-1]) == recipe["tokens"]
        assert recipe["phase"] == line[1] == "decode"
        assert 0 < recipe["kl_mean"] < 0.01
        assert float(line[3]) == pytest.approx(recipe["kl_mean"], rel=0.01)
        assert recipe["kl_median"] < recipe["kl_mean"] < recipe["kl_max"] and 0.95 < recipe["top1"] <= recipe["top5"]
        assert recipe["nll"] == pytest.approx(recipe["reference_nll"], abs=0.05)
    kl = {recipe["recipe"]["name"]: recipe["kl_mean"] for recipe in written["results"]}
    assert kl["four"] > 1.2 * kl["bfp8"], "its MLP has 4 bits"
    assert kl["bfp8"] != kl["bfp8-kv8"], "they differ in the cache alone"


def test_quantized_weights_are_scored_beside_the_models_own(ran):
    """The quantized weights lack one layer's MLP. The reference is Hugging Face's model of --model.

    A reference with the damaged weights would show no divergence.
    """
    place, output = ran
    written = json.loads((place / "small-N300-tp2-decode.json").read_text())
    names = ["bf16", "four", "four, quantized"]
    assert [line[0] for line in rows(output["quantized"])[2:]] == names, "only 4 bits run twice"
    assert [entry["weights"] for entry in written["results"]] == ["as they are"] * 2 + ["spoilt"]
    _, rounded, spoilt = (entry["kl_mean"] for entry in written["results"])
    assert spoilt > 0.05 and spoilt > 5 * rounded


def test_a_bucket_has_the_scores_of_an_evaluation_at_its_positions(ran):
    """The last bucket's context is that of a plain evaluation, so its numbers are equal."""
    place, output = ran
    written = json.loads((place / "small-checkpoint-N300-tp2-by-position.json").read_text())
    buckets = {(b["phase"], b["up to"]): b for b in written["results"]}
    assert len(buckets) == len(written["results"]) == 4
    late = place.parents[1] / "late/small-checkpoint-N300-tp2-decode.json"
    (plain,) = json.loads(late.read_text())["results"]
    first, last = buckets["decode", 32], buckets["decode", 64]
    assert plain.pop("kl_of_weights") is None
    assert {name: last[name] for name in plain} == plain
    assert first["tokens"] == plain["tokens"] == 16 and first["nll"] != plain["nll"]
    for end in (32, 64):  # prefill is scored at the same tokens
        of_decode, of_prefill = buckets["decode", end], buckets["prefill", end]
        assert of_prefill["tokens"] == of_decode["tokens"]
        assert of_prefill["reference_nll"] == pytest.approx(of_decode["reference_nll"], rel=1e-6)
        assert 0 < of_prefill["kl_mean"] < 0.01 and of_prefill["kl_mean"] != of_decode["kl_mean"]
    for bucket in written["results"]:
        assert 1e-6 < bucket["kl_of_weights"] < bucket["kl_mean"], "weights are one source of error"


def test_a_users_text_on_a_chosen_split(ran):
    place, output = ran
    written = json.loads((place.parents[1] / "text/Qwen2.5-1B-N300-tp1-decode.json").read_text())
    assert (written["text"], written["tp"], written["dp"]) == ("README.md", 1, 2)
    assert written["results"][0]["tokens"] == 4 * 12 and "README.md" in output["text"]


def test_tasks_are_scored_in_one_table_over_splits(ran):
    """Each split and recipe answers both questions right, with the same text. The file has one of them wrong."""
    place, output = ran
    written = json.loads((place / "small-checkpoint-N300-tp1-tasks.json").read_text())
    runs = [(f"N300, tp {n} x dp {2 // n}", r) for n in (1, 2) for r in ("bf16", "bfp8")]
    assert [(run["split"], run["recipe"]["name"]) for run in written["runs"]] == runs
    for run in written["runs"]:
        assert run["results"]["questions"]["exact_match,flexible-extract"] == 0.5
        assert run["results"]["questions"]["exact_match,strict-match"] == 0, "it never learnt to write the mark"
        assert run["n-samples"]["questions"]["effective"] == 2
        assert run["answers"] == ["2 + 1 = 3.", "4 + 1 = 5."]
    exact = [line for line in rows(output["tasks"]) if line[3] == "exact_match, flexible-extract"]
    assert [(line[0], line[1]) for line in exact] == runs
    assert {(line[2], line[4], line[6]) for line in exact} == {("questions", "0.5000", "2")}
