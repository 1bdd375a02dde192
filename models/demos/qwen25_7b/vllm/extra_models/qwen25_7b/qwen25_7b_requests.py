"""What a request may ask of the HTTP server: vllm serve ... --middleware qwen25_7b_requests.RequestCheck.

A POST needs the server's key on every path, and a server that stops answers 503. The options are checked after vLLM has
parsed them, on every route (qwen25_7b_patches.py). vLLM and the plugin write some numbers to tensors without a check of
their range, and the exception ends the engine for all requests. They ignore other options.
"""

import json
import os
from typing import Any, Awaitable, Callable, Mapping

STOP_FILE = "QWEN25_7B_STOP_FILE"  # names a file that exists once the server stops (vllm/process.py)
SEEDS = 1 << 31  # the plugin's tensor of seeds is int32
LARGEST_FLOAT = 3.4e38  # its other tensors are float32
# What asks for no other text.
HARMLESS = {*"metadata prompt_cache_key prompt_cache_retention request_id safety_identifier".split()}
HARMLESS |= {*"service_tier store stream_options user".split()}

# Of structured_outputs. llguidance has the server's.
OUTPUT_OPTIONS = "disable_additional_properties", "disable_any_whitespace", "whitespace_pattern"


class RequestCheck:
    """ASGI middleware. It passes a request on, or answers it with OpenAI's error object."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        from qwen25_7b_patches import REFUSALS, exception_handler  # vLLM is loaded now

        for refusal in REFUSALS:
            inner_layer(app, "add_exception_handler").add_exception_handler(refusal, exception_handler)
        self._app = app
        self._guard = inner_layer(app, "verify_token")  # vLLM's, which guards paths below /v1 only

    async def __call__(self, scope: dict[str, Any], receive: Callable, send: Callable) -> None:
        is_http, error = scope["type"] == "http", None
        keys = {name.decode().title(): value.decode("latin-1") for name, value in scope.get("headers", ())}
        if is_http and os.path.exists(os.environ.get(STOP_FILE, "")):
            error = 503, "ServiceUnavailableError", "the server is stopping: send the request to another one"
        elif is_http and scope["method"] == "POST" and self._guard and not self._guard.verify_token(keys):
            error = 401, "AuthenticationError", "this server asks for its --api-key: Authorization: Bearer KEY"
        if error is None:
            return await self._app(scope, receive, send)
        status, kind, message = error
        content = {"error": {"message": message, "type": kind, "param": None, "code": status}}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(content).encode()})


def inner_layer(app: Any, method: str) -> Any:
    """Return the first middleware inside another one that has a method, None without one."""
    while app is not None and not hasattr(app, method):
        app = getattr(app, "app", None)
    return app


def check_parameters(params: Any, vocab_size: int) -> None:
    """params: vLLM's SamplingParams. ValueError: a number that would end the engine, or an option that is ignored."""
    ranges = {
        "seed": (-SEEDS, SEEDS - params.n),  # sequence i of n has the seed seed + i
        "repetition_penalty": (0, LARGEST_FLOAT),
        "stop_token_ids": (0, vocab_size - 1),
        "allowed_token_ids": (0, vocab_size - 1),
    }
    for name, (least, most) in ranges.items():
        given = getattr(params, name)
        for number in given if isinstance(given, list) else [given]:
            if number is not None and not least <= number <= most:
                raise ValueError(f"{name} must be {least} to {most}, got {number}")
    if any(not word.strip() for word in params.bad_words or ()):
        raise ValueError(f"bad_words must not be blank, got {params.bad_words}")
    for name in ("thinking_token_budget", "logprob_token_ids"):
        if getattr(params, name) not in (None, []):
            raise ValueError(f"the plugin ignores {name}: leave it out, got {getattr(params, name)!r}")


def check_unread(given: Mapping[str, Any], defaults: Mapping[str, Any], by: str = "") -> None:
    """ValueError: an option that is not read. given: those that `by` does not read. defaults: of vLLM's options."""
    for name in sorted(given.keys() - HARMLESS, reverse=True):  # tool_choice first
        if given[name] not in (None, [], defaults.get(name)):
            advice = "use structured_outputs" if name.startswith("guided_") else "leave it out"
            raise ValueError(f"{by}vLLM ignores {name} here: {advice}, got {given[name]!r}")


def check_constraints(request: Any) -> None:
    """ValueError: several constraints of the answer's form, or one that is not read.

    request: before vLLM makes a constraint of its tool_choice.
    """
    form = getattr(request, "response_format", None) or getattr(getattr(request, "text", None), "format", None)
    outputs, choice = request.structured_outputs, getattr(request, "tool_choice", None)
    given = ["structured_outputs"] if outputs and not outputs.all_constraints_none() else []
    given += ["the response's format"] if form and form.type != "text" else []
    given += ["tool_choice"] if choice not in (None, "none", "auto") else []
    check_unread({name: getattr(outputs, name, None) or None for name in OUTPUT_OPTIONS}, {})
    for tool in (*(getattr(request, "tools", None) or ()), choice):
        if getattr(tool, "type", "function") not in ("function", "namespace"):
            raise ValueError(f"vLLM ignores tools of type {tool.type}: leave it out")
    if len(given) > 1:
        raise ValueError(f"vLLM keeps one of {' and '.join(given)}: leave out the other")
