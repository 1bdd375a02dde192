"""Send random requests to a server and check its answers: .venv-vllm/bin/python scripts/soak.py [options].

Each second request is normal: greedy, and its text must be Hugging Face's in float32. A third of these begin with one
of a few long system prompts. A quarter of the others ask for structured output, which is checked. The rest have up to
three extreme parameters. The server may refuse or fail an extreme request, but that one alone. Every 200 requests a
line shows the resident memory of the server's processes and the cache that sequences hold.

Faults are a normal request without an answer or with a wrong text, a lost connection, a cache block that is still held
at the end, and memory that grows by more than 2 % after the first 200 requests. With faults the exit status is 1.

Run it where the server was started: the server may name its model by a relative path.
"""

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from enum import Enum
from math import inf, nan
from typing import Iterator, NamedTuple, Optional

import httpx
import psutil
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NEAR_TIE = 0.25  # between Hugging Face's logits of two tokens: 8-bit weights may exchange them
NEW_TOKENS = 16
PATIENCE = 900  # seconds for an answer; a golden mesh is slow
SAMPLE = 200  # requests between two looks at the server's memory
GROWTH = 1.02  # of the server's memory behind the first look
JSON = {"Content-Type": "application/json"}
TINY, HUGE = (1e-46, 1e-40, 1e-30, 5e-324), (1e39, 1e300, inf, nan)
SIGNED = (*TINY, *HUGE, 0, -1e-46, -2, 2, -2.1, -1e39, -inf, "1", None, [])
INTEGERS = [0, 1, -1, *(n for bits in (31, 32, 63, 64, 100) for n in (2**bits, 2**bits - 1, -(2**bits)))]  # fmt: skip
EXTREMES = {
    "temperature": (*TINY, *HUGE, 0, 1e-3, 0.01, 2, 100, -1),
    "top_p": (*TINY, *HUGE, 0, 0.999999, 1, 1.0000001, -1),
    "top_k": (*INTEGERS, 2, 32, 33, 1000),
    "min_p": (*TINY, *HUGE, 0, 0.5, 1, 1.1),
    "repetition_penalty": (*TINY, *HUGE, 0, 0.1, 10, 1e30, -1),
    "presence_penalty": SIGNED,
    "frequency_penalty": SIGNED,
    "logit_bias": [{}, {"-1": 1}, {str(2**40): 1}, {"x": 1}]
    + [{"5": bias} for bias in (100, -100, nan, 1e39, 1e-46)],
    "n": (0, 1, 2, 5, -1, 2**31, 2**64),
    "bad_words": ([], [""], ["the"], ["a", " a", "e"], ["x" * 1000], ["\0"], [1]),
    "seed": (*INTEGERS, 1.5),
    "stop": ([], [""], "", "a", ["a", "b", "c", "d", "e"], ["x" * 10000], ["\0"]),
    "stop_token_ids": ([], [5], [-1], [2**40], list(range(1000))),
    "max_tokens": (0, 1, 2, -1, 10**4, 2**31, 2**64),
    "min_tokens": (0, 1, 8, 10**4, -1, 2**40),
    "logprobs": (0, 1, 5, 20, 21, -1, -2, 10**6, True),
    "prompt_logprobs": (0, 1, -1),
    "allowed_token_ids": ([], [5], [5, 6, 7], [-1], [2**40]),
    "ignore_eos": (True,),
    "echo": (True,),
    "stream": (True,),
    "priority": (2**40,),
    "truncate_prompt_tokens": (0, 1, -1, 10**6),
    "structured_outputs": [{"choice": ["yes", "no"]}, {"choice": []}, {"json": {}}]
    + [{"regex": regex} for regex in ("[0-9]{1,3}", "(")],
    "prompt": ["", [], "\0", "\ud800", "a " * 5000, [[5], [6]], [""], None]
    + [[token] for token in (0, -1, 2**31, 2**64)]
    + [[0] * length for length in (2047, 2048)],
}
# structured_outputs, and the pattern that the answer must match
STRUCTURED = (
    ({"choice": ["yes", "no", "New Delhi"]}, "yes|no|New Delhi"),
    ({"regex": "[A-Z][a-z]{2,6}, [0-9]{2,4}"}, "[A-Z][a-z]{2,6}, [0-9]{2,4}"),
    (
        {
            "json": {
                "type": "object",
                "properties": {"city": {"enum": ["Oslo", "Paris"]}, "large": {"type": "boolean"}},
                "required": ["city", "large"],
                "additionalProperties": False,
            }
        },
        r'\{"city": ?"(Oslo|Paris)", ?"large": ?(true|false)\}',
    ),
)
PREFIXES = 4  # shared beginnings of prompts, of about 200 tokens
WORDS = "France", "Japan", "Norway", "banana", "garden", "seven", "river", "house"
QUESTIONS = (
    "What is {number} + {other}?",
    "Count from {number} to {other}.",
    "What is the capital of {word}?",
    "Spell the word {word}.",
    "Tell a story about teacher Tom, doctor Anna and a fox.",
)


