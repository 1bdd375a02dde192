"""One request to each of the server's routes, and its answer in one form."""

import json
from dataclasses import dataclass, field
from typing import Any, Iterator

import httpx
from checked_server import CHAT, TEXT

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
OPENAI = (CHAT, TEXT)


@dataclass
class Answer:
    texts: dict[Any, str] = field(default_factory=dict)  # by choice, block or call
    reasons: list[str] = field(default_factory=list)
    refusal: str = ""
    status: int = 200

    def add(self, key: Any, text: Any) -> None:
        self.texts[key] = self.texts.get(key, "") + (text or "")

    @property
    def cut(self) -> bool:
        return any(reason in ("length", "max_tokens", "incomplete") for reason in self.reasons)


def read_openai(answer: Answer, choices: list[dict], form: str) -> None:
    for choice in choices:
        part = choice if "text" in choice else choice[form]
        calls = part.get("tool_calls") or []
        for number, one in enumerate(calls):
            answer.add((choice["index"], one.get("index", number)), one["function"].get("arguments"))
        text = part.get("text", part.get("content"))
        if text or not calls and form == "message":
            answer.add(choice["index"], text)
        answer.reasons += [choice["finish_reason"]] if choice["finish_reason"] else []


def read_whole(route: str, content: dict) -> Answer:
    answer = Answer()
    if route in OPENAI:
        read_openai(answer, content["choices"], "message")
    elif route == RESPONSES:
        answer.reasons.append(content["status"])
        for number, item in enumerate(content["output"]):
            if item["type"] == "function_call":
                answer.add(number, item["arguments"])
            for part in item.get("content") or []:
                answer.add(number, part.get("text"))
    else:
        answer.reasons.append(content["stop_reason"])
        for number, block in enumerate(content["content"]):
            answer.add(number, json.dumps(block["input"]) if block["type"] == "tool_use" else block["text"])
    return answer


def read_stream(route: str, events: Iterator[dict]) -> Answer:
    answer = Answer()
    for event in events:
        if "error" in event or event.get("type") == "error":
            error = event.get("error", event)
            answer.refusal, answer.status = error["message"], int(error.get("code", 400))
        elif route in OPENAI:
            read_openai(answer, event["choices"], "delta")
        elif route == RESPONSES:
            if event["type"] in ("response.output_text.delta", "response.function_call_arguments.delta"):
                answer.add(event["output_index"], event["delta"])
            if event["type"] in ("response.completed", "response.incomplete"):
                answer.reasons.append(event["response"]["status"])
        elif event["type"] == "content_block_delta":
            answer.add(event["index"], event["delta"].get("text") or event["delta"].get("partial_json"))
        elif event["type"] == "message_delta":
            answer.reasons.append(event["delta"]["stop_reason"])
    return answer


def send(client: httpx.Client, route: str, body: dict, streams: bool) -> Answer:
    with client.stream("POST", route, json=body | {"stream": streams}) as response:
        if streams and response.is_success:
            data = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
            return read_stream(route, (json.loads(event) for event in data if event != "[DONE]"))
        response.read()
        content = response.json()
        if response.is_success:
            return read_whole(route, content)
        error = content.get("error")
        return Answer(
            refusal=error["message"] if isinstance(error, dict) else response.text, status=response.status_code
        )
