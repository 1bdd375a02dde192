"""The table of tool calls, for a server with --enable-auto-tool-choice --tool-call-parser hermes.

A grammar forces the calls, so a model that was not taught tools shows the path of the parser.
"""

import json
from functools import partial
from typing import Any

import jsonschema
from options_client import Client, Row, expect, refused
from options_sampling import CHAT

QUESTION = "What is the capital of France?"
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
TOOLS = [WEATHER, ADD]
CALL = r'<tool_call>\n\{"name": "get_weather", "arguments": \{"city": "(Paris|Oslo)", "days": [1-9]\}\}\n</tool_call>'


def is_call(calls: list[dict]) -> bool:
    (call,) = calls
    jsonschema.validate(json.loads(call["function"]["arguments"]), PARAMETERS)
    return call["function"]["name"] == "get_weather"


def joined(deltas: list[dict]) -> list[dict]:
    """Return the tool calls of a stream."""
    calls: dict[int, dict] = {}
    for delta in deltas:
        for piece in delta.get("tool_calls") or ():
            call = calls.setdefault(piece["index"], {"function": {"name": "", "arguments": ""}})
            for name, text in piece["function"].items():
                call["function"][name] += text or ""
    return [calls[index] for index in sorted(calls)]


def request(client: Client, **body: Any) -> dict:
    """No token of blanks alone: the grammar of a named tool allows any number of them."""
    blanks = [
        i for i in range(len(client.tokenizer)) if not client.tokenizer.decode([i]).strip(" \n\t")
    ]
    bias = {"logit_bias": {str(i): -100 for i in blanks}}
    return (
        dict(messages=client.messages(QUESTION), tools=TOOLS, max_tokens=100, temperature=0)
        | bias
        | body
    )


def calls(client: Client, result: str, **body: Any) -> str:
    body = request(client, **body)
    (choice,) = client.answer(CHAT, **body)["choices"]
    expect(
        choice["message"].get("tool_calls") and is_call(choice["message"]["tool_calls"]),
        f"{choice}",
    )
    expect(choice["finish_reason"] in ("tool_calls", "stop"), f"{choice}")
    events = [event["choices"][0] for event in client.stream(CHAT, **body) if event["choices"]]
    streamed = joined([event["delta"] for event in events])
    expect(streamed and is_call(streamed), f"streamed: {streamed}")
    return f"works: {result}"


def no_call(client: Client) -> str:
    for tool_choice in ("auto", "none"):
        (choice,) = client.answer(
            CHAT, **request(client, tool_choice=tool_choice, logit_bias=None)
        )["choices"]
        expect(not choice["message"].get("tool_calls"), f"{choice}")
        client.expect_greedy(QUESTION, client.ids(choice["message"]["content"]))
    return "works: the text of a model that calls no tool is content"


def answers(client: Client) -> str:
    """The messages of a call and its answer, in the checkpoint's chat template."""
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    turns = [
        *client.messages(QUESTION),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "The capital of Kenya is Nairobi."},
    ]
    body = request(client, messages=turns, logit_bias=None)
    asked = client.answer("/tokenize", messages=turns, tools=TOOLS)
    prompt = client.tokenizer.decode(asked["tokens"])
    expect("Nairobi" in prompt, f"the template leaves the tool's answer out: {prompt!r}")
    used = client.answer(CHAT, **body)["usage"]["prompt_tokens"]
    expect(used == asked["count"], f"{used} tokens, not {asked['count']}")
    return "works: in the prompt as the chat template says"


ROWS = [
    Row("`tools`, no call", no_call),
    Row(
        "`tool_choice` auto",
        partial(
            calls, result="the hermes parser reads the call", structured_outputs={"regex": CALL}
        ),
    ),
    Row(
        "`tool_choice` of a name",
        partial(
            calls,
            result="a grammar forces the call",
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
        ),
    ),
    Row(
        "`tool_choice` required",
        partial(
            calls,
            result="a grammar forces one of the tools",
            tool_choice="required",
            tools=[WEATHER],
        ),
    ),
    Row("role tool", answers),
    Row(
        "`tool_choice` of an unknown name",
        partial(
            refused,
            limit="vLLM",
            words="does not match any of the specified `tools`",
            path=CHAT,
            tools=TOOLS,
            tool_choice={"type": "function", "function": {"name": "x"}},
        ),
    ),
]