class Kind(Enum):
    NORMAL = "normal"
    STRUCTURED = "structured"
    EXTREME = "extreme"


class Asked(NamedTuple):
    """A request. pattern: what the answer of a structured one must match."""

    kind: Kind
    body: dict
    pattern: str = ""


def make_requests(count: int, seed: int, model: str, tokenizer) -> Iterator[Asked]:
    """Yield requests. Each second one is normal; one of sixteen has many questions in a row."""
    rng = random.Random(seed)

    def questions(number: int) -> str:
        text = ""
        for _ in range(number):
            number, other, word = rng.randrange(30), rng.randrange(30), rng.choice(WORDS)
            question = rng.choice(QUESTIONS).format(number=number, other=other, word=word)
            chat = [{"role": "user", "content": question}]
            text += tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return text

    prefixes = [questions(12) for _ in range(PREFIXES)]
    for i in range(count):
        text = questions(rng.choice((1,) * 15 + (rng.randrange(2, 40),)))
        kind = Kind.EXTREME if i % 2 else Kind.NORMAL
        if i % 8 == 3:
            kind = Kind.STRUCTURED
        elif i % 6 == 0:
            text = rng.choice(prefixes) + text
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        body = dict(model=model, prompt=prompt, max_tokens=NEW_TOKENS, return_token_ids=True)
        body["temperature"] = 0 if kind is Kind.NORMAL else rng.randrange(2)
        pattern = ""
        if kind is Kind.STRUCTURED:
            structured, pattern = rng.choice(STRUCTURED)
            body |= dict(structured_outputs=structured, max_tokens=4 * NEW_TOKENS)
        elif kind is Kind.EXTREME:
            names = rng.choices(list(EXTREMES), k=rng.choice((1, 1, 2, 3)))
            body |= {name: rng.choice(EXTREMES[name]) for name in names}
        yield Asked(kind, body, pattern)


class Server:
    """The memory of the server's processes, and the cache that its sequences hold."""

    def __init__(self, url: str):
        port = httpx.URL(url).port
        listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        pids = [c.pid for c in listening if c.laddr.port == port]
        if not pids:
            sys.exit(
                f"error: no process of this machine listens on port {port}: run it beside the server"
            )
        front = psutil.Process(pids[0])
        self._processes = [front, *front.children(recursive=True)]
        self.memory: list[int] = []  # bytes at each look

    def look(self) -> int:
        self.memory.append(sum(process.memory_info().rss for process in self._processes))
        return self.memory[-1]

    @staticmethod
    async def cache_usage(http: httpx.AsyncClient) -> float:
        """Return the part of the cache's blocks that sequences hold; cached prefixes are free blocks."""
        text = (await http.get("/metrics")).text
        return sum(map(float, re.findall(r"^vllm:kv_cache_usage_perc(?:{.*})? (\S+)$", text, re.M)))


