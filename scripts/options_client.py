"""What the tables of scripts/options.py share: requests, Hugging Face's logits, and faults."""

import json
import re
import sys
from typing import Any, Callable, Iterator, NamedTuple, Optional

import httpx
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NEAR_TIE = 0.25  # between Hugging Face's logits of two tokens: 8-bit weights may exchange them
CLOSE = 0.25  # between a log-probability and Hugging Face's, nats; of 8-bit weights, too
PATIENCE = 900  # seconds for an answer; a golden mesh is slow
Change = Callable[
    [torch.Tensor, list[int]], torch.Tensor
]  # (logits [vocab], answer so far) -> logits


class Fault(Exception):
    """An answer is not what the option asks for."""


class Row(NamedTuple):
    """A line of a table. check raises Fault, or returns the line's result."""

    option: str
    check: Callable[["Client"], str]


def expect(right: object, fault: str) -> None:
    if not right:
        raise Fault(fault)


class Client:
    """Sends requests to a server; holds Hugging Face's model of the checkpoint that the server serves."""

    def __init__(self, url: str):
        # vLLM closes the connection behind some refusals, so each request has its own.
        alone = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=url, timeout=PATIENCE, limits=alone)
        try:
            served = self.http.get("/v1/models").json()["data"][0]
        except httpx.HTTPError as error:
            sys.exit(
                f"error: no server at {url} ({error}): start one with make serve, or name it with --url"
            )
        self.model = served["id"]
        self.tokenizer = AutoTokenizer.from_pretrained(served["root"])
        torch.set_num_threads(1)  # the server has the other processors
        self.hf = AutoModelForCausalLM.from_pretrained(served["root"], dtype=torch.float32).eval()
        stops = self.hf.generation_config.eos_token_id
        self.stop_ids = stops if isinstance(stops, list) else [stops]

    # ---- requests

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json={"model": self.model} | body)

    def answer(self, path: str, **body: Any) -> dict:
        response = self.post(path, **body)
        expect(response.is_success, f"status {response.status_code}: {response.text[:300]}")
        return response.json()

    def complete(self, question: str, **body: Any) -> list[dict]:
        """Return the choices of /v1/completions, with token ids."""
        defaults = dict(prompt=self.prompt(question), temperature=0, max_tokens=16)
        return self.answer("/v1/completions", **defaults | dict(return_token_ids=True) | body)[
            "choices"
        ]

    def chat(self, question: str, **body: Any) -> list[dict]:
        """Return the choices of /v1/chat/completions, with token ids."""
        defaults = dict(messages=self.messages(question), temperature=0, max_tokens=16)
        path = "/v1/chat/completions"
        return self.answer(path, **defaults | dict(return_token_ids=True) | body)["choices"]

    def stream(self, path: str, **body: Any) -> Iterator[dict]:
        """Yield the events of a streamed answer."""
        content = {"model": self.model, "stream": True} | body
        with self.http.stream("POST", path, json=content) as response:
            expect(response.is_success, f"status {response.status_code}")
            for line in response.iter_lines():
                name, _, data = line.partition(": ")
                if name == "data" and data != "[DONE]":
                    yield json.loads(data)

    def metric(self, name: str) -> float:
        """Return a metric of vLLM, summed over its labels."""
        lines = re.findall(
            rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", self.http.get("/metrics").text, re.M
        )
        expect(lines, f"/metrics has no {name}")
        return sum(map(float, lines))

    # ---- what the answers must be

    @staticmethod
    def messages(question: str) -> list[dict]:
        return [{"role": "user", "content": question}]

    def prompt(self, question: str) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            self.messages(question), tokenize=False, add_generation_prompt=True
        )
        return self.ids(text)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.no_grad()
    def logits(self, prompt: list[int], answer: list[int]) -> torch.Tensor:
        """Return Hugging Face's logits of each token of the answer, [tokens, vocab] float32."""
        return self.hf(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]

    def expect_greedy(
        self, question: str, answer: list[int], change: Optional[Change] = None
    ) -> None:
        """Each token must be the first choice of Hugging Face's logits behind the tokens before it.

        change: what the option does to the logits.
        """
        expect(answer, "an empty answer")
        for i, logits in enumerate(self.logits(self.prompt(question), answer)):
            logits = change(logits.clone(), answer[:i]) if change else logits
            gap = float(logits.max() - logits[answer[i]])
            expect(gap <= NEAR_TIE, f"token {i} of {answer} is {gap:.2f} behind the first choice")

    def expect_ended(self, answer: list[int], most: int) -> None:
        ended = len(answer) == most or answer[-1] in self.stop_ids
        expect(ended, f"the answer ends after {len(answer)} tokens of {most}: {answer}")


def refused(
    client: Client, limit: str, words: str, path: str = "/v1/completions", **body: Any
) -> str:
    """Check that the server answers with status 400 (404: no such path) and these words; return the table's result."""
    own = "prompt" if path == "/v1/completions" else "messages"
    value = (
        client.prompt("What is 2 + 3?") if own == "prompt" else client.messages("What is 2 + 3?")
    )
    response = client.post(path, **{own: value, "max_tokens": 4} | body)
    expect(
        response.status_code in (400, 404), f"status {response.status_code}: {response.text[:300]}"
    )
    expect(words in response.text.replace('\\"', '"'), f"other words: {response.text[:300]}")
    return f'refused by {limit}: "{words}"'
