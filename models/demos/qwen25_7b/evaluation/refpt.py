"""Reference files of tt-metal's ports (.refpt): a text's tokens, and what a reference model expects after each.

A file is torch's: a dictionary with reference_tokens [1, n] and top5_tokens [n - 1 or n, 5], whose row i are the five likeliest
successors of token i, best first. tt-metal's accuracy tests prefill the first half, feed the second token by token, and count how
often the port's first choice is the best of the five (top-1), and among them (top-5).
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from models.common.errors import UserError
from models.demos.qwen25_7b.evaluation.reference import HuggingFace
from models.demos.qwen25_7b.evaluation.texts import ForcedText

LONGEST = (
    1024  # tokens: tt-metal's writer begins a text anew after so many, whose expectations then miss what was before
)
ROWS = 32  # that share the second half out


@dataclass(frozen=True)
class Reference:
    tokens: list[int]
    top5: torch.Tensor  # [at least tokens - 1, 5]: row i is what follows token i

    @classmethod
    def load(cls, file: Path, vocab_size: int) -> "Reference":
        """UserError, naming the file, for one that is no reference of a model with this vocabulary."""
        try:
            contents = torch.load(file, weights_only=True)  # numbers only: the file may come from anywhere
        except Exception as error:  # torch raises what it likes for a file that is not its own
            raise UserError(f"{file} cannot be read as a reference file ({type(error).__name__})") from error
        if not isinstance(contents, dict) or {"reference_tokens", "top5_tokens"} - contents.keys():
            raise UserError(f"{file}: must have reference_tokens and top5_tokens")
        tokens, top5 = contents["reference_tokens"], contents["top5_tokens"]
        for name, tensor, shape in (("reference_tokens", tokens, "[1, n]"), ("top5_tokens", top5, "[n, 5]")):
            if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2 or tensor.is_floating_point():
                raise UserError(f"{file}: {name} must be token ids {shape}")
            if tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < vocab_size:
                raise UserError(f"{file}: {name} has ids outside 0..{vocab_size - 1}: it is of another model")
        if tokens.shape[0] != 1 or tokens.shape[1] < 4 or top5.shape[1] != 5 or len(top5) < tokens.shape[1] - 1:
            raise UserError(
                f"{file}: reference_tokens must be [1, n] with n of 4 or more, top5_tokens [n - 1 or n, 5]; got "
                f"{list(tokens.shape)} and {list(top5.shape)}"
            )
        return cls(tokens[0, :LONGEST].tolist(), top5[:LONGEST].long())

    @classmethod
    def make(cls, model: HuggingFace, tokens: list[int]) -> "Reference":
        reading = model.read([tokens])
        places = range(len(tokens) - 1)
        parts = [places[start : start + ROWS] for start in places[::ROWS]]
        return cls(tokens, torch.cat([reading.logits([0] * len(p), p).topk(5).indices for p in parts]))

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"reference_tokens": torch.tensor([self.tokens]), "top5_tokens": self.top5}, file)

    def texts(self) -> list[ForcedText]:
        """The second half in up to 32 pieces, each a text of its own that begins with all that stands before it.

        So a decode step reads a token of every piece, and each is expected as if the whole had been read token by token.
        """
        half = len(self.tokens) // 2
        pieces = min(ROWS, len(self.tokens) - half - 1)
        borders = [half + i * (len(self.tokens) - half - 1) // pieces for i in range(pieces + 1)]
        return [ForcedText(self.tokens[: end + 1], begin) for begin, end in zip(borders, borders[1:])]
