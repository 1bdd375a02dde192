"""Structured output of every kind, for check_server.py."""

import json
import random
from collections import Counter

from checked_server import CHAT, Server, expect

SHORT = "What is the capital of France?"
# Constraints that vLLM checks by one program and compiles by another. The server keeps one or refuses it.
SCHEMAS = [  # and a test of the value that was read, where one is easily said
    ({"type": "object", "minProperties": 1}, len),
    ({"type": "object", "maxProperties": 2}, lambda value: len(value) <= 2),
    ({"type": "object", "patternProperties": {"^x": {"type": "integer"}}}, None),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, None),
    ({"type": "array", "items": [{"type": "integer"}]}, None),
    ({"type": "array", "uniqueItems": True}, None),
    ({"type": "array", "contains": {"type": "integer"}}, None),
    ({"type": "integer", "multipleOf": 7}, lambda value: value % 7 == 0),
    ({"type": "integer", "minimum": 2, "exclusiveMaximum": 4}, (2, 3).__contains__),
    ({"not": {"type": "integer"}}, lambda value: not isinstance(value, int)),
    ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, lambda value: value >= 3),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, None),
    ({"if": {"type": "integer"}, "then": {"minimum": 3}}, None),
    ({"type": "string", "format": "email"}, None),
    ({"type": "string", "pattern": "(?i)x"}, None),
    ({"enum": [1, "a", None, {"b": 2}]}, [1, "a", None, {"b": 2}].__contains__),
    ({"$ref": "#/$defs/x"}, None),
]
GRAMMARS = [
    *({"choice": choice} for choice in (["a\nb", "c"], [""], [])),
    *({"regex": regex} for regex in ("(?i)abc", r"\p{L}+", "a**", "(?=a)b", r"(a)\1", "a{1,99999}")),
    *({"grammar": grammar} for grammar in ('start: "a" | "b"', "root ::= (((")),
    *(
        {"structural_tag": json.dumps({"structures": [tag], "triggers": ["<f>"]})}
        for tag in [{"begin": "<f>", "schema": {"type": "object", "minProperties": 1}, "end": "</f>"}]
    ),
]


def json_schema(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


def structures(server: Server) -> str:
    """In random order: each constraint is kept or refused, and a plain chat after it is right."""
    wanted = [({"structured_outputs": option}, None) for option in GRAMMARS]
    for schema, holds in SCHEMAS:
        wanted.append(({"response_format": json_schema(schema)}, holds))
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        wanted.append(({"tools": [tool], "tool_choice": "required"}, None))
    random.Random(0).shuffle(wanted)
    statuses = Counter()
    for option, holds in wanted:
        response = server.post(CHAT, server.body(SHORT, CHAT, max_tokens=60) | option)
        statuses[response.status_code] += 1
        expect(response.status_code in (200, 400), f"{option}: {response.text}")
        if response.is_success and holds:
            (choice,) = response.json()["choices"]
            if choice["finish_reason"] == "stop":
                value = json.loads(choice["message"]["content"])
                expect(holds(value), f"{option}: {value}")
        server.expect_greedy(server.prompt(SHORT), server.ask(SHORT, CHAT))
    return f"each is kept or refused; of each status: {dict(sorted(statuses.items()))}"
