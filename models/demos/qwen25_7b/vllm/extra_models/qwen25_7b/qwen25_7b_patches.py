"""What vLLM's API server does otherwise here. docs/vllm.md says what each function mends, and when it can go."""

import json
import logging
import re
from collections import defaultdict
from functools import cache
from hashlib import sha256
from pkgutil import resolve_name
from typing import Any, Callable

from jinja2 import TemplateError
from openai.types.responses import ResponseErrorEvent
from qwen25_7b_requests import check_constraints, check_parameters, check_unread
from qwen25_7b_scheduler import Backend
from qwen25_7b_trials import GrammarTrials
from vllm import SamplingParams
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import BatchChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest as Chat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.engine.protocol import DeltaMessage, GenerationError
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.utils.server_utils import exception_handler  # noqa: F401 - for RequestCheck
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.serial_utils import MsgpackEncoder
from vllm.v1.structured_output import backend_guidance
from vllm.v1.structured_output.request import get_structured_output_key

ROUTES = AnthropicMessagesRequest, ResponsesRequest, CompletionRequest, BatchChatCompletionRequest, Chat
DEFAULTS = {key: field.get_default(call_default_factory=True) for r in ROUTES for key, field in r.model_fields.items()}
# What beam search does not keep.
NO_BEAMS = {*SamplingParams.__struct_fields__, "response_format", "tool_choice"}
NO_BEAMS -= {*"n max_tokens temperature ignore_eos include_stop_str_in_output".split()}
# What nothing here reads.
IGNORED = "kv_transfer_params media_io_kwargs mm_processor_kwargs previous_input_messages".split()
IGNORED += "length_penalty priority vllm_xargs".split()  # but by options of the server or request
# A refused request is one line of the log. vLLM answers these with 400, and logs a traceback.
REFUSALS = ValueError, OverflowError, TemplateError
for handler in logging.getLogger("vllm").handlers:
    handler.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], REFUSALS)))


def around(owner: str, *names: str) -> Callable[[Callable], None]:
    """Put the decorated function around functions of vLLM. Its first argument is the function inside."""

    def put(outer: Callable) -> None:
        for name in names:
            inner = getattr(resolve_name(owner), name)
            setattr(resolve_name(owner), name, lambda *args, _inner=inner, **named: outer(_inner, *args, **named))

    return put


@cache
def trials(renderer: Any) -> GrammarTrials:
    """Of the server's renderer, once a request has a grammar."""
    # The trial is stricter, and does not keep other requests waiting.
    backend_guidance.validate_guidance_grammar = lambda *_, **__: None
    size = renderer.config.model_config.get_vocab_size()
    return GrammarTrials(Backend(renderer.config, renderer.tokenizer, size), GenerationError)


async def check(renderer: Any, params: SamplingParams) -> tuple:
    """Return the grammar that the answer must keep, () without one. ValueError, OverflowError: it is refused."""
    check_parameters(params, renderer.config.model_config.get_vocab_size())
    MsgpackEncoder().encode(params)  # for the engine's process
    outputs, backend = params.structured_outputs, renderer.config.structured_outputs_config.backend
    if not outputs or outputs.all_constraints_none() or backend != "guidance":
        return ()
    grammar = get_structured_output_key(outputs)
    await trials(renderer).check(*grammar)
    return grammar


@around("vllm.renderers.online_renderer:OnlineRenderer", "preprocess_chat", "preprocess_completion")
async def render_and_check(render, online, request, *args, **kwargs):
    """Before a stream begins, so that the answer to a request that is refused has its status."""
    config = online.renderer.config
    readers = {
        "length_penalty": getattr(request, "use_beam_search", False),
        "priority": config.scheduler_config.policy == "priority",
        "vllm_xargs": config.model_config.logits_processors,
    }
    ignored = {name: getattr(request, name, None) for name in IGNORED if not readers.get(name)}
    text = isinstance(request, ResponsesRequest) and request.text
    ignored |= {f"text.{name}": value for name, value in text or () if name != "format"}
    check_unread((request.model_extra or {}) | ignored, DEFAULTS)
    if not hasattr(request, "to_sampling_params"):
        return await render(online, request, *args, **kwargs)
    check_constraints(request)
    if getattr(getattr(getattr(request, "text", None), "format", None), "type", None) == "json_object":
        # vLLM reads this format of /v1/responses over
        request.text, request.structured_outputs = None, StructuredOutputsParams(json_object=True)
    rendered = await render(online, request, *args, **kwargs)
    if getattr(request, "use_beam_search", False):
        unread = {name: getattr(request, name) for name in request.model_fields_set & NO_BEAMS}
        check_unread(unread, DEFAULTS, "use_beam_search: ")
        return rendered
    params = request.to_sampling_params(config.model_config.max_model_len, {})
    await check(online.renderer, params)
    limits = config.model_config, config.speculative_config, config.structured_outputs_config
    params.verify(*limits, online.renderer.tokenizer)
    return rendered


