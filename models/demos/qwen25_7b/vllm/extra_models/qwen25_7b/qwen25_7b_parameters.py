"""Checks of what a request asks for, after vLLM has parsed it, so on every route. A ValueError is a status 400.

vLLM and the plugin write some numbers to tensors without a check of their range, and the exception ends the engine for
all requests. They ignore other options, and the answer is then not what was asked for.
"""

import asyncio
import os
import resource
import signal
from functools import lru_cache, wraps
from threading import Lock
from typing import Any, Callable

SEEDS = 1 << 31  # the plugin's tensor of seeds is int32
LARGEST_FLOAT = 3.4e38  # its other tensors are float32
# Options of earlier versions of vLLM or of OpenAI, which vLLM takes for fields that it does not know.
OLD_NAMES = {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "best_of"}
# What beam search keeps, and what asks for no other text.
BEAM_SEARCH = {"n", "max_tokens", "temperature", "ignore_eos", "include_stop_str_in_output"} | {
    "output_kind",
    "skip_clone",
}
CPU_SECONDS, SECONDS = 5, 60  # for the compilation of a grammar; the second is for a process that hangs
TRIALS = 256  # remembered


def check_parameters(params: Any, vocab_size: int) -> None:
    """params: vLLM's SamplingParams. ValueError: a number that would end the engine, or an option that is ignored."""
    last = SEEDS - params.n  # sequence i of n has the seed seed + i
    if params.seed is not None and not -SEEDS <= params.seed <= last:
        raise ValueError(f"seed must be {-SEEDS} to {last}, got {params.seed}")
    if params.repetition_penalty > LARGEST_FLOAT:
        raise ValueError(f"repetition_penalty must be at most {LARGEST_FLOAT}, got {params.repetition_penalty}")
    for stop_id in params.stop_token_ids or ():
        if not 0 <= stop_id < vocab_size:
            raise ValueError(f"stop_token_ids must be 0 to {vocab_size - 1}, got {stop_id}")
    for name in ("thinking_token_budget", "logprob_token_ids"):
        if getattr(params, name) not in (None, []):
            raise ValueError(f"the plugin ignores {name}: leave it out, got {getattr(params, name)!r}")


def check_fields(request: Any, options: set[str]) -> None:
    """request: vLLM's, of any route. options: all of vLLM's. ValueError: an option that vLLM ignores on this route."""
    for name, value in (request.model_extra or {}).items():
        if name in options and value not in (None, [], getattr(request, "n", None)):
            advice = "use structured_outputs" if name.startswith("guided_") else "leave it out"
            raise ValueError(f"vLLM ignores {name} here: {advice}, got {value!r}")


def check_beam_search(asked: Any, plain: Any, fields: tuple[str, ...]) -> None:
    """asked: the SamplingParams that a request has without beam search. plain: those of a request without options."""
    for name in {*fields} - BEAM_SEARCH:
        if getattr(asked, name) != getattr(plain, name):
            raise ValueError(f"use_beam_search of vLLM ignores {name}: leave out one of the two")


