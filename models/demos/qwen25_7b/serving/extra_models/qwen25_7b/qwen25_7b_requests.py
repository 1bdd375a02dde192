"""Refuse HTTP requests that would end the engine: vllm serve ... --middleware qwen25_7b_requests.RequestCheck.

vLLM and the plugin write some numbers of a request to tensors without a check of their range. The exception ends
the engine for all requests. RequestCheck answers such a request alone, with status 400.
"""

import json
from typing import Any, Awaitable, Callable, Iterator, Optional

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
SEEDS = 1 << 31  # the plugin's tensor of seeds is int32
LARGEST_FLOAT = 3.4e38  # its other tensors are float32
INTEGERS = 1 << 63  # what vLLM can send to the engine


class RequestCheck:
    """ASGI middleware. It passes a request on unchanged, or answers it with OpenAI's error object."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        body = b"".join(message.get("body", b"") for message in messages)
        problem = first_problem(body, _vocab_size(scope))
        if problem:
            return await _refuse(send, problem)
        left = iter(messages)

        async def replay() -> Message:
            return next(left, None) or await receive()

        await self._app(scope, replay, send)


def first_problem(body: bytes, vocab_size: int) -> Optional[str]:
    """Return why a request's JSON must be refused, or None. vLLM refuses a body that is no JSON object."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict):
        return None
    nested = request.get("sampling_params")  # of /inference/v1/generate
    parts = (request, nested) if isinstance(nested, dict) else (request,)
    return next((problem for part in parts for problem in _problems(part, vocab_size)), None)


def _problems(params: dict, vocab_size: int) -> Iterator[str]:
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


def _vocab_size(scope: Message) -> int:
    return scope["app"].state.vllm_config.model_config.get_vocab_size()


async def _refuse(send: Send, problem: str) -> None:
    error = {"message": problem, "type": "BadRequestError", "param": None, "code": 400}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
