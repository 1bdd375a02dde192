"""Checks of what a request asks for, after vLLM has parsed it, so on every route. A ValueError is a status 400.

vLLM and the plugin write some numbers to tensors without a check of their range, and the exception ends the engine for
all requests. They ignore other options, and the answer is then not what was asked for.
"""

import json
import logging
import re
from collections import defaultdict
from functools import wraps
from pkgutil import resolve_name
from typing import Any, Callable, Iterable, Mapping

from qwen25_7b_trials import GrammarTrials

SEEDS = 1 << 31  # the plugin's tensor of seeds is int32
LARGEST_FLOAT = 3.4e38  # its other tensors are float32
# Options of earlier versions of vLLM or of OpenAI.
OLD_NAMES = "guided_json guided_regex guided_choice guided_grammar best_of functions function_call".split()
# What asks for no other text.
HARMLESS = {*"metadata prompt_cache_key request_id service_tier store stream_options user".split()}
# What beam search keeps.
BEAM_SEARCH = {*"n max_tokens temperature ignore_eos include_stop_str_in_output".split()}
OPENAI, ANTHROPIC = "vllm.entrypoints.openai.", "vllm.entrypoints.anthropic."


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


def check_fields(read: Iterable[str], given: Mapping[str, Any], defaults: Mapping[str, Any], by: str = "") -> None:
    """ValueError: an option that is not read.

    read: names. given: a request's options. defaults: of the options that vLLM reads somewhere. by: what does not read.
    """
    for name in sorted((given.keys() & defaults.keys()) - HARMLESS - {*read}, reverse=True):  # tool_choice first
        if given[name] not in (None, [], defaults[name]):
            advice = "use structured_outputs" if name.startswith("guided_") else "leave it out"
            raise ValueError(f"{by}vLLM ignores {name} here: {advice}, got {given[name]!r}")


def check_constraints(request: Any) -> None:
    """ValueError: several constraints of the answer's form, of which vLLM keeps one.

    request: of any route, before vLLM makes a constraint of its tool_choice.
    """
    form = getattr(request, "response_format", None) or getattr(getattr(request, "text", None), "format", None)
    outputs, choice = request.structured_outputs, getattr(request, "tool_choice", None)
    given = ["structured_outputs"] if outputs and not outputs.all_constraints_none() else []
    given += ["the response's format"] if form and form.type != "text" else []
    given += ["tool_choice"] if choice not in (None, "none", "auto") else []
    if len(given) > 1:
        raise ValueError(f"vLLM keeps one of {' and '.join(given)}: leave out the other")


def around(path: str) -> Callable[[Callable], None]:
    """Put the decorated function around vLLM's function of this path. Its first argument is that function."""
    owner, _, name = path.rpartition(".")
    owner = resolve_name(owner)
    inner = getattr(owner, name)
    return lambda outer: setattr(owner, name, wraps(inner)(lambda *args, **kwargs: outer(inner, *args, **kwargs)))


