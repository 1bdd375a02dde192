"""A language model for EleutherAI's lm-eval, run by our replicas in batches, so that any of its tasks can judge them.

Log-likelihoods are teacher-forced by decode steps, as text is generated; text comes from the Generator.
"""

from typing import Any, NamedTuple, Sequence

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from models.common.errors import UserError
from models.demos.qwen25_7b.config.sampling import GREEDY, Sampling
from models.demos.qwen25_7b.evaluation.forcing import forced
from models.demos.qwen25_7b.evaluation.texts import ForcedText
from models.demos.qwen25_7b.serving.generator import Generator
from models.demos.qwen25_7b.serving.replica import Replica
from models.demos.qwen25_7b.serving.text import Text

NEW_TOKENS = 256  # where a task does not say how many


class Wanted(NamedTuple):
    """How a request's text is to be generated and where it ends."""

    until: tuple[str, ...]
    new_tokens: int
    temperature: float
    top_k: int
    top_p: float

    @classmethod
    def of(cls, options: dict[str, Any]) -> "Wanted":
        """options: a request's generation_kwargs; what we do not do is refused."""
        known = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}
        if options.keys() - known:
            unknown = ", ".join(sorted(options.keys() - known))
            raise UserError(
                f"the task asks for {unknown} in its generation_kwargs; known are {', '.join(sorted(known))}"
            )
        until = options.get("until") or ()
        sampled = options.get("do_sample", False)
        return cls(
            until=(until,) if isinstance(until, str) else tuple(until),
            new_tokens=options.get("max_gen_toks", NEW_TOKENS),
            temperature=options.get("temperature", 1.0) if sampled else 0.0,
            top_k=options.get("top_k", 0),
            top_p=options.get("top_p", 1.0),
        )

    def sampling(self, seed: int) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, seed) if self.temperature else GREEDY


class ReplicaLM(TemplateLM):
    """text: how the model's tokens are read and where its answers end."""

    def __init__(self, replicas: Sequence[Replica], text: Text):
        super().__init__()
        self.replicas, self.text = replicas, text
        self.generator = Generator(replicas)
        self.tokenizer = text.tokenizer
        config = replicas[0].model.config
        self.stop_ids = text.stop_ids | set(config.eos_token_ids)

    @property
    def max_length(self) -> int:
        return self.replicas[0].model.max_seq_len

    @property
    def max_gen_toks(self) -> int:
        return NEW_TOKENS

    @property
    def batch_size(self) -> int:
        return self.generator.users

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has nothing before it."""
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path)

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self.tokenizer.chat_template or ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_) -> list[int]:
        """A chat template writes special tokens itself, and Qwen's tokenizer adds none."""
        return self.tokenizer.encode(string, add_special_tokens=False)

    def _loglikelihood_tokens(self, requests, disable_tqdm: bool = False, **_) -> list[tuple[float, bool]]:
        texts = [self._forced(context, continuation) for _, context, continuation in requests]
        sums, greedy = [0.0] * len(texts), [True] * len(texts)
        for expected in forced(self.replicas, texts):
            following = [texts[text].ids[at + 1] for text, at in zip(expected.texts, expected.positions)]
            logits = expected.logits.float()
            chances = logits.log_softmax(-1)
            best = logits.argmax(-1).tolist()
            for row, (text, token) in enumerate(zip(expected.texts, following)):
                sums[text] += float(chances[row, token])
                greedy[text] = greedy[text] and best[row] == token
        answers = list(zip(sums, greedy))
        for (strings, _, _), answer in zip(requests, answers):
            if strings is not None:
                self.cache_hook.add_partial("loglikelihood", strings, answer)
        return answers

    def _forced(self, context: list[int], continuation: list[int]) -> ForcedText:
        """The last token is never read, so one more than max_length fits; a longer context loses its beginning."""
        if not 1 <= len(continuation) <= self.max_length:
            raise UserError(f"a continuation must be 1 to {self.max_length} tokens, got {len(continuation)}")
        ids = (context + continuation)[-(self.max_length + 1) :]
        return ForcedText(ids, len(ids) - len(continuation))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        windows, owners = [], []
        for owner, request in enumerate(requests):
            (string,) = request.args
            ids = self.tok_encode(string)
            rolling = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
            for window in map(make_disjoint_window, rolling):
                windows.append((None, *window))
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, (total, _) in zip(owners, self._loglikelihood_tokens(windows)):
            totals[owner] += total
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        answers = [""] * len(requests)
        groups: dict[Wanted, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(Wanted.of(request.args[1]), []).append(index)
        for wanted, indices in groups.items():
            for start in range(0, len(indices), self.batch_size):
                batch = indices[start : start + self.batch_size]
                for index, answer in zip(batch, self._generate([requests[i].args[0] for i in batch], wanted, batch)):
                    answers[index] = answer
                    self.cache_hook.add_partial("generate_until", requests[index].args, answer)
        return answers

    def _generate(self, contexts: list[str], wanted: Wanted, seeds: list[int]) -> list[str]:
        """seeds: one for each, so that what is drawn does not depend on who shares a batch."""
        room = self.max_length - wanted.new_tokens
        if room < 1:
            raise UserError(
                f"the task wants {wanted.new_tokens} new tokens of {self.max_length}: give a larger --max-seq-len"
            )
        prompts = [self.tok_encode(context)[-room:] for context in contexts]
        streams = [self.text.stream() for _ in prompts]
        writing = set(range(len(prompts)))
        samplings = [wanted.sampling(seed) for seed in seeds]
        tokens = self.generator.generate(prompts, wanted.new_tokens, stop_ids=self.stop_ids, sampling=samplings)
        for token in tokens:
            if token.user in writing:
                stream = streams[token.user]
                stream.add(token.id, last=token.last)
                if token.last or any(end in stream.text for end in wanted.until):
                    writing.remove(token.user)
            if not writing:
                tokens.close()  # the others' last tokens are not needed
        return [before_any(wanted.until, stream.text) for stream in streams]


def before_any(ends: Sequence[str], text: str) -> str:
    """The text up to where the first of the ends begins."""
    return text[: min([text.find(end) for end in ends if end in text], default=len(text))]
