"""Send every kind of request to a server, then a random load: .venv-vllm/bin/python tests/server/check_server.py
[options]. check_grammars.py has structured outputs and calls of tools beside every option.

Prints a table: which options of vLLM work, and which are refused, by what and with which words. Answers are compared
with Hugging Face's float32 model of the same checkpoint. A wrong answer is a fault; with faults the exit status is 1.
The server is one with tool calls and no other requests:

    make serve ARGS="--enable-auto-tool-choice --tool-call-parser hermes"

Run it where the server was started: the server may name its model by a relative path.
"""

import argparse
import json
import math
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Callable, Iterator

import httpx
from check_structures import SHORT, structures
from checked_server import CHAT, LONG, TEXT, Fault, Server, expect, messages

CLOSE = 0.25  # mean distance of log-probabilities from Hugging Face's, nats; of 8-bit weights, too
HOT = 2.0  # temperature
BESIDE, AFTER = "beside two streams", "after an abort"  # the company of a request
LOAD, AT_ONCE = 60, 16  # cases of the random load
CROWD = 40  # requests at once, more than any --max-num-seqs
GUARDED = (TEXT, CHAT, "/v1/responses", "/v1/messages", "/invocations", "/tokenize", "/detokenize")
NUMBERS = (1e300, 1e-300, -1, 2**31, 2**100, math.nan)
EXTREMES = [
    *({name: number} for name in ("temperature", "repetition_penalty", "seed") for number in NUMBERS),
    *({name: [number]} for name in ("prompt", "stop_token_ids") for number in (-1, 2**40)),
    {"prompt": [0] * 9999},
    {"logit_bias": {"5": math.nan}},
]
Check = Callable[["Server"], str]  # returns the table's words, or raises Fault


# ---- checks


def greedy(server: Server, option: dict, *, question=LONG, path=TEXT, changes=True, **rest: Any) -> str:
    """The answer is greedy after the option's formula. changes: the option changes the text."""
    answer = server.ask(question, path, **rest, **option)
    server.expect_greedy(server.prompt(question), answer, option)
    whole = len(answer) == rest.get("max_tokens", 16) or answer[-1] in server.stop_ids
    expect(whole and len(answer) >= option.get("min_tokens", 0), f"ends early: {answer}")
    if changes:
        expect(answer != server.ask(question, path, **rest), "the option changes nothing here")
    return "works: Hugging Face's greedy text" + " after the option's formula" * changes


def seed(server: Server) -> str:
    texts = [server.ask(LONG, temperature=HOT, seed=number) for number in (1, 2, 3, 1)]
    expect(texts[0] == texts[3], f"one seed, two texts: {texts}")
    expect(texts[0] != texts[1] != texts[2], f"three seeds have one text: {texts}")
    several = [choice["text"] for choice in server.choices(LONG, n=4, temperature=HOT, seed=3)]
    expect(len(set(several)) == 4, f"n: not 4 texts: {several}")
    return "works: one text for a seed, others for other seeds"


def stop(server: Server) -> str:
    (whole,) = server.choices(LONG, max_tokens=24)
    word, token = whole["text"].split()[6], whole["token_ids"][9]
    cut = whole["text"][: whole["text"].index(word)]
    (choice,) = server.choices(LONG, max_tokens=24, stop=["unseen", word])
    expect((choice["text"], choice["stop_reason"]) == (cut, word), f"{choice} for {cut!r}")
    ids = server.ask(LONG, max_tokens=24, stop_token_ids=[token])
    expect(ids == whole["token_ids"][: len(ids)] and ids[-1] == token, f"{ids} of {whole}")
    return "work"


def log_probs(server: Server) -> str:
    """Of the sampled token and of the five likeliest ones."""
    body = dict(temperature=HOT, seed=1, return_tokens_as_token_ids=True)
    (choice,) = server.choices(LONG, logprobs=5, **body)
    answer, tops, gaps = choice["token_ids"], choice["logprobs"]["top_logprobs"], []
    expected = server.logits(server.prompt(LONG), answer).log_softmax(-1)
    for row, token, top in zip(expected, answer, tops, strict=True):
        numbers = {int(name.partition(":")[2]): value for name, value in top.items()}
        expect(token in numbers and len(numbers) >= 5, f"{numbers} for token {token}")
        gaps += [abs(float(row[i]) - value) for i, value in numbers.items()]
    mean = sum(gaps) / len(gaps)
    expect(mean <= CLOSE, f"{mean:.2f} nats from Hugging Face's")
    return f"works: {mean:.2f} nats from Hugging Face's float32, at most {max(gaps):.2f}"


def answered(server: Server, **body: Any) -> str:
    expect(all(choice["text"] for choice in server.choices(LONG, **body)), "an empty answer")
    return "works"


def crowd(server: Server) -> str:
    with ThreadPoolExecutor(CROWD) as pool:
        answers = list(pool.map(lambda _: server.ask(SHORT), range(CROWD)))
    for answer in answers:
        server.expect_greedy(server.prompt(SHORT), answer)
    return f"work: {CROWD}, whatever --max-num-seqs is"