def install(handlers: Any) -> None:
    """Put the checks into vLLM. handlers: the server's middleware for exceptions."""
    from jinja2 import TemplateError
    from openai.types.responses import ResponseErrorEvent
    from qwen25_7b_scheduler import Backend
    from vllm import SamplingParams
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest as Chat
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.engine.protocol import DeltaMessage, GenerationError
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.serve.utils.server_utils import exception_handler
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.serial_utils import MsgpackEncoder
    from vllm.v1.structured_output import backend_guidance
    from vllm.v1.structured_output.request import get_structured_output_key

    defaults, routes = dict.fromkeys(OLD_NAMES), (AnthropicMessagesRequest, ResponsesRequest, CompletionRequest, Chat)
    for route in routes:
        defaults |= {name: field.get_default(call_default_factory=True) for name, field in route.model_fields.items()}
    constraining = {*SamplingParams.__struct_fields__, "response_format", "tool_choice"} & defaults.keys()
    beams = {name: defaults[name] for name in constraining}
    trials: list[GrammarTrials] = []

    # A refused request is one line of the log. vLLM answers these with 400, and logs a traceback.
    refusals = ValueError, OverflowError, TemplateError
    for refusal in refusals:
        handlers.add_exception_handler(refusal, exception_handler)
    for handler in logging.getLogger("vllm").handlers:
        handler.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], refusals)))

    async def try_grammar(renderer: Any, params: Any) -> tuple:
        """Return the grammar that a request's answer must keep, () without one. ValueError: it cannot be used."""
        config, outputs = renderer.config, params.structured_outputs
        if not outputs or outputs.all_constraints_none() or config.structured_outputs_config.backend != "guidance":
            return ()
        if not trials:
            size = config.model_config.get_vocab_size()
            trials.append(GrammarTrials(Backend(config, renderer.tokenizer, size), GenerationError))
            # The trial is stricter, and does not keep other requests waiting.
            backend_guidance.validate_guidance_grammar = lambda *_, **__: None
        grammar = get_structured_output_key(outputs)
        await trials[0].check(*grammar)
        return grammar

    for name in ("preprocess_chat", "preprocess_completion"):

        @around(f"vllm.renderers.online_renderer:OnlineRenderer.{name}")
        async def render_and_check(render, online, request, *args, **kwargs):
            """Before a stream begins, so that the answer to a request that is refused has its status."""
            if not hasattr(request, "to_sampling_params"):
                return await render(online, request, *args, **kwargs)
            check_fields(request.model_fields, request.model_extra, defaults)
            check_constraints(request)
            if getattr(getattr(getattr(request, "text", None), "format", None), "type", None) == "json_object":
                # vLLM reads this format of /v1/responses over
                request.text, request.structured_outputs = None, StructuredOutputsParams(json_object=True)
            rendered, config = await render(online, request, *args, **kwargs), online.renderer.config
            if getattr(request, "use_beam_search", False):
                given = {name: getattr(request, name) for name in request.model_fields_set}
                check_fields(BEAM_SEARCH, given, beams, "use_beam_search: ")
                return rendered
            params = request.to_sampling_params(config.model_config.max_model_len, {})
            await try_grammar(online.renderer, params)
            limits = config.model_config, config.speculative_config, config.structured_outputs_config
            params.verify(*limits, online.renderer.tokenizer)
            return rendered

    @around("vllm:SamplingParams.verify")
    def verify_and_check(verify, params, model_config, *rest):
        verify(params, model_config, *rest)
        check_parameters(params, model_config.get_vocab_size())
        try:
            MsgpackEncoder().encode(params)
        except OverflowError as error:
            raise ValueError(f"{error}") from error

    @around("vllm.v1.engine.async_llm:AsyncLLM.generate")
    async def generate_and_check(generate, llm, prompt, sampling_params, *args, **kwargs):
        grammar, texts = await try_grammar(llm.renderer, sampling_params), defaultdict(str)
        async for output in generate(llm, prompt, sampling_params, *args, **kwargs):
            for choice in output.outputs:
                if choice.finish_reason == "error":  # the grammar takes no token
                    raise ValueError("structured output: the answer cannot go on, by another option or its size")
                texts[choice.index] += choice.text if grammar else ""
                stopped = choice.stop_reason is not None or not sampling_params.skip_special_tokens
                if grammar and stopped and choice.finish_reason not in (None, "length", "abort"):
                    await trials[0].check(*grammar, texts[choice.index])
            yield output

    @around("vllm.parser.abstract_parser.extract_required_tool_call_streaming")
    def read_pieces(read, *, previous_text, current_text, delta_text, function_name_returned, **rest):
        """vLLM loses a part of a tool call whose end comes together with other text."""
        calls: list = []
        for piece in re.findall("[^{}]+|[{}]", delta_text):
            text = dict(previous_text=previous_text, current_text=previous_text + piece, delta_text=piece)
            message, function_name_returned = read(**text, function_name_returned=function_name_returned, **rest)
            previous_text += piece
            for call in message.tool_calls if message else ():
                if calls and calls[-1].index == call.index:
                    calls[-1].function.arguments += call.function.arguments
                else:
                    calls.append(call)
        return DeltaMessage(tool_calls=calls) if calls else None, function_name_returned

    @around(f"{OPENAI}chat_completion.serving:OpenAIServingChat.chat_completion_stream_generator")
    async def stream_and_say_length(stream, serving, request, results, *args, **kwargs):
        """vLLM says tool_calls where max_tokens cuts a call. /v1/messages reads this stream, and not its errors."""
        cut = set()

        async def watched():
            async for output in results:
                cut.update(choice.index for choice in output.outputs if choice.finish_reason == "length")
                yield output

        async for event in stream(serving, request, watched(), *args, **kwargs):
            if event.startswith('data: {"error"') and isinstance(serving, AnthropicServingMessages):
                raise ValueError(json.loads(event.removeprefix("data: "))["error"]["message"])
            ended, said = '"finish_reason":"tool_calls"', '"finish_reason":"length"'
            if ended in event and json.loads(event.removeprefix("data: "))["choices"][0]["index"] in cut:
                event = event.replace(ended, said)
            yield event

    @around("vllm.v1.engine.detokenizer.check_stop_strings")
    def find_first(find, output_text, new_char_count, stop, include_in_output):
        """Of several stops within one token the one that ends first. vLLM goes by their order."""
        found = [hit for word in stop if (hit := find(output_text, new_char_count, [word], include_in_output))]
        end = lambda hit: hit[1] % (len(output_text) + 1) + len(hit[0]) * (not include_in_output)  # noqa: E731
        return min(found, key=end, default=None)

    # Where vLLM's status is 500, a stream breaks off, or its error is that of its own parsing.
    for name in ("create_messages", "count_tokens"):

        @around(f"{ANTHROPIC}serving:AnthropicServingMessages.{name}")
        async def answer_or_refuse(answer, serving, request, raw_request):
            try:
                check_fields(AnthropicMessagesRequest.model_fields, await raw_request.json(), defaults)
                chat = serving._convert_anthropic_to_openai_request(request)
                Chat.model_validate(chat.model_dump(exclude_unset=True, exclude_none=True))
                return await answer(serving, request, raw_request)
            except (ValueError, GenerationError) as error:
                return serving.create_error_response(error)

    @around(f"{OPENAI}responses.serving:OpenAIServingResponses.responses_stream_generator")
    async def stream_or_refuse(stream, *args, **kwargs):
        number = 0
        try:
            async for event in stream(*args, **kwargs):
                yield event
                number += 1
        except ValueError as error:
            yield ResponseErrorEvent(type="error", code="400", message=f"{error}", sequence_number=number)