@around("vllm.tool_parsers.utils", "_get_tool_schema_from_name_and_params")
def required_call(schema_of, name, params):
    """References within a tool's parameters start there. vLLM keeps those to $defs, which tools may not share."""
    digest = sha256(json.dumps([name, params]).encode()).hexdigest()
    return schema_of(name, {"$id": f"tool:{digest}"} | arguments(params))


resolve_name("vllm.tool_parsers.utils")._get_tool_schema_defs = lambda _tools: {}  # they stay with their tool


@around("vllm.tool_parsers.abstract_tool_parser", "get_json_schema_from_tools")
def call(schema_of, tool_choice, tools):
    schema = schema_of(tool_choice, tools)
    is_named = tool_choice is not None and not isinstance(tool_choice, str)
    return arguments(schema) if is_named and tools else schema


def arguments(params: dict | None) -> dict:
    """The schema of a call's arguments. A tool may say nothing of them."""
    return {"type": "object"} | (params or {"properties": {}})


@around("vllm.entrypoints.openai.responses.utils", "_construct_message_from_response_item")
def read_item(read, item, prev_msg=None):
    """vLLM reads an assistant's first part of several, and leaves items of other kinds to the template."""
    fields = item if isinstance(item, dict) else item.model_dump()
    parts = fields.get("content")
    if fields.get("role") == "assistant" and isinstance(parts, list):
        texts = [part.get("text", part.get("refusal")) for part in parts]
        item = item if None in texts else {"role": "assistant", "content": "".join(texts)}
    message = read(item, prev_msg=prev_msg)
    if message is not None and not (isinstance(message, dict) and "role" in message):
        raise ValueError(f"vLLM does not read items of type {fields.get('type', 'item_reference')}: leave it out")
    return message


@around("vllm.v1.engine.input_processor:InputProcessor", "_validate_model_input")
def check_prompt(validate, processor, prompt, **kind):
    """vLLM takes a tokenizer's added token that the model has no row for, which ends the engine."""
    validate(processor, prompt, **kind)
    largest, size = max(prompt.get("prompt_token_ids") or [0]), processor.model_config.get_vocab_size()
    if largest >= size:
        raise ValueError(f"token {largest} of the prompt is beyond the model's vocabulary of {size} tokens")


@around("vllm.v1.engine.async_llm:AsyncLLM", "generate")
async def generate_and_check(generate, llm, prompt, sampling_params, *args, **kwargs):
    grammar, texts = await check(llm.renderer, sampling_params), defaultdict(str)
    async for output in generate(llm, prompt, sampling_params, *args, **kwargs):
        for choice in output.outputs:
            if choice.finish_reason == "error":  # the grammar takes no token
                raise ValueError("structured output: the answer cannot go on, by another option or its size")
            texts[choice.index] += choice.text if grammar else ""
            stopped = choice.stop_reason is not None or not sampling_params.skip_special_tokens
            if grammar and stopped and choice.finish_reason not in (None, "length", "abort"):
                await trials(llm.renderer).check(*grammar, texts[choice.index])
        yield output


@around("vllm.parser.abstract_parser", "extract_required_tool_call_streaming")
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


@around("vllm.entrypoints.openai.chat_completion.serving:OpenAIServingChat", "chat_completion_stream_generator")
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


@around("vllm.v1.engine.detokenizer", "check_stop_strings")
def find_first(find, output_text, new_char_count, stop, include_in_output):
    """Of several stops within one token the one that ends first. vLLM goes by their order."""
    found = [hit for word in stop if (hit := find(output_text, new_char_count, [word], include_in_output))]
    end = lambda hit: hit[1] % (len(output_text) + 1) + len(hit[0]) * (not include_in_output)  # noqa: E731
    return min(found, key=end, default=None)


@around("vllm.entrypoints.anthropic.serving:AnthropicServingMessages", "create_messages", "count_tokens")
async def answer_or_refuse(answer, serving, request, raw_request):
    """vLLM answers every error with 500."""
    try:
        body = await raw_request.json()
        unread = body.keys() - AnthropicMessagesRequest.model_fields.keys()
        check_unread({name: body[name] for name in unread}, DEFAULTS)
        chat = serving._convert_anthropic_to_openai_request(request)
        Chat.model_validate(chat.model_dump(exclude_unset=True, exclude_none=True))
        return await answer(serving, request, raw_request)
    except (*REFUSALS, GenerationError) as error:
        return serving.create_error_response(error)


@around("vllm.entrypoints.openai.responses.serving:OpenAIServingResponses", "responses_stream_generator")
async def stream_or_refuse(stream, *args, **kwargs):
    """vLLM's stream breaks off."""
    number = 0
    try:
        async for event in stream(*args, **kwargs):
            yield event
            number += 1
    except ValueError as error:
        yield ResponseErrorEvent(type="error", code="400", message=f"{error}", sequence_number=number)
