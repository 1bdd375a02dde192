"""The door of the HTTP server: vllm serve ... --middleware qwen25_7b_requests.RequestCheck.

A POST needs the server's key on every path, and a server that stops answers 503. What a request asks for is checked
after vLLM has parsed it (qwen25_7b_parameters.py).
"""

import json
import os
from typing import Any, Awaitable, Callable

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
STOP_FILE = "QWEN25_7B_STOP_FILE"  # names a file that exists once the server stops (vllm/process.py)
KINDS = {401: "AuthenticationError", 503: "ServiceUnavailableError"}


class RequestCheck:
    """ASGI middleware. It passes a request on, or answers it with OpenAI's error object."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        from qwen25_7b_parameters import install  # vLLM is loaded now

        install(inner_layer(app, "add_exception_handler"))
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and os.path.exists(os.environ.get(STOP_FILE, "")):
            return await _refuse(send, 503, "the server is stopping: send the request to another one")
        if scope["type"] == "http" and scope["method"] == "POST" and not self._has_key(scope):
            # vLLM itself guards paths below /v1 only
            return await _refuse(send, 401, "this server asks for its --api-key: Authorization: Bearer KEY")
        await self._app(scope, receive, send)

    def _has_key(self, scope: Message) -> bool:
        """Whether the request has the --api-key, by vLLM's own check, which vLLM puts inside this one."""
        layer = inner_layer(self._app, "verify_token")
        keys = {name.decode().title(): value.decode("latin-1") for name, value in scope.get("headers", ())}
        return layer is None or layer.verify_token(keys)


def inner_layer(app: Any, method: str) -> Any:
    """Return the first middleware inside another one that has a method, None without one."""
    while app is not None and not hasattr(app, method):
        app = getattr(app, "app", None)
    return app


async def _refuse(send: Send, status: int, problem: str) -> None:
    error = {"message": problem, "type": KINDS[status], "param": None, "code": status}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