class GrammarTrials:
    """Compiles a grammar in a process of its own, because it can take minutes, or end the process.

    The engine would compile it in its own process. A grammar that compiles can still fail at its first token.
    """

    def __init__(self, backend: Any):
        """backend: vLLM's GuidanceBackend."""
        self._backend = backend
        self._lock = Lock()
        self.refusal = lru_cache(TRIALS)(self._refusal)

    def check(self, kind: Any, grammar: str) -> None:
        """ValueError if the grammar cannot be used. kind, grammar: as vLLM's get_structured_output_key returns them."""
        if problem := self.refusal(kind, grammar):
            raise ValueError(f"structured output: {problem}")

    def _refusal(self, kind: Any, grammar: str) -> str:
        with self._lock:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                self._answer(writer, kind, grammar)
            os.close(writer)
            with open(reader, encoding="utf-8", errors="replace") as answer:
                problem = answer.read()
            _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            return problem
        slow = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM)
        return f"takes more than {CPU_SECONDS} s to compile" if slow else "too large to compile"

    def _answer(self, writer: int, kind: Any, grammar: str) -> None:
        problem = ""
        try:
            for number in (signal.SIGALRM, signal.SIGXCPU):
                signal.signal(number, signal.SIG_DFL)
            signal.alarm(SECONDS)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
            problem = self._first_error(kind, grammar)
        except BaseException as error:  # of vLLM and llguidance, whatever they raise
            foreign = f"not of a form that vLLM takes ({type(error).__name__}: {error})"
            problem = f"{error}" if isinstance(error, ValueError) else foreign
        finally:
            problem = problem.partition("<state>")[0][:300]  # llguidance's own state comes after it
            os.write(writer, " ".join(problem.split()).encode("utf-8", "replace"))
            os._exit(0)

    def _first_error(self, kind: Any, grammar: str) -> str:
        compiled = self._backend.compile_grammar(kind, grammar)
        mask = self._backend.allocate_token_bitmask(1)
        for _ in range(2):
            compiled.fill_bitmask(mask, 0)
            error = compiled.ll_matcher.get_error()
            if error or compiled.ll_matcher.is_stopped():
                return error or ""
            word = next(i for i, bits in enumerate(mask[0].tolist()) if bits)
            bits = int(mask[0][word])
            token = 32 * word + (bits & -bits).bit_length() - 1
            if not compiled.accept_tokens("", [token]):
                return compiled.ll_matcher.get_error() or "no token fits"
        return ""


def install() -> None:
    """Put the checks into vLLM's classes."""
    from vllm import SamplingParams
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.serial_utils import MsgpackEncoder
    from vllm.v1.structured_output import backend_guidance
    from vllm.v1.structured_output.request import get_structured_output_key

    fields = SamplingParams.__struct_fields__

    def before(kind: type, name: str, check: Callable[..., None]) -> None:
        method = getattr(kind, name)

        @wraps(method)
        def checked(self, *args, **kwargs):
            check(self)
            return method(self, *args, **kwargs)

        setattr(kind, name, checked)

    def check_beams(request: Any) -> None:
        one = request.model_copy(update={"n": 1})  # vLLM refuses several greedy sequences of one prompt
        check_beam_search(one.to_sampling_params(1, {}), SamplingParams(), fields)

    for kind in (ChatCompletionRequest, CompletionRequest, ResponsesRequest):
        before(kind, "to_sampling_params", lambda request: check_fields(request, {*fields, *OLD_NAMES}))
        if kind is not ResponsesRequest:
            before(kind, "to_beam_search_params", check_beams)

    create_messages = AnthropicServingMessages.create_messages

    @wraps(create_messages)
    async def create_messages_or_400(self, *args, **kwargs):
        """/v1/messages of vLLM answers every error with 500."""
        try:
            return await create_messages(self, *args, **kwargs)
        except ValueError as error:
            return self.create_error_response(error)

    AnthropicServingMessages.create_messages = create_messages_or_400
    verify = SamplingParams.verify

    @wraps(verify)
    def verify_and_check(self, model_config, *rest):
        verify(self, model_config, *rest)
        check_parameters(self, model_config.get_vocab_size())
        try:
            MsgpackEncoder().encode(self)
        except OverflowError as error:
            raise ValueError(f"{error}") from error

    SamplingParams.verify = verify_and_check

    add_request = AsyncLLM.add_request
    trials: list[GrammarTrials] = []

    @wraps(add_request)
    async def try_and_add_request(self, request_id, prompt, params, *args, **kwargs):
        config = self.vllm_config
        outputs = getattr(params, "structured_outputs", None)
        if outputs and not outputs.all_constraints_none() and config.structured_outputs_config.backend == "guidance":
            if not trials:
                model = self.model_config
                made = backend_guidance.GuidanceBackend(config, self.input_processor.tokenizer, model.get_vocab_size())
                trials.append(GrammarTrials(made))
                # The trial is stricter, and does not keep other requests waiting.
                backend_guidance.validate_guidance_grammar = lambda *_, **__: None
            await asyncio.to_thread(trials[0].check, *get_structured_output_key(outputs))
        return await add_request(self, request_id, prompt, params, *args, **kwargs)

    AsyncLLM.add_request = try_and_add_request
