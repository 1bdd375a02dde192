"""The server that check_server.py checks, and what its answers must be by Hugging Face's model of its checkpoint."""

import json
import math
import re
import sys
from collections import Counter
from itertools import cycle
from typing import Any, Iterator

import httpx
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

NEAR_TIE = 0.25  # between Hugging Face's logits of two tokens: 8-bit weights may exchange them
PATIENCE = 900  # seconds for an answer; a golden mesh is slow
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
ABORTED = cycle(({}, {"structured_outputs": {"regex": "[a-z ]{90,}"}}))  # options of aborted requests
LONG = "Tell a story about teacher Tom, doctor Anna and a fox."


class Fault(Exception):
    """An answer is not what the option asks for."""


def expect(right: object, fault: str) -> None:
    if not right:
        raise Fault(fault[:600])


class Server:
    """Sends requests to a server; holds Hugging Face's model of its checkpoint."""

    def __init__(self, url: str, key: str = ""):
        # vLLM closes the connection after some refusals, so each request has its own.
        alone = httpx.Limits(max_keepalive_connections=0)
        self.key = key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=url, timeout=PATIENCE, limits=alone, headers=headers)
        try:
            response = self.http.get("/v1/models")
        except httpx.HTTPError as error:
            sys.exit(f"error: no server at {url} ({error}): start one with make serve")
        if response.status_code == 401:
            sys.exit(f"error: {url} asks for a key: give it with --api-key")
        served = response.json()["data"][0]
        self.model = served["id"]
        self.aborts = False  # whether an aborted request precedes each request
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(served["root"])  # for its template
        self.rules = Tokenizer.from_file(f"{served['root']}/tokenizer.json")
        torch.set_num_threads(1)  # the server has the other processors
        # Against commas where a grammar leaves a choice: the model would write one tool call after another.
        texts = map(self.tokenizer.decode, range(len(self.tokenizer)))
        self.no_commas = {f"{token}": -100 for token, text in enumerate(texts) if "," in text}
        self.hf = AutoModelForCausalLM.from_pretrained(served["root"], dtype=torch.float32).eval()
        stops = self.hf.generation_config.eos_token_id
        self.stop_ids = stops if isinstance(stops, list) else [stops]

    def post(self, path: str, body: dict) -> httpx.Response:
        if self.aborts:
            next(self.stream(CHAT, messages=messages(LONG), max_tokens=99, **next(ABORTED)), None)
        content = json.dumps({"model": self.model} | body)  # with NaN, which httpx refuses to send
        return self.http.post(path, content=content, headers={"Content-Type": "application/json"})

    def answer(self, path: str, **body: Any) -> dict:
        response = self.post(path, body)
        expect(response.is_success, f"status {response.status_code}: {response.text}")
        return response.json()

    def body(self, question: str, path: str = TEXT, **body: Any) -> dict:
        """Return a greedy request of 16 tokens, with changes."""
        asked = dict(temperature=0, max_tokens=16, return_token_ids=True)
        if path == TEXT:
            return {"prompt": self.prompt(question)} | asked | body
        return {"messages": messages(question)} | asked | body

    def choices(self, question: str, path: str = TEXT, **body: Any) -> list[dict]:
        return self.answer(path, **self.body(question, path, **body))["choices"]

    def ask(self, question: str, path: str = TEXT, **body: Any) -> list[int]:
        """Return the token ids of the answer."""
        return self.choices(question, path, **body)[0]["token_ids"]

    def stream(self, path: str, **body: Any) -> Iterator[dict]:
        """Yield the events of a streamed answer."""
        content = {"model": self.model, "stream": True} | body
        with self.http.stream("POST", path, json=content) as response:
            for line in response.iter_lines():
                name, _, data = line.partition(": ")
                if name == "data" and data != "[DONE]":
                    yield json.loads(data)

    def metric(self, name: str) -> float:
        """Return a metric of vLLM, summed over its labels."""
        pattern = rf"^{re.escape(name)}(?:{{.*}})? (\S+)$"
        return sum(map(float, re.findall(pattern, self.http.get("/metrics").text, re.M)))

    def prompt(self, question: str) -> list[int]:
        text = self.tokenizer.apply_chat_template(messages(question), tokenize=False, add_generation_prompt=True)
        return self.ids(text)

    def ids(self, text: str) -> list[int]:
        return self.rules.encode(text, add_special_tokens=False).ids

    @torch.no_grad()
    def logits(self, prompt: list[int], answer: list[int]) -> torch.Tensor:
        """Return Hugging Face's logits of each token of the answer, [tokens, vocab] float32."""
        return self.hf(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]

    def expect_greedy(self, prompt: list[int], answer: list[int], option: dict = {}) -> None:
        """Each token is the first choice of Hugging Face's logits after the option's formula."""
        expect(answer, "an empty answer")
        for i, logits in enumerate(self.logits(prompt, answer)):
            logits = self.changed(logits.clone(), prompt, answer[:i], option)
            gap = float(logits.max() - logits[answer[i]])
            expect(gap <= NEAR_TIE, f"token {i} of {answer} is {gap:.2f} below the first choice")

    def changed(self, logits: torch.Tensor, prompt: list[int], answer: list[int], option: dict) -> torch.Tensor:
        """Return logits [vocab] after the formulas of a request's options. answer: the tokens so far."""
        factor = option.get("repetition_penalty", 1.0)
        presence, frequency = option.get("presence_penalty", 0), option.get("frequency_penalty", 0)
        seen = list({*prompt, *answer})
        logits[seen] = torch.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
        for token, times in Counter(answer).items():
            logits[token] -= presence + frequency * times
        for token, bias in option.get("logit_bias", {}).items():
            logits[int(token)] += bias
        if "allowed_token_ids" in option:
            banned = torch.ones(len(logits), dtype=torch.bool)
            banned[option["allowed_token_ids"]] = False
            logits[banned] = -math.inf
        for word in option.get("bad_words", ()):
            for *first, last in (self.ids(word), self.ids(" " + word)):
                if answer[len(answer) - len(first) :] == first:
                    logits[last] = -math.inf
        if len(answer) < option.get("min_tokens", 0):
            logits[self.stop_ids] = -math.inf
        return logits


def messages(question: str) -> list[dict]:
    return [{"role": "user", "content": question}]
