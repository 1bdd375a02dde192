"""The small checkpoint's score on each kind of question, in float32 and in bfloat16.

    python lab/small_checkpoint/measure.py [--checkpoint DIR] [--each 100]

An answer is right if each of its tokens, and the stop token, is the model's first choice. Three runs are
compared: float32, bfloat16 with sdpa, and bfloat16 with eager attention. Eager attention also rounds the
scores and their softmax. All three use the file's bfloat16 weights.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from corpus import WEIGHTS, draw_chat, make_questions
from small_tokenizer import encode_raw
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2ForCausalLM

from models.demos.qwen25_7b.reference.small import IGNORE, SMALL_CHECKPOINT, Turn, encode_chat

RUNS = {"fp32": (torch.float32, "sdpa"), "bf16": (torch.bfloat16, "sdpa"), "bf16 eager": (torch.bfloat16, "eager")}
Document = tuple[list[int], list[int]]  # ids and labels; the labels cover one answer


@dataclass
class Counts:
    """Results for one kind of question."""

    answers: int = 0
    tokens: int = 0
    right: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RUNS, 0))
    # Tokens, and whole answers, that are equal to fp32's.
    same_token: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RUNS, 0))
    same_answer: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RUNS, 0))
    # For each answer the smallest lead of the first choice.
    margins: list[float] = field(default_factory=list)


def load(checkpoint: Path, run: str) -> Qwen2ForCausalLM:
    dtype, attention = RUNS[run]
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, attn_implementation=attention).eval()


@torch.no_grad()
def answer_logits(model: Qwen2ForCausalLM, documents: list[Document]) -> list[torch.Tensor]:
    """The float32 logits that predict each document's answer, [tokens of the answer, vocab]."""
    length = max(len(ids) for ids, _ in documents)
    padded = torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in documents])  # causal: padding is not seen
    logits = model(input_ids=padded).logits.float()
    before_answer = [[p - 1 for p, label in enumerate(labels) if label != IGNORE] for _, labels in documents]
    return [logits[i, positions] for i, positions in enumerate(before_answer)]


def measure(models: dict[str, Qwen2ForCausalLM], documents: list[Document], batch: int = 16) -> Counts:
    counts = Counts()
    documents = sorted(documents, key=lambda document: len(document[0]))
    for start in range(0, len(documents), batch):
        part = documents[start : start + batch]
        logits = {run: answer_logits(model, part) for run, model in models.items()}
        for i, (_, labels) in enumerate(part):
            truth = torch.tensor([label for label in labels if label != IGNORE])
            choice = {run: values[i].argmax(-1) for run, values in logits.items()}
            top = logits["fp32"][i].topk(2).values
            counts.answers += 1
            counts.tokens += len(truth)
            counts.margins.append((top[:, 0] - top[:, 1]).min().item())
            for run in models:
                same = choice[run] == choice["fp32"]
                counts.right[run] += int(bool((choice[run] == truth).all()))
                counts.same_token[run] += int(same.sum())
                counts.same_answer[run] += int(bool(same.all()))
    return counts


def single(tokenizer: PreTrainedTokenizerFast, kind: str, turn: Turn) -> Document:
    """One question on its own: a chat of one turn, or a text to continue."""
    if kind == "raw":
        return encode_raw(tokenizer, turn)
    return encode_chat(
        tokenizer, [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.answer}]
    )


def last_of_chat(
    tokenizer: PreTrainedTokenizerFast, questions: dict[str, list[Turn]], rng: random.Random, at_least: int
) -> Document:
    """A chat of several turns and at least this number of tokens. Only the last answer counts."""
    messages = []
    while not messages or len(encode_chat(tokenizer, messages)[0]) < at_least:
        messages += [m for m in draw_chat(questions, rng) if m["role"] != "system"]
    ids, labels = encode_chat(tokenizer, messages)
    before = len(encode_chat(tokenizer, messages[:-1])[0])
    return ids, [IGNORE] * before + labels[before:]


def show_answers(directory: Path, tokenizer: PreTrainedTokenizerFast, each: int) -> None:
    """A table with a row for each kind of question, `each` questions a row.

    directory: of a checkpoint.
    """
    torch.set_num_threads(2)
    models = {run: load(directory, run) for run in RUNS}
    questions, rng = make_questions(), random.Random(1)

    sets: dict[str, list[Document]] = {}
    for kind in (*WEIGHTS, "raw"):
        for name, held_out in ((kind, False), (f"{kind}, held out", True)):
            turns = [turn for turn in questions[kind] if turn.held_out == held_out]
            if turns:
                some = rng.sample(turns, min(each, len(turns)))
                sets[name] = [single(tokenizer, kind, turn) for turn in some]
    for at_least in (100, 300, 480):
        sets[f"chat of {at_least}+ tokens"] = [
            last_of_chat(tokenizer, questions, rng, at_least) for _ in range(max(1, each // 3))
        ]

    print(
        "| questions | answers | tokens | right, fp32 | right, bf16 | right, bf16 eager | bf16 = fp32 | eager = fp32 | "
        "token agreement bf16, eager | smallest margin: 1 %, median |"
    )
    print("|" + "---|" * 10)
    for name, documents in sets.items():
        counts = measure(models, documents)
        margins = torch.tensor(counts.margins)
        right = " | ".join(f"{100 * counts.right[run] / counts.answers:.1f} %" for run in RUNS)
        same = " | ".join(f"{counts.same_answer[run]}/{counts.answers}" for run in list(RUNS)[1:])
        tokens = ", ".join(f"{100 * counts.same_token[run] / counts.tokens:.2f} %" for run in list(RUNS)[1:])
        low = f"{margins.quantile(0.01):.1f}, {margins.median():.1f}"
        print(f"| {name} | {counts.answers} | {counts.tokens} | {right} | {same} | {tokens} | {low} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=SMALL_CHECKPOINT, help="directory")
    parser.add_argument("--each", type=int, default=100, help="questions of each kind")
    args = parser.parse_args()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.checkpoint)
    show_answers(args.checkpoint, tokenizer, args.each)


if __name__ == "__main__":
    main()
