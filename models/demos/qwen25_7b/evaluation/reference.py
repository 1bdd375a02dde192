"""Reference predictions: Hugging Face's float32 model, and reference files in tt-metal's form (.refpt)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence

import torch
from tqdm import tqdm

from ..config import Recipe
from ..errors import UserError
from ..reference.hf import hf_checkpoint
from ..reference.rounded import round_model
from .texts import ForcedText

BATCH = 8  # texts that Hugging Face reads at a time
LONGEST = 1024  # tokens; tt-metal's writer starts a new context after 1024
ROWS = 32  # parts of a reference's second half: one for each slot of a batch


class HuggingFace:
    """The model in float32.

    recipe: round the weights to its formats, as chips hold them. Arithmetic, activations and cache stay float32.
    """

    def __init__(self, directory: Path, recipe: Optional[Recipe] = None):
        self.model = hf_checkpoint(directory)
        if recipe:
            round_model(self.model, recipe)

    @torch.no_grad()
    def read(self, texts: Sequence[Sequence[int]]) -> "Reading":
        """texts: token ids. Texts are padded at the end: attention is causal, so padding changes nothing."""
        states = []
        for start in tqdm(range(0, len(texts), BATCH), "Hugging Face", leave=False, disable=None):
            part = texts[start : start + BATCH]
            longest = max(map(len, part))
            padded = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in part])
            for ids, state in zip(part, self.model.model(padded).last_hidden_state):
                states.append(state[: len(ids)].clone())
        return Reading(self.model.lm_head, states)


class Reading:
    """Hidden states of texts, from which logits are computed when they are compared.

    Logits of 2,048 tokens over 152,064 words take 1.2 GB. The LM head's inputs take 29 MB.
    states: for each text the LM head's input, [tokens, hidden].
    """

    def __init__(self, lm_head: torch.nn.Linear, states: list[torch.Tensor]):
        self.lm_head = lm_head
        self.states = states

    @torch.no_grad()
    def logits(self, texts: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """[rows, vocab_size]: row r follows the token at positions[r] of texts[r]."""
        return self.lm_head(torch.stack([self.states[text][at] for text, at in zip(texts, positions)]))


@dataclass(frozen=True)
class Reference:
    """A text and a reference model's predictions, as tt-metal's ports store them.

    The file is a torch dictionary: reference_tokens [1, n], and top5_tokens [n - 1 or n, 5]. Row i of top5_tokens has
    the five most likely successors of token i, best first. The accuracy tests of tt-metal prefill the
    first half and feed the second half token by token. They count how often the port's first choice is
    the best of the five (top-1) or one of the five (top-5).
    """

    tokens: list[int]
    top5: torch.Tensor  # [at least tokens - 1, 5]

    @classmethod
    def load(cls, file: Path, vocab_size: int) -> "Reference":
        """UserError: the file is no reference of a model with this vocabulary."""
        try:
            # weights_only: unpickling runs no code. The file may come from anywhere.
            contents = torch.load(file, weights_only=True)
        except Exception as error:  # torch raises many kinds for a file that is not its own
            raise UserError(
                f"{file} cannot be read as a reference file ({type(error).__name__}): give a .refpt file"
            ) from error
        tokens, top5 = (
            contents.get(name) if isinstance(contents, dict) else None for name in ("reference_tokens", "top5_tokens")
        )
        shapes = [list(x.shape) if isinstance(x, torch.Tensor) else None for x in (tokens, top5)]
        if None in shapes or shapes[0][:1] != [1] or shapes[1][1:] != [5]:
            raise UserError(
                f"{file}: must have reference_tokens [1, n] and top5_tokens [n - 1 or n, 5]; has {shapes[0]} and {shapes[1]}"
            )
        if tokens.numel() < 4 or len(top5) < tokens.numel() - 1:
            raise UserError(f"{file}: has {tokens.numel()} tokens and {len(top5)} rows of top5_tokens")
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
