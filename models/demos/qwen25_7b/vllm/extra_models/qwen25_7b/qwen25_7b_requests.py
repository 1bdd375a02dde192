"""Refuse HTTP requests that cannot be served: vllm serve ... --middleware qwen25_7b_requests.RequestCheck.

vLLM and the plugin write some numbers of a request to tensors without a check of their range. The exception ends
the engine for all requests. They ignore other parameters, and the answer is then not what was asked for. RequestCheck
answers such a request alone, with status 400.
"""

import json
import os
from typing import Any, Awaitable, Callable, Iterator, Optional

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
STOP_FILE = "QWEN25_7B_STOP_FILE"  # names a file that exists once the server stops (vllm/process.py)
SEEDS = 1 << 31  # the plugin's tensor of seeds is int32
LARGEST_FLOAT = 3.4e38  # its other tensors are float32
INTEGERS = 1 << 63  # what vLLM can send to the engine
COMPLETIONS = "/v1/completions"
KINDS = {400: "BadRequestError", 401: "AuthenticationError", 503: "ServiceUnavailableError"}
# Keywords of a JSON schema that xgrammar reads over, and keywords below which keys are names.
UNREAD = {
    "allOf",  # of several schemas
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "unevaluatedItems",
}
NAMED = {"properties", "patternProperties", "$defs", "definitions"}
DATA = {"const", "enum", "default", "examples"}
OLD_NAMES = "guided_json", "guided_regex", "guided_choice", "guided_grammar"  # before vLLM 0.12


class RequestCheck:
    """ASGI middleware. It passes a request on unchanged, or answers it with OpenAI's error object."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and os.path.exists(os.environ.get(STOP_FILE, "")):
            return await _refuse(send, 503, "the server is stopping: send the request to another one")
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        if not self._has_key(scope):  # vLLM itself guards paths below /v1 only
            return await _refuse(send, 401, "this server asks for its --api-key: Authorization: Bearer KEY")
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        body = b"".join(message.get("body", b"") for message in messages)
        vocab_size = scope["app"].state.vllm_config.model_config.get_vocab_size()
        problem = first_problem(body, scope["path"], vocab_size)
        if problem:
            return await _refuse(send, 400, problem)
        left = iter(messages)

        async def replay() -> Message:
            return next(left, None) or await receive()

        await self._app(scope, replay, send)

    def _has_key(self, scope: Message) -> bool:
        """Whether the request has the --api-key, by vLLM's own check, which vLLM puts inside this one."""
        layer: Any = self._app
        while layer is not None and not hasattr(layer, "verify_token"):
            layer = getattr(layer, "app", None)
        keys = {name.decode().title(): value.decode("latin-1") for name, value in scope.get("headers", ())}
        return layer is None or layer.verify_token(keys)


def first_problem(body: bytes, path: str, vocab_size: int) -> Optional[str]:
    """Return why a request's JSON must be refused, or None. vLLM refuses a body that is no JSON object."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict):
        return None
    nested = request.get("sampling_params")  # of /inference/v1/generate
    parts = (request, nested) if isinstance(nested, dict) else (request,)
    problems = (p for part in parts for p in (*_fatal(part, vocab_size), *_ignored(part, path)))
    return next(problems, None)


def _fatal(params: dict, vocab_size: int) -> Iterator[str]:
    """Numbers that would end the engine."""
    for name, value in params.items():
        if isinstance(value, int) and not -INTEGERS <= value < INTEGERS:
            yield f"{name} must be an integer of 64 bits, got {value}"
    # Sequence i of n has the seed seed + i.
    last = SEEDS - max(1, _integer(params.get("n")) or 1)
    seed = _integer(params.get("seed"))
    if seed is not None and not -SEEDS <= seed <= last:
        yield f"seed must be {-SEEDS} to {last}, got {seed}"
    penalty = _number(params.get("repetition_penalty"))
    if penalty is not None and penalty > LARGEST_FLOAT:
        yield f"repetition_penalty must be at most {LARGEST_FLOAT}, got {penalty}"
    stop_ids = params.get("stop_token_ids")
    for stop_id in map(_integer, stop_ids if isinstance(stop_ids, list) else ()):
        if stop_id is not None and not 0 <= stop_id < vocab_size:
            yield f"stop_token_ids must be 0 to {vocab_size - 1}, got {stop_id}"


def _ignored(params: dict, path: str) -> Iterator[str]:
    """Parameters that vLLM 0.25.1 or the plugin reads over."""
    for name, schema in _schemas(params):
        for key in UNREAD.intersection(_schema_keys(schema)):
            yield f"{name}: the keyword {key} of a JSON schema is not kept; express it otherwise"
    for name in OLD_NAMES:
        if params.get(name) is not None:
            yield f"vLLM ignores {name}: use structured_outputs, got {params[name]!r}"
    sequences = _integer(params.get("n")) or 1
    best_of = _integer(params.get("best_of"))
    if best_of is not None and best_of > sequences:
        yield f"vLLM ignores best_of: leave it out or use n, got {best_of}"
    if path == COMPLETIONS and params.get("bad_words"):
        yield f"{COMPLETIONS} of vLLM ignores bad_words: use /v1/chat/completions, got {params['bad_words']!r}"
    budget = params.get("thinking_token_budget")
    if budget is not None and _integer(budget) != -1:  # -1: no budget
        yield f"the plugin ignores thinking_token_budget: leave it out, got {budget!r}"
    if params.get("logprob_token_ids"):
        yield f"the plugin ignores logprob_token_ids: use logprobs, got {params['logprob_token_ids']!r}"


def _schemas(params: dict) -> Iterator[tuple[str, Any]]:
    """Yield (parameter, its value) of what is or holds a JSON schema that the answer must keep."""
    yield "response_format", params.get("response_format")
    yield "text", params.get("text")  # of /v1/responses
    if params.get("tool_choice") not in (None, "auto", "none"):  # else a call may have any form
        yield "tools", params.get("tools")
    outputs = params.get("structured_outputs")
    for name in ("json", "structural_tag"):
        value = outputs.get(name) if isinstance(outputs, dict) else None
        try:
            yield "structured_outputs", json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            pass  # vLLM refuses it


def _schema_keys(value: Any, names: bool = False) -> Iterator[str]:
    """Yield the keywords of a JSON schema, or of what holds one. names: keys of `value` are names of the user's."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        alone = key == "allOf" and isinstance(inner, list) and len(inner) == 1
        if not names and not alone:
            yield key
        if names or key not in DATA:
            yield from _schema_keys(inner, key in NAMED and not names)
    for inner in value if isinstance(value, list) else ():
        yield from _schema_keys(inner)


def _number(value: Any) -> Optional[float]:
    """Return a number as vLLM reads it, which also takes "7"; None: vLLM refuses the value."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _integer(value: Any) -> Optional[int]:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


async def _refuse(send: Send, status: int, problem: str) -> None:
    error = {"message": problem, "type": KINDS[status], "param": None, "code": status}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
