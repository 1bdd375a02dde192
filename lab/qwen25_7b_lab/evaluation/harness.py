"""A language model for EleutherAI's lm-eval, so that any of its tasks can score our replicas.

Log-likelihoods come from teacher forcing with decode steps. Text comes from the Generator.
"""

from dataclasses import replace
from typing import Any, Sequence

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from models.demos.qwen25_7b.cli.terminal import complain
from models.demos.qwen25_7b.config.sampling import GREEDY, SamplingParams
from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.text.degenerate import degenerate_answers
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer

from .teacher_forcing import predict_with_decode
from .texts import ForcedText

NEW_TOKENS = 256  # tokens of an answer, unless the task has max_gen_toks


def read_options(options: dict[str, Any]) -> tuple[tuple[str, ...], int, SamplingParams]:
    """(stop strings, tokens, sampling) of a request's generation_kwargs. UserError: an option that is not supported."""
    known = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}
    if options.keys() - known:
        unknown = ", ".join(sorted(options.keys() - known))
        raise UserError(f"the task's generation_kwargs have {unknown}; supported are {', '.join(sorted(known))}")
    until = options.get("until") or ()
    until = (until,) if isinstance(until, str) else tuple(filter(None, until))
    temperature = options.get("temperature", 1.0) if options.get("do_sample", False) else 0.0
    sampling = SamplingParams(temperature, options.get("top_k", 0), options.get("top_p", 1.0))
    return until, options.get("max_gen_toks", NEW_TOKENS), sampling if temperature else GREEDY


class ReplicaLM(TemplateLM):
    """tokenizer: the model's; its stop ids end an answer."""

    def __init__(self, replicas: Sequence[Replica], tokenizer: ChatTokenizer):
        super().__init__()
        self.replicas = replicas
        self.generator = Generator(replicas)
        self._tokenizer = tokenizer
        self.tokenizer = tokenizer.hf
        self.stop_ids = tokenizer.stop_ids | set(replicas[0].model.model_config.dims.eos_token_ids)

    @property
    def max_length(self) -> int:
        return self.replicas[0].model.model_config.max_seq_len

    @property
    def max_gen_toks(self) -> int:
        return NEW_TOKENS

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context."""
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
        """Without special tokens: a chat template writes them, and Qwen's tokenizer adds none."""
        return self.tokenizer.encode(string, add_special_tokens=False)

    def _loglikelihood_tokens(self, requests, disable_tqdm: bool = False, **_) -> list[tuple[float, bool]]:
        texts = [self._forced(context, continuation) for _, context, continuation in requests]
        sums, greedy = [0.0] * len(texts), [True] * len(texts)
        scored = sum(len(text.ids) - text.prompt_length for text in texts)
        with tqdm(total=scored, desc="log-likelihoods", leave=False, disable=None) as bar:
            for prediction in predict_with_decode(self.replicas, texts):
                places = list(zip(prediction.texts, prediction.positions))
                logits = prediction.logits.float()
                log_probabilities = logits.log_softmax(-1)
                best = logits.argmax(-1).tolist()
                for row, (text, position) in enumerate(places):
                    token = texts[text].ids[position + 1]
                    sums[text] += float(log_probabilities[row, token])
                    greedy[text] = greedy[text] and best[row] == token
                bar.update(len(places))
        return list(zip(sums, greedy))

    def _forced(self, context: list[int], continuation: list[int]) -> ForcedText:
        """The model never reads the last token, so max_length + 1 tokens fit. A longer context loses its beginning."""
        if not 1 <= len(continuation) <= self.max_length:
            raise UserError(
                f"a continuation has {len(continuation)} tokens, and --max-seq-len allows 1 to {self.max_length}"
            )
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
        """A request's seed is its index, so its samples do not depend on the other requests."""
        answers = [""] * len(requests)
        groups: dict[tuple, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(read_options(request.args[1]), []).append(index)
        with tqdm(total=len(requests), desc="answers", leave=False, disable=None) as bar:
            for (until, new_tokens, sampling), indices in groups.items():
                room = self.max_length - new_tokens
                if room < 1:
                    raise UserError(
                        f"the task's answers take {new_tokens} tokens of a context of {self.max_length}: give a larger "
                        "--max-seq-len"
                    )
                prompts = [self.tok_encode(requests[index].args[0])[-room:] for index in indices]
                streams = [self._tokenizer.detokenizer(until) for _ in indices]
                samplings = [replace(sampling, seed=index) for index in indices]
                for token in self.generator.generate(prompts, new_tokens, stop_ids=self.stop_ids, sampling=samplings):
                    stream = streams[token.user]
                    stream.add(token.id, last=token.last)
                    if stream.stopped:
                        self.generator.cancel(token.user)
                    bar.update(token.last or stream.stopped)
                for index, stream in zip(indices, streams):
                    answers[index] = stream.text
        if found := degenerate_answers(answers):
            complain(f"answers: {found}")
        return answers
