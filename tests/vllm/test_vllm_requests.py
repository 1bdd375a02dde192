"""The server refuses a request that would end the engine or be read over, and passes every other request on."""

import asyncio
import importlib.util
import json
from types import SimpleNamespace

import pytest

from models.demos.qwen25_7b import vllm

FILE = f"{vllm.__path__[0]}/extra_models/qwen25_7b/qwen25_7b_requests.py"
spec = importlib.util.spec_from_file_location("qwen25_7b_requests", FILE)
requests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(requests)

VOCAB_SIZE = 1056
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def post(*parts: bytes, path: str = CHAT, method: str = "POST", key: str = "") -> tuple[bytes | None, dict | None]:
    """Send a body in parts. Return the body that vLLM gets and the answer; None for what is not sent.

    key: the server's --api-key. The request has the key "right".
    """
    sent, got = [], []
    received = [{"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts]

    async def receive():
        return received.pop(0)

    async def send(message):
        sent.append(message)

    async def vllm(scope, receive, send):
        message = await receive()
        got.append(message["body"])
        while message["more_body"]:
            message = await receive()
            got.append(message["body"])

    model = SimpleNamespace(get_vocab_size=lambda: VOCAB_SIZE)
    state = SimpleNamespace(vllm_config=SimpleNamespace(model_config=model))
    app = SimpleNamespace(state=state)
    headers = [(b"authorization", b"Bearer right")]
    scope = dict(type="http", method=method, path=path, app=app, headers=headers)
    asyncio.run(requests.RequestCheck(Keys(vllm, key) if key else vllm)(scope, receive, send))
    if not sent:
        return b"".join(got), None
    error = json.loads(sent[1]["body"])["error"]
    assert not got and sent[0]["status"] == error["code"]
    return None, error


class Keys:
    """vLLM's AuthenticationMiddleware inside another layer. Its 401 is left out."""

    def __init__(self, app, key: str):
        self._inner, self._key = app, key

    def verify_token(self, headers) -> bool:
        return headers.get("Authorization") == f"Bearer {self._key}"

    async def __call__(self, scope, receive, send):
        await self._inner(scope, receive, send)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/invocations", "/tokenize"])
def test_a_request_without_the_key_gets_401_on_every_path(path):
    """vLLM guards paths below /v1 only, and a seed of 41 bits ends the engine."""
    body = json.dumps(dict(seed=1 << 40)).encode()
    assert post(body, path=path, key="another")[1]["code"] == 401
    assert post(body, path=path, key="right")[1]["code"] == 400


@pytest.mark.parametrize("method, path", [("GET", "/health"), ("POST", CHAT)])
def test_a_server_that_stops_answers_503(tmp_path, monkeypatch, method, path):
    monkeypatch.setenv(requests.STOP_FILE, f"{tmp_path / 'stop'}")
    assert post(b"{}", path=path, method=method) == (b"{}", None)
    (tmp_path / "stop").touch()
    assert post(b"{}", path=path, method=method)[1]["code"] == 503


@pytest.mark.parametrize(
    "params, named",
    [
        (dict(seed=1 << 31), "seed"),
        (dict(seed=-(1 << 31) - 1), "seed"),
        (dict(seed="3000000000"), "seed"),  # vLLM takes this string and this float
        (dict(seed=3e9), "seed"),
        (dict(seed=(1 << 31) - 2, n=3), "seed"),  # the third sequence's seed is 2**31
        (dict(repetition_penalty=1e39), "repetition_penalty"),
        (dict(stop_token_ids=[5, VOCAB_SIZE], min_tokens=1), "stop_token_ids"),
        (dict(stop_token_ids=[-1]), "stop_token_ids"),
        (dict(top_k=1 << 70), "top_k"),
        (dict(sampling_params=dict(seed=1 << 31)), "seed"),
    ],
)
def test_what_would_end_the_engine_is_refused_alone(params, named):
    _, error = post(json.dumps(dict(prompt="a") | params).encode())
    assert error["message"].startswith(named) and error["code"] == 400


@pytest.mark.parametrize(
    "params, words",
    [
        (dict(best_of=3, n=2), "vLLM ignores best_of"),
        (dict(guided_choice=["yes", "no"]), "vLLM ignores guided_choice: use structured_outputs"),
        (dict(guided_json={}), "vLLM ignores guided_json"),
        (dict(thinking_token_budget=0), "the plugin ignores thinking_token_budget"),
        (dict(sampling_params=dict(logprob_token_ids=[5])), "the plugin ignores logprob_token_ids"),
    ],
)
def test_what_would_be_read_over_is_refused(params, words):
    _, error = post(json.dumps(dict(prompt="a") | params).encode())
    assert error["message"].startswith(words) and error["code"] == 400


def test_completions_of_vllm_have_no_bad_words():
    body = json.dumps(dict(prompt="a", bad_words=["no"])).encode()
    _, error = post(body, path=COMPLETIONS)
    assert error["message"].startswith("/v1/completions of vLLM ignores bad_words: use /v1/chat")
    assert post(body, path=CHAT) == (body, None)


@pytest.mark.parametrize(
    "params",
    [
        dict(best_of=2, n=2, guided_json=None, thinking_token_budget=-1),
        dict(bad_words=[]),
        dict(bad_words=7, best_of="x"),
        dict(seed=(1 << 31) - 3, n=3),
        dict(seed=-(1 << 31), n=None),
        dict(seed=None, repetition_penalty=None, stop_token_ids=None),
        dict(seed="x", repetition_penalty="x", stop_token_ids="x"),  # vLLM says what is wrong
        dict(repetition_penalty=1e-46, stop_token_ids=[0, VOCAB_SIZE - 1], sampling_params=7),
        dict(seed=float("nan"), repetition_penalty=float("nan")),
    ],
)
def test_other_requests_arrive_unchanged(params):
    body = json.dumps(dict(prompt="a") | params).encode()
    assert post(body[:5], body[5:], b"") == (body, None)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_left_to_vllm(body):
    assert post(body) == (body, None)


@pytest.mark.parametrize("schema, refused", [
    ({"not": {"type": "integer"}}, "not"),
    ({"type": "array", "items": {"if": {"type": "integer"}, "then": {"minimum": 3}}}, "if"),
    ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "allOf"),
    ({"allOf": [{"type": "integer"}]}, None),
    ({"enum": [{"not": 1}], "default": {"if": 2}}, None),
    ({"properties": {"not": {"type": "integer"}, "if": {"type": "string"}}}, None),
    ({"$defs": {"not": {"properties": {"a": {"anyOf": [{"dependentRequired": {}}]}}}}}, "dependentRequired"),
])  # fmt: skip
@pytest.mark.parametrize("place", [
    lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
    lambda schema: {"structured_outputs": {"json": schema}},
    lambda schema: {"structured_outputs": {"json": json.dumps(schema)}},
    lambda schema: {"text": {"format": {"type": "json_schema", "schema": schema}}},
    lambda schema: {"tools": [{"type": "function", "function": {"name": "not", "parameters": schema}}], "tool_choice": "required"},
], ids=["response_format", "structured_outputs", "as text", "responses", "tools"])  # fmt: skip
def test_a_schema_whose_keyword_xgrammar_reads_over(place, schema, refused):
    _, error = post(json.dumps(place(schema)).encode())
    assert (error is None) == (refused is None)
    assert refused is None or f"the keyword {refused} " in error["message"]