def guarded(server: Server) -> str:
    """With --api-key, every path that takes a request wants the key."""
    expect(server.key, "give --api-key here and to the server")
    for path in GUARDED:
        for wrong in ({}, {"Authorization": "Bearer wrong"}):
            status = httpx.post(server.http.base_url.join(path), json={}, headers=wrong).status_code
            expect(status == 401, f"{path} without the key: status {status}")
    return "works: 401 without it"


def tools(server: Server) -> str:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    server.expect_greedy(server.prompt(SHORT), server.ask(SHORT, CHAT, tools=[tool]))
    return "work: a text without a call is content"


def completions(server: Server) -> str:
    texts = [server.tokenizer.decode(server.prompt(question)) for question in (SHORT, LONG)]
    answers = [choice["token_ids"] for choice in server.choices(SHORT, prompt=texts)]
    expect(answers == [server.ask(SHORT), server.ask(LONG)], f"{answers}")
    return "works: prompts as text or token ids, one or several"


def stream(server: Server) -> str:
    (whole,) = server.choices(LONG, max_tokens=40)
    body = server.body(LONG, max_tokens=40, stream_options={"include_usage": True})
    events = list(server.stream(TEXT, **body))
    text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
    expect(text == whole["text"], f"{text!r}, not {whole['text']!r}")
    expect(len(events) > 20, f"{len(events)} events for 40 tokens")
    expect(events[-1]["usage"]["completion_tokens"] == 40, f"{events[-1]}")
    return "works: a piece for each token, with stream_options"


