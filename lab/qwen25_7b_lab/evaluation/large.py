"""What `eval` adds for a large model: files from which it goes on, a reference file for a card, words for an issue."""

import hashlib
from pathlib import Path
from typing import Optional, Sequence

import torch

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import read_json, write_whole
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint

from .model import EvaluatedModel, file_states
from .readiness import CHOICES, VERSION
from .reference import HuggingFace, Reading, parameters
from .texts import Sample

HALF = 512  # tokens that are prefilled, before the 511 scored ones
# Seconds times cores, of two idle ones, for a billion weights: of a row of a product, of reading them, of placing them.
ROW, READ, PLACE = 0.03, 1.0, 8
PUBLISHED = (
    "tt_transformers publishes for Qwen2.5-7B on an N300, by teacher forcing of 511 tokens after 512: top-1 84 %, "
    "top-5 96 % (models/tt_transformers/PERF.md of tt-metal)."
)


def digest(checkpoint: Checkpoint, samples: Sequence[Sample]) -> str:
    """Of the checkpoint's files and of the texts."""
    return hashlib.sha256(repr((file_states(checkpoint), [sample.texts for sample in samples])).encode()).hexdigest()


def read_once(file: Path, model: EvaluatedModel, samples: Sequence[Sample]) -> list[Reading]:
    """Hugging Face's reading of each sample: from the file, if an earlier run wrote it; else the file is written."""
    known, hugging_face = digest(model.checkpoint, samples), HuggingFace(model.directory)
    if file.exists():
        try:
            contents = torch.load(file, weights_only=True)
            if contents["of"] == known:
                return [Reading(hugging_face.model.lm_head, states) for states in contents["states"]]
        except Exception:  # torch raises many kinds for a file that is cut: it is written again
            pass
    readings = [hugging_face.read(sample.texts) for sample in samples]
    contents = {"of": known, "states": [reading.states for reading in readings]}
    write_whole(file, lambda path: torch.save(contents, path))
    return readings


def earlier_results(file: Path, conditions: dict) -> list[dict]:
    """The results of an interrupted run under the same conditions."""
    try:
        contents = read_json(file)
        results = contents["results"] if conditions.items() <= contents.items() else []
        return results[: len(results) // 2 * 2]  # of a recipe both or none
    except (UserError, AttributeError, KeyError):
        return []


def write_refpt(file: Path, sample: Sample, reading: Reading) -> None:
    """Write Hugging Face's choices in tt-metal's two forms: tt_transformers' accuracy test, and its readiness check."""
    (ids,) = sample.texts
    rows = [range(at, at + 256) for at in range(0, 2 * HALF, 256)]
    best = torch.cat([reading.logits([0] * len(at), at).topk(CHOICES).indices.int() for at in rows])
    tokens = torch.tensor([ids])
    entry = {
        "prompt_tokens": tokens[:, :HALF],
        "generated_tokens": tokens[:, HALF:],
        "topk_tokens": best[HALF - 1 : -1],
    }
    contents = {"format_version": VERSION, "entries": [entry], "reference_tokens": tokens, "top5_tokens": best[:-1, :5]}
    write_whole(file, lambda path: torch.save(contents, path))


def minutes(checkpoint: Checkpoint, sample: Sample, recipes: int, cores: int) -> int:
    """Minutes that a run takes on idle cores, as measured on two (PERF.md)."""
    texts, prompt, steps = len(sample.texts), sample.prompt_length, sample.end - sample.prompt_length
    tokens = texts * len(sample.texts[0]) + 2 * HALF
    prefills = texts * (READ + ROW * prompt) + 2 * (READ + ROW * HALF)
    decode = steps * (READ + ROW * (texts + 1)) + 32 * (READ + ROW * 17)
    seconds = ROW * tokens + PLACE + recipes * (PLACE + prefills + decode)
    return round(seconds * parameters(checkpoint) / 1e9 / cores / 60) + 1


def words(title: str, results: Sequence[dict], refpt: Optional[Path]) -> str:
    """Lines for an issue. results: of the sample, then of the long text, recipe by recipe."""
    lines = [title]
    for sample, halves in zip(results[::2], results[1::2]):
        lines += [
            f"- {sample['recipe']['name']}: KL {sample['kl_mean']:.3g} nats from Hugging Face's float32, top-1 "
            f"{sample['top1']:.1%}, top-5 {sample['top5']:.1%} ({sample['tokens']} tokens); {halves['tokens']} tokens "
            f"after {HALF}: top-1 {halves['top1']:.1%}, top-5 {halves['top5']:.1%}"
        ]
    lines += [PUBLISHED, f"A card compares with the same float32: make bringup MODEL=... REFERENCE={refpt}"]
    return "\n".join(lines)
