"""The kinds of choices that steps and passes make on the chips."""

from enum import Enum
from typing import Sequence

import ttnn

from models.demos.qwen25_7b.config.sampling import Sampling
from models.demos.qwen25_7b.tt.sampler import SamplingControls
from models.demos.qwen25_7b.tt.transformer import TtTransformer


class Choosing(Enum):
    """What a step does to choose tokens, for all its rows alike; each has a trace of its own, captured when it is needed."""

    LIKELIEST = "the largest logit"
    DRAWN = "as each row's options say"
    PENALISED = "the same, of logits that what was written has changed"

    @classmethod
    def of(cls, samplings: Sequence[Sampling]) -> "Choosing":
        """The least that does what all these ask for."""
        if any(sampling.penalised for sampling in samplings):
            return cls.PENALISED
        return cls.LIKELIEST if all(sampling.greedy for sampling in samplings) else cls.DRAWN

    def of_step(
        self, model: TtTransformer, pieces: list[ttnn.Tensor], controls: SamplingControls, tokens: ttnn.Tensor
    ) -> None:
        """Write each row's choice from a step's logits into `tokens`."""
        if self is Choosing.LIKELIEST:
            model.sampler.likeliest(pieces, tokens)
        elif self is Choosing.DRAWN:
            model.sampler.drawn(pieces, controls, tokens)
        else:
            model.sampler.penalised(pieces, controls, model.penalties, tokens, record=True)


def choose_again(
    model: TtTransformer, pieces: list[ttnn.Tensor], controls: SamplingControls, tokens: ttnn.Tensor
) -> None:
    """After a pass, where somebody has a penalty. Rows that the pass does not answer get a choice, too, which is why nothing
    is recorded."""
    model.sampler.penalised(pieces, controls, model.penalties, tokens, record=False)
