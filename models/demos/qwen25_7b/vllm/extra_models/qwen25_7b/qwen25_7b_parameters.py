"""Checks of what a request asks for, after vLLM has parsed it, so on every route. A ValueError is a status 400.

vLLM and the plugin write some numbers to tensors without a check of their range, and the exception ends the engine for
all requests. They ignore other options, and the answer is then not what was asked for.
"""

import asyncio
import json
import os
import resource
import signal
from contextlib import suppress
from functools import lru_cache, wraps
from http import HTTPStatus
from threading import Lock
from typing import Any, Callable

SEEDS = 1 << 31  # the plugin's tensor of seeds is int32
LARGEST_FLOAT = 3.4e38  # its other tensors are float32
# Options of earlier versions of vLLM or of OpenAI, which vLLM takes for fields that it does not know.
OLD_NAMES = {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "best_of"}
# What beam search keeps, and what asks for no other text.
BEAM_SEARCH = {*"n max_tokens temperature ignore_eos include_stop_str_in_output output_kind skip_clone".split()}
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
    if any(not word.strip() for word in params.bad_words or ()):
        raise ValueError(f"bad_words must not be blank, got {params.bad_words}")
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
        if grammar.startswith("{"):
            with suppress(json.JSONDecodeError):
                json.loads(grammar, parse_int=_check_integer)
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


def _check_integer(digits: str) -> None:
    """ValueError for an integer of a schema that llguidance rounds. It reads float64, and writes at most 2**63 - 1."""
    if int(digits) not in (int(float(digits)), (1 << 63) - 1):
        raise ValueError(f"llguidance rounds {digits}: write it as a string")


def around(kind: type, name: str) -> Callable[[Callable], None]:
    """Put the decorated function around a method of a class of vLLM's. Its first argument is that method."""
    method = getattr(kind, name)
    return lambda outer: setattr(kind, name, wraps(method)(lambda *args, **kwargs: outer(method, *args, **kwargs)))


def install() -> None:
    """Put the checks into vLLM's classes."""
    from openai.types.responses import ResponseErrorEvent
    from vllm import SamplingParams
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.generate.base.serving import GenerateBaseServing
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.engine.protocol import GenerationError
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.serial_utils import MsgpackEncoder
    from vllm.v1.structured_output import backend_guidance
    from vllm.v1.structured_output.request import get_structured_output_key

    fields = SamplingParams.__struct_fields__
    trials: list[GrammarTrials] = []

    for kind in (ChatCompletionRequest, CompletionRequest, ResponsesRequest):

        @around(kind, "to_sampling_params")
        def check_and_convert(convert, request, *args, **kwargs):
            check_fields(request, {*fields, *OLD_NAMES})
            return convert(request, *args, **kwargs)

    for kind in (ChatCompletionRequest, CompletionRequest):

        @around(kind, "to_beam_search_params")
        def check_beams_and_convert(convert, request, *args, **kwargs):
            one = request.model_copy(update={"n": 1})  # vLLM refuses several greedy sequences of one prompt
            check_beam_search(one.to_sampling_params(1, {}), SamplingParams(), fields)
            return convert(request, *args, **kwargs)

    @around(SamplingParams, "verify")
    def verify_and_check(verify, params, model_config, *rest):
        verify(params, model_config, *rest)
        check_parameters(params, model_config.get_vocab_size())
        try:
            MsgpackEncoder().encode(params)
        except OverflowError as error:
            raise ValueError(f"{error}") from error

    @around(AsyncLLM, "add_request")
    async def try_and_add(add_request, llm, request_id, prompt, params, *args, **kwargs):
        config = llm.vllm_config
        outputs = getattr(params, "structured_outputs", None)
        if outputs and not outputs.all_constraints_none() and config.structured_outputs_config.backend == "guidance":
            if not trials:
                tokenizer, size = llm.input_processor.tokenizer, llm.model_config.get_vocab_size()
                trials.append(GrammarTrials(backend_guidance.GuidanceBackend(config, tokenizer, size)))
                # The trial is stricter, and does not keep other requests waiting.
                backend_guidance.validate_guidance_grammar = lambda *_, **__: None
            await asyncio.to_thread(trials[0].check, *get_structured_output_key(outputs))
        return await add_request(llm, request_id, prompt, params, *args, **kwargs)

    class Refusal(GenerationError, ValueError):
        """vLLM's error within an answer, but with status 400."""

        def __init__(self, words: str):
            super().__init__(words)
            self.status_code = HTTPStatus.BAD_REQUEST

    @around(GenerateBaseServing, "_raise_if_error")
    def raise_if_error(_, serving, finish_reason, request_id):
        if finish_reason == "error":  # the grammar takes no token
            raise Refusal("structured output: the answer cannot go on, by another option or the grammar's size")

    # Where vLLM's status is 500, a stream breaks off, or its error is that of its own parsing.
    for name in ("create_messages", "count_tokens"):

        @around(AnthropicServingMessages, name)
        async def answer_or_refuse(answer, serving, *args, **kwargs):
            try:
                return await answer(serving, *args, **kwargs)
            except ValueError as error:
                return serving.create_error_response(error)

    @around(AnthropicServingMessages, "message_stream_converter")
    def convert_messages(convert, serving, messages):
        async def checked():
            async for message in messages:
                if message.startswith('data: {"error"'):
                    raise ValueError(json.loads(message.removeprefix("data: "))["error"]["message"])
                yield message

        return convert(serving, checked())

    @around(OpenAIServingResponses, "responses_stream_generator")
    async def stream_or_refuse(stream, *args, **kwargs):
        number = 0
        try:
            async for event in stream(*args, **kwargs):
                yield event
                number += 1
        except ValueError as error:
            words = f"{error.__context__ or error}"  # vLLM finds no form for a Refusal
            yield ResponseErrorEvent(type="error", code="400", message=words, sequence_number=number)
