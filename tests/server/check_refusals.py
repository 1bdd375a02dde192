"""What a server refuses: .venv-vllm/bin/python tests/server/check_refusals.py [--url URL].

An option that a route does not read is refused by its name; /openapi.json, the server's own, says which options there
are and which route reads them. So is a name that no route knows; what clients send beside a request passes. Grammars
that are slow to compile keep no plain choice waiting. The server is one with tool calls:

    make serve ARGS="--enable-auto-tool-choice --tool-call-parser hermes"
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from answers import MESSAGES, RESPONSES
from check_grammars import CHAT_TOOL, CITY, OPENAI_TOOL
from checked_server import CHAT, TEXT

ROUTES = (CHAT, TEXT, RESPONSES, MESSAGES)
# These ask for no other text.
HARMLESS = {*"metadata model prompt_cache_key request_id service_tier store stream stream_options user".split()}
# What clients of OpenAI send beside a request.
USUAL = {"metadata": {"a": "b"}, "parallel_tool_calls": True, "prompt_cache_key": "x", "service_tier": "auto"}
USUAL |= {"safety_identifier": "x", "store": True, "user": "x", "top_p": None, "functions": None}
SAMPLES = {"integer": 7, "number": 0.37, "string": "x", "array": ["x"], "object": {"x": 1}}
LARGE, PATIENCE = 12, 10  # grammars at once; seconds
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PLAIN = {
    CHAT: {"messages": QUESTION, "max_tokens": 4},
    TEXT: {"prompt": "What", "max_tokens": 4},
    RESPONSES: {"input": QUESTION, "max_output_tokens": 4},
    MESSAGES: {"messages": QUESTION, "max_tokens": 4},
}
JSON = {"type": "json_schema", "json_schema": {"name": "s", "schema": CITY}}
TEXT_JSON = {"format": {"type": "json_schema", "name": "s", "schema": CITY}}
TOOL = {"tools": [CHAT_TOOL], "tool_choice": "required"}
RESPONSES_TOOL = {"tools": [OPENAI_TOOL | {"type": "function"}], "tool_choice": "required"}
MESSAGES_TOOL = {"tools": [{"name": "f", "input_schema": CITY}]}
# What else takes a request: its body.
OTHERS = {
    "/invocations": PLAIN[CHAT],
    "/tokenize": {"prompt": "What"},
    "/v1/chat/completions/batch": {"messages": [QUESTION], "max_tokens": 4},
    "/v1/chat/completions/render": PLAIN[CHAT],
    "/v1/completions/render": PLAIN[TEXT],
    "/v1/messages/count_tokens": {"messages": QUESTION},
}
# route, fields, words of the refusal
REFUSED = [
    (CHAT, TOOL | {"response_format": JSON}, "leave out the other"),
    (CHAT, TOOL | {"structured_outputs": {"choice": ["a"]}}, "leave out the other"),
    (CHAT, {"response_format": JSON, "structured_outputs": {"json": CITY}}, "leave out the other"),
    (RESPONSES, RESPONSES_TOOL | {"text": TEXT_JSON}, "leave out the other"),
    (MESSAGES, MESSAGES_TOOL | {"tool_choice": {"type": "any"}, "output_config": TEXT_JSON}, "leave out the other"),
    *((RESPONSES, RESPONSES_TOOL | {"tool_choice": {"type": kind} | more}, kind) for kind, more in (
        ("allowed_tools", {"mode": "required", "tools": [{"type": "function", "name": "f"}]}),
        ("web_search_preview", {}),
    )),
    (RESPONSES, {"tools": [{"type": "web_search"}]}, "web_search"),
    (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
    *((RESPONSES, {"input": [{"type": kind, "id": "x"} | more]}, kind) for kind, more in (
        ("item_reference", {}), ("compaction", {"encrypted_content": "x"}),
        ("web_search_call", {"status": "completed", "action": {"type": "search", "query": "x"}}),
    )),
    *((route, {name: 3}, name) for name in ("priority", "length_penalty") for route in (CHAT, TEXT)),
    *((CHAT, {name: {"a": 1}}, name) for name in ("kv_transfer_params", "mm_processor_kwargs", "vllm_xargs")),
    *((CHAT, {"structured_outputs": {"json": CITY} | option}, next(iter(option))) for option in (
        {"whitespace_pattern": " "}, {"disable_any_whitespace": True}, {"disable_additional_properties": True},
    )),
    (MESSAGES, {"tool_choice": {"type": "any"}}, "`tools` must be set"),
    (MESSAGES, {"tool_choice": {"type": "tool", "name": "f"}}, "`tools` must be set"),
    (MESSAGES, MESSAGES_TOOL | {"tool_choice": {"type": "tool", "name": "g"}}, "does not match"),
    *((TEXT, {"use_beam_search": True, "n": 2} | option, next(iter(option))) for option in (
        {"stop": ["a"]}, {"structured_outputs": {"choice": ["a"]}}, {"response_format": JSON}, {"seed": 1},
        {"logit_bias": {"5": 1}}, {"min_tokens": 2}, {"top_p": 0.5}, {"stop_token_ids": [5]}, {"logprobs": 2},
    )),
    (CHAT, {"use_beam_search": True, "n": 2} | TOOL, "tool_choice"),
    *((CHAT, {name: ["a"]}, name) for name in ("guided_choice", "functions", "best_of")),
]  # fmt: skip


def sample(field: dict) -> Any:
    """Return a value of a field of an OpenAPI schema, other than its default."""
    kinds = [kind for kind in (field, *field.get("anyOf", ())) if kind.get("type") in {*SAMPLES, "boolean"}]
    if kinds and kinds[0]["type"] == "boolean":
        return not field.get("default")
    return SAMPLES[kinds[0]["type"]] if kinds else {"x": 1}


def unread(client: httpx.Client) -> list[tuple[str, dict, str]]:
    """Return each option that another route reads, as a row of REFUSED."""
    api = client.get("/openapi.json").json()
    fields = {}
    for route in ROUTES:
        reference = api["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        fields[route] = api["components"]["schemas"][reference.rpartition("/")[2]]["properties"]
    every = {name: field for known in fields.values() for name, field in known.items()}
    del every["add_special_tokens"]  # each of its values is some route's default
    return [
        (route, {name: sample(field)}, name)
        for route in ROUTES
        for name, field in every.items()
        if name not in fields[route].keys() | HARMLESS
    ]


def large_grammar(number: int) -> dict:
    """A schema of 6,000 properties, which takes seconds of processor time."""
    properties = {f"p{number}_{k}": {"type": "string", "pattern": f"^[a-z]{{1,{k % 90 + 1}}}$"} for k in range(6000)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="(default: %(default)s)")
    client = httpx.Client(base_url=parser.parse_args().url, timeout=900)
    model = client.get("/v1/models").json()["data"][0]["id"]
    faults = 0

    def post(route: str, fields: dict) -> httpx.Response:
        return client.post(route, json={"model": model, "temperature": 0} | PLAIN[route] | fields)

    for route, body in (PLAIN | OTHERS).items():
        for fields, status in ((USUAL, 200), ({"of_no_route": 1}, 400), ({"extra_body": {"seed": 1}}, 400)):
            response = client.post(route, json={"model": model} | body | fields)
            if response.status_code != status or status == 400 and next(iter(fields)) not in response.text:
                faults += 1
                print(f"{route} {json.dumps(fields)}: {response.status_code} {response.text[:200]}")
    print(f"usual names and names of no route, {len(PLAIN | OTHERS)} routes: {faults} faults")
    rows = [*REFUSED, *unread(client)]
    for route, fields, words in rows:
        for streams in (False, True)[: 1 if "use_beam_search" in fields else 2]:  # beam search has no streams
            response = post(route, fields | {"stream": streams})
            if response.status_code != 400 or words not in response.text:
                faults += 1
                print(
                    f"{route} {json.dumps(fields)[:100]} stream={streams}: {response.status_code} {response.text[:200]}"
                )
    print(f"{len(rows)} refused options, whole and streamed: {faults} faults")

    with ThreadPoolExecutor(LARGE) as pool:
        large = [pool.submit(post, CHAT, large_grammar(number)) for number in range(LARGE)]
        time.sleep(1)
        waits = []
        for number in range(4):
            began = time.monotonic()
            choice = post(CHAT, {"structured_outputs": {"choice": [f"Rome {number}", "Oslo"]}})
            waits.append(time.monotonic() - began)
            faults += not choice.is_success
        statuses = sorted(answer.result().status_code for answer in large)
    faults += max(waits) > PATIENCE or not {*statuses} <= {200, 400, 429} or 429 not in statuses
    print(f"beside {LARGE} large grammars ({statuses}) a choice takes {max(waits):.1f} s at most; {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