def prefix_cache(server: Server) -> str:
    """Two prompts with a long common beginning: the second one finds whole blocks of it."""
    prompt = server.prompt(LONG) * 12 + server.prompt(SHORT)
    answers, hits = [], []
    for _ in range(2):
        answers.append(server.ask(SHORT, prompt=prompt))
        hits.append(server.metric("vllm:prefix_cache_hits_total"))
    server.expect_greedy(prompt, answers[1])
    expect(answers[0] == answers[1], f"{answers}")
    expect(hits[1] - hits[0] >= len(prompt) // 128 * 128, f"{hits} tokens found of {len(prompt)}")
    return "works (vLLM's default): the text of an uncached prompt"


def other_endpoints(server: Server) -> str:
    """Each returns the greedy text, the prompt's token ids, or just status 200."""
    (choice,) = server.choices(SHORT, CHAT)
    text, asked = choice["message"]["content"], messages(SHORT)
    found = server.answer("/v1/responses", input=SHORT, temperature=0, max_output_tokens=16)
    expect(found["output"][-1]["content"][0]["text"] == text, f"/v1/responses: {found}")
    found = server.answer("/v1/messages", messages=asked, temperature=0, max_tokens=16)
    expect(found["content"][0]["text"] == text, f"/v1/messages: {found}")
    found = server.answer("/tokenize", messages=asked)
    expect(found["tokens"] == server.prompt(SHORT), f"/tokenize: {found}")
    for path in ("/health", "/ping", "/version", "/metrics", "/load"):
        expect(server.http.get(path).is_success, path)
    return "work"


def extremes(server: Server) -> str:
    """The server may refuse or fail such a request, but that one alone."""
    counts = Counter(server.post(TEXT, server.body(SHORT, **e)).status_code for e in EXTREMES)
    server.expect_greedy(server.prompt(SHORT), server.ask(SHORT))
    return f"the server lives; of each status: {dict(sorted(counts.items()))}"


def refused(server: Server, by: str, words: str, path: str = TEXT, **body: Any) -> str:
    """The server answers with status 400 (404: no such path) and these words."""
    form = path if path == CHAT else TEXT
    response = server.post(path, server.body(SHORT, form, return_token_ids=False, **body))
    expect(response.status_code in (400, 404), f"status {response.status_code}: {response.text}")
    expect(words in response.text.replace('\\"', '"'), f"other words: {response.text}")
    return f'refused by {by}: "{words}"'


# ---- the table

# fmt: off
REFUSED = [  # by, words, request
    *(("the script's checks", *case) for case in (
        ("vLLM ignores bad_words here", dict(bad_words=["a"])),
        ("vLLM ignores bad_words here", dict(bad_words=["a"], path="/invocations")),
        ("the plugin ignores thinking_token_budget", dict(path=CHAT, thinking_token_budget=8)),
        ("seed must be", dict(seed=1 << 40)),
        ("seed must be", dict(seed="1099511627776.0", path=CHAT)),
        ("stop_token_ids must be", dict(stop_token_ids=["2000000.00"], min_tokens=2)),
    )),
    ("the plugin", "which is greater than max allowed: 20", dict(logprobs=21)),
    ("the plugin", "Not yet supporting prompt_logprobs on tt", dict(prompt_logprobs=1)),
    ("vLLM", "suffix is not currently supported", dict(suffix="x")),
    ("vLLM", "You must set `--enable-prompt-embeds`", dict(prompt_embeds="AAAA")),
    *(("vLLM", "Not Found", dict(path=path)) for path in ("/v1/embeddings", "/pooling", "/score", "/rerank")),
]


def shown(option: dict) -> str:
    return ", ".join(f"{name} {json.dumps(value)}"[:60] for name, value in option.items() if value != CHAT)


def cases(server: Server) -> Iterator[tuple[str, Check]]:
    """Yield the lines of the table: the option and its check. A check that is a partial holds in any company."""
    one = dict(changes=False, temperature=HOT, seed=1)  # a single candidate is left
    longer = dict(question=SHORT, ignore_eos=True, max_tokens=40)  # past its end the model is less sure
    first = {f"{server.ask(SHORT)[0]}": -100}
    words = sorted({i for text in (" the", " a", " fox", ".", " Tom") for i in server.ids(text)})
    for option, rest in (
        ({"temperature": 0}, dict(changes=False, max_tokens=32)),
        ({"top_k": 1}, one),
        ({"top_p": 1e-6}, one),
        ({"min_p": 1.0}, one),
        ({"repetition_penalty": 1.3}, longer),
        ({"presence_penalty": 2.0}, longer),
        ({"frequency_penalty": 2.0}, longer),
        ({"logit_bias": {f"{words[0]}": 100}}, {}),
        ({"logit_bias": first}, dict(question=SHORT)),
        ({"allowed_token_ids": words}, {}),
        ({"bad_words": ["red", "for"]}, dict(path=CHAT, max_tokens=48)),
        ({"bad_words": ["red fox"]}, dict(path=CHAT, max_tokens=48)),
        ({"min_tokens": 24}, dict(question=SHORT, max_tokens=40)),
        ({"ignore_eos": True}, dict(question=SHORT, max_tokens=32)),
    ):
        yield shown(option), partial(greedy, option=option, **rest)
    for by, refusal, body in REFUSED:
        yield shown(body) or body["path"], partial(refused, by=by, words=refusal, **body)
    yield "use_beam_search", partial(answered, use_beam_search=True, n=3, return_token_ids=False)
    yield "echo", partial(answered, echo=True)
    yield "extreme numbers", partial(extremes)
    yield "seed, n", seed
    yield "stop, stop_token_ids", stop
    yield "logprobs", log_probs
    yield "structured outputs of every kind", structures
    yield "requests at once", crowd
    if server.key:
        yield "--api-key", guarded
    yield "tools", tools
    yield TEXT, completions
    yield "stream", stream
    yield "--enable-prefix-caching", prefix_cache
    yield "other endpoints", other_endpoints
# fmt: on


def run(server: Server, check: Check, company: str = "alone") -> str:
    """Return a check's words. In company two chats run on: a new request takes the row of one for its prefill."""
    endless = dict(messages=messages(LONG), temperature=0, ignore_eos=True, max_tokens=1900)
    streams = [server.stream(CHAT, **endless) for _ in range(2 * (company == BESIDE))]
    server.aborts = company == AFTER
    try:
        for chat in streams:
            expect(next(chat, None), "no stream of 1,900 tokens: start the server with --max-model-len 2048")
        return check(server)
    except (Fault, ValueError, KeyError, httpx.HTTPError) as fault:
        return f"FAULT: {type(fault).__name__}: {fault}"
    finally:
        for chat in streams:
            chat.close()
        server.aborts = False


def table(server: Server, lines: list[tuple[str, Check]]) -> int:
    """Send each case alone, beside running requests and after an abort; print its line. Return the number of faults."""
    print(f"| option | alone | {BESIDE} | {AFTER} |\n| --- | --- | --- | --- |")
    faults = 0
    for option, check in lines:
        results = [run(server, check, company) for company in ("alone", BESIDE, AFTER)]
        faults += sum(text.startswith("FAULT") for text in results)
        same = ["the same" if text == results[0] else text for text in results[1:]]
        print(f"| {option} | {' | '.join([results[0], *same])} |", flush=True)
    return faults


def load(server: Server, lines: list[tuple[str, Check]]) -> int:
    """Send random cases, many at once; return the number of faults. At the end no sequence may hold a block."""
    steady = [case for case in lines if isinstance(case[1], partial)]
    chosen = random.Random(0).choices(steady, k=LOAD)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda case: run(server, case[1]), chosen))
    faults = [(name, text) for (name, _), text in zip(chosen, results) if text.startswith("FAULT")]
    for name, text in faults:
        print(f"{name}: {text}")
    deadline = time.monotonic() + 60  # the last aborted requests may still be running
    while (held := server.metric("vllm:kv_cache_usage_perc")) and time.monotonic() < deadline:
        time.sleep(1)
    print(f"\n{LOAD} random cases, {AT_ONCE} at once: {len(faults)} faults, {held:.1%} of the cache held")
    return len(faults) + (held > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="(default: %(default)s)")
    parser.add_argument("--only", default="", metavar="WORDS", help="only cases with these words")
    parser.add_argument("--api-key", default="", help="the server's")
    args = parser.parse_args()
    server, began = Server(args.url, args.api_key), time.perf_counter()
    lines = [case for case in cases(server) if args.only in case[0]]
    faults = table(server, lines)
    if not args.only:
        faults += load(server, lines)
    print(f"{faults} faults, {time.perf_counter() - began:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
