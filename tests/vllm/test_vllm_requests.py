"""What the server refuses before vLLM sees it, and what it refuses after vLLM has parsed it."""

import asyncio
import json
import os
import re
import sys
from types import SimpleNamespace

import pytest

from models.demos.qwen25_7b import vllm
from tests.vllm.stand_ins import Backend, Busy, Keys, sampling

sys.path.append(f"{vllm.__path__[0]}/extra_models/qwen25_7b")
import qwen25_7b_requests as requests  # noqa: E402
import qwen25_7b_trials as trials  # noqa: E402

VOCAB_SIZE = 1056
CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def no_vllm(monkeypatch):
    patches = SimpleNamespace(REFUSALS=(), exception_handler=None)
    monkeypatch.setitem(sys.modules, "qwen25_7b_patches", patches)


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

    headers = [(b"authorization", b"Bearer right")]
    scope = dict(type="http", method=method, path=path, headers=headers)
    asyncio.run(requests.RequestCheck(Keys(vllm, key) if key else vllm)(scope, receive, send))
    if not sent:
        return b"".join(got), None
    error = json.loads(sent[1]["body"])["error"]
    assert not got and sent[0]["status"] == error["code"]
    return None, error


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/invocations", "/tokenize"])
def test_a_request_without_the_key_gets_401_on_every_path(path):
    """vLLM guards paths below /v1 only."""
    assert post(b"{}", path=path, key="another")[1]["code"] == 401
    assert post(b"{", b"}", path=path, key="right") == (b"{}", None)


@pytest.mark.parametrize("method, path", [("GET", "/health"), ("POST", CHAT)])
def test_a_server_that_stops_answers_503(tmp_path, monkeypatch, method, path):
    monkeypatch.setenv(requests.STOP_FILE, f"{tmp_path / 'stop'}")
    assert post(b"{}", path=path, method=method) == (b"{}", None)
    (tmp_path / "stop").touch()
    assert post(b"{}", path=path, method=method)[1]["code"] == 503


@pytest.mark.parametrize(
    "changes, named",
    [
        (dict(seed=1 << 31), "seed must be"),
        (dict(seed=-(1 << 31) - 1), "seed must be"),
        (dict(seed=(1 << 31) - 2, n=3), "seed must be"),  # the third sequence's seed is 2**31
        (dict(repetition_penalty=1e39), "repetition_penalty must be"),
        (dict(stop_token_ids=[5, VOCAB_SIZE]), "stop_token_ids must be"),
        (dict(stop_token_ids=[-1]), "stop_token_ids must be"),
        (dict(allowed_token_ids=[VOCAB_SIZE]), "allowed_token_ids must be"),
        (dict(bad_words=["a", " "]), "bad_words must not be blank"),
        (dict(thinking_token_budget=0), "the plugin ignores thinking_token_budget"),
        (dict(logprob_token_ids=[5]), "the plugin ignores logprob_token_ids"),
        (dict(seed=(1 << 31) - 3, n=3), None),
        (dict(seed=-(1 << 31), stop_token_ids=[0, VOCAB_SIZE - 1], repetition_penalty=1e-46), None),
        (dict(logprob_token_ids=[]), None),
    ],
)
def test_parameters_that_would_end_the_engine_or_be_ignored(changes, named):
    check = lambda: requests.check_parameters(sampling(**changes), VOCAB_SIZE)  # noqa: E731
    if named is None:
        return check()
    with pytest.raises(ValueError, match=f"^{named}"):
        check()


def check(*grammars: str) -> list[Exception | None]:
    """Check grammars at once."""
    checked = trials.GrammarTrials(Backend(), Busy)

    async def gather():
        return await asyncio.gather(*(checked.check("kind", grammar) for grammar in grammars), return_exceptions=True)

    return asyncio.run(gather())


def test_a_grammar_compiles_in_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(trials, "CPU_SECONDS", 1)
    here = os.getpid()
    assert check('{"maximum": 9223372036854775807, "const": "1234567890123456789"}') == [None]
    assert check('{"exclusiveMinimum": 0, "maximum": 1.5}', '{"minimum": 0, "maximum": 0.5}') == [None, None]
    assert check("pass", f"assert os.getpid() != {here}") == [None, None]
    wanted = {
        "raise ValueError('line 1\\nline 2')": "line 1 line 2$",
        "{}['triggers']": "not of a form that vLLM takes .KeyError: 'triggers'.$",
        "raise SystemExit('panic')": "not of a form that vLLM takes .SystemExit",
        "os.kill(os.getpid(), 9)": "too large",
        "while True: pass": "takes more than 1 s",
        "Backend.error = 'x' * 10**6": "x{300}$",
        "Backend.accepts = False": "no token fits",
        '{"const": [1234567890123456789]}': "llguidance rounds 1234567890123456789",
        '{"items": {"exclusiveMinimum": 0, "maximum": 0.5}}': "llguidance does not exclude 0",
    }
    for refusal, words in zip(check(*wanted), wanted.values(), strict=True):
        assert re.match(f"structured output: {words}", f"{refusal}")
    assert (Backend.error, Backend.accepts) == ("", True)


def test_a_grammar_that_was_tried_is_not_tried_again(tmp_path):
    """Neither later nor by a request that comes meanwhile."""
    tries = tmp_path / "tries"
    grammar = f"open({str(tries)!r}, 'a').write('.'); time.sleep(0.1); raise ValueError('bad')"
    assert [f"{refusal}" for refusal in check(grammar, grammar)] == ["structured output: bad"] * 2
    assert tries.read_text() == "."


def test_a_small_grammar_does_not_wait_for_large_ones(tmp_path):
    """Large ones come one after the other, and few wait."""
    order = tmp_path / "order"
    order.touch()
    write = f"open({str(order)!r}, 'a').write"
    small_ones = f"any(time.sleep(0.01) or len(open({str(order)!r}).read()) > 1 for _ in range(1000))"
    large = [f"{small_ones}; {write}('{i}')  # {'x' * trials.SMALL}" for i in range(9)]
    answers = check(*large, f"{write}('a')", f"{write}('b')")
    waiting = 1 + trials.WAITING[False]
    assert answers[:waiting] == [None] * waiting and answers[-2:] == [None, None]
    assert [error.status_code for error in answers[waiting:-2]] == [429] * (9 - waiting)
    assert sorted(order.read_text()[:2]) == ["a", "b"] and order.read_text()[2:] == "01234"[:waiting]
