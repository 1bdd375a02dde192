"""What vLLM asks of a row's next token, in our words. Nothing here raises: a request that did would end the engine."""

from collections import OrderedDict
from typing import Any, NamedTuple, Optional, Sequence

import torch

from models.demos.qwen25_7b.config.sampling import GREEDY, Sampling, Seen
from models.demos.qwen25_7b.serving.noise import SEEDS, stream_key

NO_SEED = -1  # vLLM's other word for None
COLDEST = 1e-3  # the lowest temperature of Sampling; vLLM's own is 0.01
_FIELDS = (
    "temperature", "top_k", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
    "enable_log_probs",
)  # fmt: skip
REMEMBERED = 128  # texts: four times those that are written at once


class Wish(NamedTuple):
    """How a row's next token is chosen. key: noise.stream_key of its seed."""

    sampling: Sampling = GREEDY
    key: int = 0
    log_prob: bool = False  # vLLM's raw_logprobs: of the logits as they are, before temperature and penalties

    @property
    def on_host(self) -> bool:
        return not self.sampling.on_device

    @property
    def reads_logits(self) -> bool:
        return self.on_host or self.log_prob

    @property
    def remembers(self) -> bool:
        """Whether it matters which of a text's tokens are the answer's."""
        return self.sampling.presence_penalty != 0 or self.sampling.frequency_penalty != 0


def wishes(params: Any, rows: int) -> list[Wish]:
    """params: the plugin's TTSamplingParams; each of its fields a list of `rows` or more values, or one for all rows."""
    return [_wish(*(_of_row(getattr(params, name), row) for name in _FIELDS)) for row in range(rows)]


def _of_row(value: Any, row: int) -> Any:
    return value[row] if isinstance(value, (list, tuple)) else value


def _wish(heat, top_k, top_p, repetition_penalty, presence_penalty, frequency_penalty, seed, enable_log_probs) -> Wish:
    seed = None if seed is None or seed == NO_SEED else int(seed) % SEEDS
    if top_p <= 0:  # the likeliest token alone
        top_k, top_p = 1, 1.0
    sampling = Sampling(
        temperature=max(heat, COLDEST) if heat > 0 else 0.0,
        top_k=max(0, int(top_k)),  # off: 0, or the size of the vocabulary
        top_p=min(top_p, 1.0),
        seed=seed,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
    )
    return Wish(sampling, stream_key(seed), bool(enable_log_probs))


def seen_rows(prompt_tokens: Optional[torch.Tensor], output_tokens: Optional[torch.Tensor], rows: int) -> list[Seen]:
    """What each row's text has so far; [rows, longest] int32 both, -1 behind a row's own, None where nobody has a penalty."""
    if prompt_tokens is None or output_tokens is None:
        return [Seen()] * rows
    return [Seen(_own(prompt_tokens[row]), _own(output_tokens[row])) for row in range(rows)]


def _own(tokens: torch.Tensor) -> list[int]:
    return tokens[tokens >= 0].tolist()


class Answers:
    """Where the prompt of a text ends that was written in part, taken from its row, and comes back as one long prompt.

    vLLM does so when blocks run short, and does not say that the text is no prompt. Presence and frequency penalties want
    to know. A text is recognised by all of its tokens; a new prompt that is just what was written lately, to the token,
    is taken for it, for the one token that follows.
    """

    def __init__(self):
        self._recent: OrderedDict[tuple[int, ...], int] = OrderedDict()  # tokens so far -> of these, the prompt's

    def written(self, seen: Seen, token: int) -> None:
        """A step chose `token` for this text."""
        text = *seen.prompt, *seen.answer
        self._recent.pop(text, None)
        self._recent[(*text, token)] = len(seen.prompt)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)

    def seen(self, tokens: Sequence[int]) -> Seen:
        """All tokens of what comes as a prompt, parted."""
        prompt = self._recent.get(tuple(tokens), len(tokens))
        return Seen(tokens[:prompt], tokens[prompt:])
