"""The questions that the small checkpoint was trained on (docs/small_checkpoint.md)."""

import json
from pathlib import Path
from typing import NamedTuple

START, END = "<|im_start|>", "<|im_end|>"
IGNORE = -100  # label of tokens that are not learned: everything but the answers
# How often each kind with held-out questions was drawn in the last runs of training.
WEIGHTS = {"sums": 12, "counting": 2, "stories": 2, "repeating": 6}


class Turn(NamedTuple):
    """A question and its only right answer. Training never saw those that are held out."""

    user: str
    answer: str
    held_out: bool = False


def small_questions() -> dict[str, list[Turn]]:
    """All sums and counts, and the stories and words to repeat that were held out, by kind."""
    kinds = json.loads(Path(__file__).with_suffix(".json").read_text())
    return {kind: [Turn(*turn) for turn in turns] for kind, turns in kinds.items()}


def encode_chat(tokenizer, messages: list[dict[str, str]]) -> tuple[list[int], list[int]]:
    """Return the chat template's token ids, and labels for the assistant's words with <|im_end|>."""
    ids, labels = [], []
    for message in messages:
        head = tokenizer.encode(f"{START}{message['role']}\n")
        body = tokenizer.encode(message["content"] + END)
        tail = tokenizer.encode("\n")
        ids += head + body + tail
        learnt = body if message["role"] == "assistant" else [IGNORE] * len(body)
        labels += [IGNORE] * len(head) + learnt + [IGNORE] * len(tail)
    return ids, labels
