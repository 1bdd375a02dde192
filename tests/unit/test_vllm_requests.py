"""The server refuses a request that would end the engine, and passes every other request on."""

import asyncio
import importlib.util
import json
from types import SimpleNamespace

import pytest

from models.demos.qwen25_7b import serving

FILE = f"{serving.__path__[0]}/extra_models/qwen25_7b/qwen25_7b_requests.py"
spec = importlib.util.spec_from_file_location("qwen25_7b_requests", FILE)
requests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(requests)

VOCAB_SIZE = 1056
MODEL_CONFIG = SimpleNamespace(get_vocab_size=lambda: VOCAB_SIZE)
STATE = SimpleNamespace(vllm_config=SimpleNamespace(model_config=MODEL_CONFIG))


def post(*parts: bytes) -> tuple[bytes | None, dict | None]:
    """Send a body in parts. Return the body that vLLM gets and the answer; None for what is not sent."""
    sent, got = [], []
    received = [
        {"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts
    ]

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

    scope = dict(type="http", method="POST", app=SimpleNamespace(state=STATE))
    asyncio.run(requests.RequestCheck(vllm)(scope, receive, send))
    if not sent:
        return b"".join(got), None
    assert not got and sent[0]["status"] == 400
    return None, json.loads(sent[1]["body"])["error"]


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
    "params",
    [
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
