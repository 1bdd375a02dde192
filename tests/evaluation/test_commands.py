"""The commands as a user runs them: what they print and write, and what they refuse in one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.demos.qwen25_7b.evaluation.__main__ import main
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

REPOSITORY = Path(__file__).resolve().parents[2]
FEW = ["--texts", "5", "--beginning", "20", "--steps", "20"]

# Runs commands one after the other in one process, and prints what each of them printed as JSON.
MANY = """
import contextlib, io, json, sys
from models.demos.qwen25_7b.evaluation.__main__ import main

results = []
for argv in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(argv)
    results.append([status, out.getvalue()])
print()
print(json.dumps(results))
"""


def spoil(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"].zero_()
    save_file(tensors, model / "model.safetensors")


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """The directory that the commands ran in, and what each printed."""
    place = tmp_path_factory.mktemp("evaluation")
    (place / "sums.jsonl").write_text(
        "".join(json.dumps({"question": f"What is {a} + 1?", "answer": f"#### {a + 1}"}) + "\n" for a in (2, 4, 6))
    )
    (place / "Qwen2.5-1B").symlink_to(SMALL_CHECKPOINT)  # the name has a dot, as real ones have
    (place / "four.json").write_text(json.dumps({"mlp_in": "bfloat4_b", "layers": {"0": {"mlp_in": "bfloat8_b"}}}))
    spoil(Path(shutil.copytree(SMALL_CHECKPOINT, place / "spoilt")))
    commands = {
        "eval": ["eval", *FEW, "--recipes", "bf16,bfp8,bfp8-kv8,four.json"],
        "against": ["eval", *FEW, "--recipes", "bf16", "--model", "spoilt", "--against", f"{SMALL_CHECKPOINT}"],
        "prefill": ["eval", *FEW, "--prefill", "--recipes", "bfp8", "--model", "Qwen2.5-1B"],
        "text": ["eval", *FEW, "--recipes", "bf16", "--tp", "1", "--text", f"{REPOSITORY}/README.md", "--out", "text"],
        "ablate": ["ablate", *FEW, "--steps", "6", "--by", "group,layer", "--formats", "bfloat4_b"],
        "reference": ["reference", "--tokens", "40", "--out", "made/small.refpt"],
        "tasks": [
            "tasks",
            "--questions",
            "sums.jsonl",
            "--max-new-tokens",
            "12",
            "--max-seq-len",
            "64",
            "--limit",
            "2",
        ],
    }
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}"}
    done = subprocess.run(
        [sys.executable, "-c", MANY, json.dumps(list(commands.values()))],
        cwd=place, env=environment, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert all(status == 0 for status, _ in results), done.stderr[-3000:]
    return place / "generated/evaluation", {name: out for name, (_, out) in zip(commands, results)}


def rows(said: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in said.splitlines() if line.startswith("|")]


def assert_picture(file: Path):
    assert file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 10_000


def test_eval_says_how_far_each_recipe_is(ran):
    place, said = ran
    (_, _, *lines), written = rows(said["eval"]), json.loads((place / "small-checkpoint-decode.json").read_text())
    assert [line[0] for line in lines] == ["bf16", "bfp8", "bfp8-kv8", "four"]
    assert (written["model"], written["judged"], written["tp"], written["texts"]) == (
        "small checkpoint",
        "decode",
        2,
        5,
    )
    for line, recipe in zip(lines, written["recipes"]):
        assert recipe["recipe"]["name"] == line[0] and int(line[-1]) == recipe["tokens"]
        assert 0 < recipe["kl_mean"] < 0.01 and float(line[1]) == pytest.approx(recipe["kl_mean"], rel=0.01)
        assert recipe["kl_median"] < recipe["kl_mean"] < recipe["kl_max"] and 0.95 < recipe["top1"] <= recipe["top5"]
        assert recipe["nll"] == pytest.approx(recipe["reference_nll"], abs=0.05)
    kl = {recipe["recipe"]["name"]: recipe["kl_mean"] for recipe in written["recipes"]}
    assert kl["four"] > 1.2 * kl["bfp8"], "its MLP has 4 bits"
    assert kl["bfp8-kv8"] > 2 * kl["bf16"], "an 8-bit cache costs this checkpoint's K bias something"
    assert_picture(place / "small-checkpoint-decode.png")


def test_a_rounding_is_judged_by_what_it_was_rounded_from(ran):
    place, said = ran
    written = json.loads((place / "spoilt-decode.json").read_text())
    assert written["against"] == SMALL_CHECKPOINT.name and "against small" in said["against"]
    assert written["recipes"][0]["kl_mean"] > 0.05, "a layer's MLP is gone, which the spoilt model itself would not tell"


def test_prefill_is_judged_at_the_same_tokens(ran):
    place, said = ran
    names = ("small-checkpoint-decode", "Qwen2.5-1B-prefill")
    decode, prefill = (json.loads((place / f"{name}.json").read_text()) for name in names)
    (of_prefill,), of_decode = prefill["recipes"], decode["recipes"][1]
    assert "prefill: " in said["prefill"] and of_prefill["tokens"] == of_decode["tokens"]
    assert of_prefill["reference_nll"] == pytest.approx(of_decode["reference_nll"], rel=1e-6)
    assert 0 < of_prefill["kl_mean"] < 0.01 and of_prefill["kl_mean"] != of_decode["kl_mean"]


def test_a_text_of_ones_own_on_a_split_of_ones_own(ran):
    place, said = ran
    written = json.loads((place.parents[1] / "text/small-checkpoint-decode.json").read_text())
    assert (written["text"], written["tp"], written["dp"]) == ("README.md", 1, 2)
    assert written["recipes"][0]["tokens"] == 5 * 20 and "README.md" in said["text"]


def test_ablation_says_what_each_place_costs(ran):
    place, said = ran
    written = json.loads((place / "small-checkpoint-ablation.json").read_text())
    groups, layers = ["attention", "mlp_in", "mlp_out", "lm_head"], range(4)
    assert [(v["group"], v["layer"]) for v in written["variants"]] == [(g, None) for g in groups] + [
        (None, i) for i in layers
    ]
    base = written["base"]["kl_mean"]
    cost = {v["group"]: v["kl_mean"] - base for v in written["variants"][:4]}
    assert all(cost[group] > 0 for group in groups) and cost["attention"] > 10 * base, "4 bits are far too few for it"
    assert len(rows(said["ablate"])) == 2 + 1 + 8
    assert_picture(place / "small-checkpoint-ablation.png")


def test_a_reference_file_is_written(ran):
    place, _ = ran
    contents = torch.load(place.parents[1] / "made/small.refpt", weights_only=True)
    assert contents["reference_tokens"].shape == (1, 40) and contents["top5_tokens"].shape == (39, 5)


def test_tasks_are_scored(ran):
    place, said = ran
    written = json.loads((place / "small-checkpoint-tasks.json").read_text())
    assert written["results"]["questions"]["exact_match,flexible-extract"] == 1
    assert written["n-samples"]["questions"]["effective"] == 2 and "exact_match" in said["tasks"]


@pytest.mark.parametrize(
    "argv, said",
    [
        (["eval", "--recipes", "bf16,int3"], "int3"),
        (["eval", "--texts", "0"], "--texts must be 1 or more"),
        (["eval", "--steps", "5000"], "4096 positions"),
        (["eval", "--beginning", "x"], "--beginning"),
        (["eval", "--model", "no/such/model"], "no/such/model"),
        (["eval", "--mesh", "N600"], "N600"),
        (["eval", "--tp", "3"], "tp must divide"),
        (["eval", "--backend", "tea"], "tea"),
        (["eval", "--text", "absent.txt"], "absent.txt"),
        (["ablate", "--base", "int3"], "int3"),
        (["ablate", "--by", "group,head"], "head"),
        (["ablate", "--formats", "int3"], "int3"),
        (["reference", "--out", "x", "--tokens", "2000"], "--tokens"),
        (["reference", "--out", "x", "--tokens", "3"], "--tokens"),
        (["smollm2", "--out", "/"], "/ exists"),
        (["smollm2"], "--out"),
        (["tasks"], "--questions"),
        (["tasks", "--questions", "absent.jsonl"], "absent.jsonl"),
        (["tasks", "--questions", "x", "--recipe", "int3"], "int3"),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_what_cannot_be_is_one_line_and_status_2(argv, said, capsys):
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and len(error.splitlines()) == 1 and said in error
