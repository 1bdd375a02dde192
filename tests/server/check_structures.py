"""Structured output of every kind, for check_server.py. jsonschema says whether an answer keeps its schema."""

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import httpx
from checked_server import CHAT, Server, expect
from jsonschema import Draft202012Validator

AT_ONCE = 10
SHORT = "What is the capital of France?"
INTEGER, STRING, OBJECT = {"type": "integer"}, {"type": "string"}, {"type": "object"}
A, AB = {"properties": {"a": INTEGER}}, {"properties": {"a": INTEGER, "b": INTEGER}}
# Constraints that a compiler reads over, does not take, or ends at.
SCHEMAS = [
    *(OBJECT | more for more in (
        {"patternProperties": {"^a$": INTEGER}, "required": ["a"]},
        {"minProperties": 1}, {"maxProperties": 2}, {"patternProperties": {"^x": INTEGER}}, A | {"required": ["z"]},
        {"propertyNames": {"pattern": "^a"}}, AB | {"dependentRequired": {"a": ["b"]}}, A | {"minProperties": 2},
        AB | {"additionalProperties": False, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"properties": {"a": STRING | {"minLength": -1}}, "required": ["a"]},
        {"properties": {"z": INTEGER}, "required": ["z"], "allOf": [OBJECT | A | {"required": ["a"]}]},
        {"properties": {"a": {"enum": ["x", 5], "type": "string"}}, "required": ["a"], "additionalProperties": False},
        {"properties": {"a": {"enum": ["x"]}, "b": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
            "required": ["a", "b"], "additionalProperties": False},
        {"properties": {"a": {"$ref": "#/definitions/x"}}, "required": ["a"], "definitions": {"x": {"enum": ["x"]}}},
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"], "$defs": {"x": {"enum": ["y"]}}},
    )),
    *({"type": "array"} | more for more in (
        {"items": [INTEGER]}, {"uniqueItems": True}, {"contains": INTEGER},
        {"items": INTEGER, "minItems": 2, "maxItems": 3},
        {"items": INTEGER, "minItems": 10**5, "maxItems": 10**9},
    )),
    *(INTEGER | more for more in (
        {"multipleOf": 7}, {"minimum": 2, "exclusiveMaximum": 4}, {"enum": [1, 5], "minimum": 3}, {"not": {"const": 3}},
        {"const": 1234567890123456789}, {"maximum": 2**63 - 1},
        {"anyOf": [{"minimum": 3}, {"maximum": 0}]}, {"if": {"minimum": 5}, "then": {"minimum": 10}},
    )),
    *(STRING | more for more in (
        {"format": "email"}, {"format": "no such"}, {"minLength": 2, "maxLength": 3},
        {"pattern": "^a+$", "maxLength": 2},
        *({"pattern": pattern} for pattern in (
            "(?i)x", "^(?=.*b)[ab]+$", "^[A-Za-z ]{1,1000}$", r"^\d{1,200}$", "^([a-z]{1,30} ){1,300}$",
            "^a{1,2147483648}$",
        )),
    )),
    {"required": ["a"]}, {"minLength": 3}, {"uniqueItems": True}, {"multipleOf": 7}, {"not": INTEGER},
    {"allOf": [INTEGER, {"minimum": 3}]}, {"oneOf": [INTEGER, STRING]},
    {"oneOf": [INTEGER | {"minimum": 0}, INTEGER | {"maximum": 10}]}, {"if": INTEGER, "then": {"minimum": 3}},
    {"enum": [1, "a", None, {"b": 2}]}, {"const": {"properties": 1}}, {},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
    {"enum": [f"value {i}" for i in range(20_000)]},
    {"anyOf": [OBJECT | {"properties": {f"{k}": INTEGER for k in range(60)}, "required": [f"{n}"]} for n in range(60)]},
    {"$ref": "#/$defs/x"}, {"$ref": "#"}, {"$ref": "#/$defs/x", "minimum": 3, "$defs": {"x": INTEGER}},
]  # fmt: skip
CHAIN = "start: p0\n" + "".join(f'p{i}: "a" p{i + 1} |\n' for i in range(6000)) + 'p6000: "a"'
GRAMMARS = [
    *({"choice": choice} for choice in (["a\nb", "c"], [""], [], [f"v{i}" for i in range(20_000)])),
    *({"regex": regex} for regex in ("(?i)abc", r"\p{L}+", "a**", "(?=a)b", r"(a)\1", "a{1,99999}",
        "(a|b)*a(a|b){200}")),
    *({"grammar": grammar} for grammar in (
        'start: "a" | "b"', 'root ::= "a" | "b"', "root ::= (((", "root ::= Token(99999)", "start: start", CHAIN,
    )),
    *({"structural_tag": json.dumps(tag)} for tag in (
        {"structures": [{"begin": "<f=1>", "schema": OBJECT | {"minProperties": 1}, "end": "</f>"}],
            "triggers": ["<f="]},
        {"structures": [{"begin": "<f=1>", "schema": STRING | {"minLength": -1}, "end": "</f>"}], "triggers": ["<f="]},
        {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": OBJECT}},
    )),
]  # fmt: skip


def json_schema(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


def structures(server: Server) -> str:
    """In random order, ten at once: each constraint is kept or refused. A plain chat after each ten is right."""
    wanted: list[tuple[dict, Any]] = [({"structured_outputs": option}, None) for option in GRAMMARS]
    named = {"type": "function", "function": {"name": "f"}}
    for schema, choice in zip(SCHEMAS, cycle(("required", named))):
        wanted.append(({"response_format": json_schema(schema)}, schema))
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        wanted.append(({"tools": [tool], "tool_choice": choice, "logit_bias": server.no_commas}, schema))
    random.Random(0).shuffle(wanted)
    counts = Counter()

    def send(option: dict) -> httpx.Response:
        return server.post(CHAT, server.body(SHORT, CHAT, max_tokens=32) | option)

    for first in range(0, len(wanted), AT_ONCE):
        some = wanted[first : first + AT_ONCE]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            responses = list(pool.map(send, (option for option, _ in some)))
        for (option, schema), response in zip(some, responses):
            expect(response.status_code in (200, 400), f"{option}: {response.text}")
            counts["refused" if response.status_code == 400 else "answered"] += 1
            if response.is_success and schema is not None:
                (choice,) = response.json()["choices"]
                calls = choice["message"].get("tool_calls")
                texts = [call["function"]["arguments"] for call in calls] if calls else [choice["message"]["content"]]
                # vLLM drops a required call whose arguments are no object.
                for text in filter(None, texts if choice["finish_reason"] != "length" else ()):
                    counts["kept"] += 1
                    value = json.loads(text)
                    expect(Draft202012Validator(schema).is_valid(value), f"{option}: {text}")
                    expect(not calls or "type" in schema or isinstance(value, dict), f"arguments: {option}: {text}")
        server.expect_greedy(server.prompt(SHORT), server.ask(SHORT, CHAT))
    return f"each is kept or refused: {dict(sorted(counts.items()))}"
