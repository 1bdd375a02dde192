"""Reference files in tt-metal's form (.refpt), and the agreement of decode steps with one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

import torch
from qwen25_7b_lab.evaluation.teacher_forcing import predict_with_decode
from qwen25_7b_lab.evaluation.texts import ForcedText

from models.demos.qwen25_7b.errors import UserError

LONGEST = 1024  # tokens; tt-metal's writer starts a new context after 1024
ROWS = 32  # parts of a reference's second half: one for each slot of a batch


@dataclass(frozen=True)
class Reference:
    """A text and a reference model's predictions, as tt-metal's ports store them.

    The file is a torch dictionary: reference_tokens [1, n], and top5_tokens [n - 1 or n, 5]. Row i of top5_tokens has
    the five most likely successors of token i, best first. tt-metal's accuracy tests prefill the first half and feed
    the second half token by token. They count how often the port's first choice is the best (top-1) or one of the five
    (top-5).
    """

    tokens: list[int]
    top5: torch.Tensor  # [at least tokens - 1, 5]

    @classmethod
    def load(cls, file: Path, vocab_size: int) -> "Reference":
        """UserError: the file is of no such model."""
        try:
            contents = torch.load(file, weights_only=True)  # unpickling runs no code
            tokens, top5 = contents["reference_tokens"], contents["top5_tokens"]
            shapes = f"has {list(tokens.shape)} and {list(top5.shape)}"
            assert tokens.shape == (1, tokens.numel()) and top5.shape == (len(top5), 5), shapes
            assert tokens.numel() >= 4 and len(top5) >= tokens.numel() - 1, shapes
        except Exception as error:  # torch raises many kinds for a file that is not its own
            raise UserError(
                f"{file} is no .refpt file with reference_tokens [1, n] and top5_tokens [n - 1 or n, 5]: {error!r}"
            ) from error
        if not all(0 <= int(x.min()) <= int(x.max()) < vocab_size for x in (tokens, top5)):
            raise UserError(f"{file}: has ids outside 0..{vocab_size - 1}: the file is of another model")
        return cls(tokens[0, :LONGEST].tolist(), top5[:LONGEST].long())

    def texts(self) -> list[ForcedText]:
        """The second half in up to 32 parts. Each is a text that begins with all tokens before the part.

        A decode step then reads a token of every part, and the predictions are those of reading the whole text
        token by token.
        """
        half = len(self.tokens) // 2
        count = min(ROWS, len(self.tokens) - half - 1)
        borders = [half + i * (len(self.tokens) - half - 1) // count for i in range(count + 1)]
        return [ForcedText(self.tokens[: end + 1], begin) for begin, end in zip(borders, borders[1:])]


def agreement(replicas: Sequence, reference: Reference) -> tuple[float, float, int]:
    """(top-1, top-5, tokens) of decode steps, over the second half of the text."""
    first, among = [], []
    texts = reference.texts()
    for prediction in predict_with_decode(replicas, texts):
        choices = prediction.logits.float().argmax(-1)
        for text, position, choice in zip(prediction.texts, prediction.positions, choices):
            if position >= texts[text].prompt_length:  # before that the prediction is prefill's
                first.append(bool(choice == reference.top5[position, 0]))
                among.append(bool((choice == reference.top5[position]).any()))
    return sum(first) / len(first), sum(among) / len(among), len(first)