class Soak:
    """Sends the requests and keeps what is wrong with the answers."""

    def __init__(self, server: Server):
        self.server = server
        self.answers: list[tuple[list[int], list[int]]] = []  # of normal requests: prompt, answer
        self.statuses: Counter[str] = Counter()  # of other requests
        self.faults: list[str] = []

    async def run(self, url: str, requests: Iterator[Asked], at_once: int) -> None:
        waiting = enumerate(requests, 1)
        # vLLM closes the connection behind some refusals, so each request has its own.
        alone = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=alone) as http:
            await asyncio.gather(*(self._client(http, waiting) for _ in range(at_once)))
            health = await self._send(http, "GET", "/health", "", PATIENCE)
            self._check(health is not None and health.is_success, "the server is not healthy")
            await self._check_blocks(http)
            first, *later = [*self.server.memory, self.server.look()]
            grown = max(later, default=first) / first
            self._check(grown <= GROWTH, f"the server's memory has grown to {grown:.3f} of itself")

    async def _check_blocks(self, http: httpx.AsyncClient) -> None:
        for _ in range(60):  # the last aborted requests may still be running
            if not (held := await self.server.cache_usage(http)):
                return
            await asyncio.sleep(1)
        self._check(False, f"{held:.4f} of the cache is held and no request is there")

    async def _client(self, http: httpx.AsyncClient, waiting: Iterator[tuple[int, Asked]]) -> None:
        """One of many clients of the same iterator: send a request, wait for its answer, go on."""
        for number, asked in waiting:
            if number % SAMPLE == 0:
                memory, held = self.server.look() / 1e6, await self.server.cache_usage(http)
                print(
                    f"{number} requests, {len(self.faults)} faults, {memory:.1f} MB resident, "
                    f"{held:.1%} of the cache held",
                    flush=True,
                )
            text = json.dumps(asked.body)  # with NaN and Infinity, which httpx refuses to send
            leaves = number % 40 == 0  # a client that closes its connection early
            response = await self._send(
                http, "POST", "/v1/completions", text, 2 if leaves else PATIENCE
            )
            if leaves or response is None:
                self._check(leaves, f"no answer: {text[-500:]}")
                self.statuses["left by the client"] += 1
            else:
                self._read(response, asked, text)

    async def _send(
        self, http: httpx.AsyncClient, method: str, path: str, text: str, patience: float
    ) -> Optional[httpx.Response]:
        """Return the response. None: the connection was lost, or no answer came in time."""
        try:
            request = http.request(method, path, content=text, headers=JSON)
            return await asyncio.wait_for(request, patience)
        except (asyncio.TimeoutError, httpx.HTTPError):
            return None

    def _read(self, response: httpx.Response, asked: Asked, text: str) -> None:
        status = f"status {response.status_code} {response.text[:300]}: {text[-500:]}"
        if asked.kind is Kind.EXTREME:
            failed = response.status_code >= 500
            result = "answered" if response.is_success else "failed" if failed else "refused"
            self.statuses[result] += 1
            if failed:
                print(status, flush=True)
        elif self._check(response.is_success, status):
            (choice,) = response.json()["choices"]
            if asked.kind is Kind.STRUCTURED:
                matches = re.fullmatch(asked.pattern, choice["text"]) is not None
                self._check(matches, f"not as asked: {choice['text']!r}: {text[-500:]}")
                self.statuses["structured"] += 1
            else:
                ids = choice["token_ids"]
                ended = len(ids) == NEW_TOKENS or choice["finish_reason"] == "stop" and ids
                self._check(ended, f"the answer ends early: {choice}: {text[-500:]}")
                self.answers.append((asked.body["prompt"], ids))

    def _check(self, right: object, fault: str) -> bool:
        if not right:
            self.faults.append(fault)
            print(fault, flush=True)
        return bool(right)


@torch.no_grad()
def gaps(hf, prompt: list[int], answer: list[int]) -> list[float]:
    """Return, for each token that is not Hugging Face's first choice, how far its logit is behind.

    Each token follows the answer's own tokens. An answer without a gap is Hugging Face's greedy text.
    """
    logits = hf(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    behind = logits.max(-1).values - logits.gather(-1, torch.tensor(answer)[:, None])[:, 0]
    return behind[behind > 0].tolist()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    option = parser.add_argument
    option("--url", default="http://127.0.0.1:8000", help="(default: %(default)s)")
    option("--requests", type=int, default=2000, help="(default: %(default)s)")
    option("--at-once", type=int, default=64, help="requests in flight (default: %(default)s)")
    option("--seed", type=int, default=0, help="of the random requests (default: %(default)s)")
    args = parser.parse_args()
    served = httpx.get(f"{args.url}/v1/models").json()["data"][0]
    tokenizer = AutoTokenizer.from_pretrained(served["root"])
    torch.set_num_threads(1)  # the server has the other processors
    server = Server(args.url)
    soak, begin = Soak(server), time.perf_counter()
    requests = make_requests(args.requests, args.seed, served["id"], tokenizer)
    asyncio.run(soak.run(args.url, requests, args.at_once))
    seconds = time.perf_counter() - begin
    hf = AutoModelForCausalLM.from_pretrained(served["root"], dtype=torch.float32).eval()
    differing = [found for answer in soak.answers if (found := gaps(hf, *answer))]
    widest = max(map(max, differing), default=0.0)
    if widest > NEAR_TIE:
        soak.faults.append(f"a token is {widest:.2f} behind Hugging Face's first choice")
    equal, count = len(soak.answers) - len(differing), len(soak.answers)
    print(f"{args.requests} requests in {seconds:.0f} s")
    print(f"normal: {equal} of {count} texts are Hugging Face's", end="; ")
    print(f"{len(differing)} differ in near ties, the widest gap {widest:.3f}")
    print("others:", ", ".join(f"{count} {name}" for name, count in soak.statuses.most_common()))
    first, last = server.memory[0] / 1e6, server.memory[-1] / 1e6
    print(
        f"the server's memory: {first:.1f} MB after {min(SAMPLE, args.requests)}, {last:.1f} MB at the end"
    )
    print("\n".join(soak.faults[:20]) or "no faults")
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
