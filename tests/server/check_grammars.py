"""Send every kind of grammar beside every option that changes which tokens may come, on every route, whole and
streamed: .venv-vllm/bin/python tests/server/check_grammars.py [--url URL] [--only WORDS].

An answer keeps its grammar, or the request gets 400 with the reason. jsonschema, regex and the list of choices say
whether a text keeps it. A text that max_tokens cuts must be the beginning of one that keeps it. The server is one with
tool calls:

    make serve ARGS="--enable-auto-tool-choice --tool-call-parser hermes"
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterator

import httpx
import regex
from answers import MESSAGES, OPENAI, RESPONSES, Answer, send
from checked_server import CHAT, TEXT
from jsonschema import Draft202012Validator

AT_ONCE, PAIRS = 16, 240
QUESTION = "What is the capital of France?"
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
    "additionalProperties": False,
}
CITY_PATTERN = r'\s*\{\s*"city"\s*:\s*"(Rome|Oslo)"\s*,\s*"sure"\s*:\s*(true|false)\s*\}\s*'
QUERY = "SELECT (name|age) FROM users"
ENDLESS = "[a-z ]{3,}"
TAG = {"structures": [{"begin": "<f=1>", "schema": CITY, "end": "</f>"}], "triggers": ["<f="]}
OPENAI_TOOL = {"name": "f", "parameters": CITY}
CHAT_TOOL = {"type": "function", "function": OPENAI_TOOL}
NAMED = {"type": "function", "function": {"name": "f"}}


# ---- what keeps a grammar: (text, whole or the beginning of a whole one) -> whether it does


def pattern(words: str) -> Callable[[str, bool], bool]:
    return lambda text, whole: bool(regex.fullmatch(words, text, partial=not whole))


def schema(schema: dict, words: str = "") -> Callable[[str, bool], bool]:
    def keeps(text: str, whole: bool) -> bool:
        if not whole:
            return bool(regex.fullmatch(words, text, partial=True)) if words else text.lstrip()[:1] in ("", "{")
        return Draft202012Validator(schema).is_valid(json.loads(text))

    return keeps


def tag(text: str, whole: bool) -> bool:
    """Free text; after each trigger a whole tag."""
    *before, last = text.split("<f=")
    tags = [part.removeprefix("1>").partition("</f>") for part in [*before, last][1:]]
    if tags and not whole and not tags[-1][1]:
        tags.pop()
    return all(end and Draft202012Validator(CITY).is_valid(json.loads(content)) for content, end, _ in tags)


def call(text: str, whole: bool) -> bool:
    return not whole or Draft202012Validator(CITY).is_valid(json.loads(text))


def structured(**option: Any) -> dict:
    return {"structured_outputs": option}


def response_format(schema: dict) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def text_format(schema: dict) -> dict:
    return {"text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}}


def output_config(schema: dict) -> dict:
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


# name, routes that take it, fields, what keeps it
ALL = (*OPENAI, RESPONSES)
CHOICE = ["Rome", "Oslo", "New Delhi"]
GRAMMARS = [
    ("choice", ALL, structured(choice=CHOICE), pattern("|".join(CHOICE))),
    ("regex", ALL, structured(regex="[a-z]{2,4}[0-9]"), pattern("[a-z]{2,4}[0-9]")),
    ("endless regex", ALL, structured(regex=ENDLESS), pattern(ENDLESS)),
    ("json", ALL, structured(json=CITY), schema(CITY, CITY_PATTERN)),
    ("boolean", ALL, structured(json={"type": "boolean"}), schema({"type": "boolean"}, "true|false")),
    ("json object", ALL, structured(json_object=True), schema({"type": "object"})),
    ("EBNF", ALL, structured(grammar='root ::= "SELECT " c " FROM users"\nc ::= "name" | "age"'), pattern(QUERY)),
    ("lark", ALL, structured(grammar='start: "SELECT " ("name" | "age") " FROM users"'), pattern(QUERY)),
    ("structural tag", ALL, structured(structural_tag=json.dumps(TAG)), tag),
    ("format", OPENAI, response_format(CITY), schema(CITY, CITY_PATTERN)),
    ("json_object format", OPENAI, {"response_format": {"type": "json_object"}}, schema({"type": "object"})),
    ("format", (RESPONSES,), text_format(CITY), schema(CITY, CITY_PATTERN)),
    ("json_object format", (RESPONSES,), {"text": {"format": {"type": "json_object"}}}, schema({"type": "object"})),
    ("format", (MESSAGES,), output_config(CITY), schema(CITY, CITY_PATTERN)),
    ("boolean", (MESSAGES,), output_config({"type": "boolean"}), schema({"type": "boolean"}, "true|false")),
    ("tool required", (CHAT,), {"tools": [CHAT_TOOL], "tool_choice": "required"}, call),
    ("named tool", (CHAT,), {"tools": [CHAT_TOOL], "tool_choice": NAMED}, call),
    ("tool required", (RESPONSES,), {"tools": [OPENAI_TOOL | {"type": "function"}], "tool_choice": "required"}, call),
    ("named tool", (RESPONSES,),
        {"tools": [OPENAI_TOOL | {"type": "function"}], "tool_choice": {"type": "function", "name": "f"}}, call),
    ("tool required", (MESSAGES,),
        {"tools": [{"name": "f", "input_schema": CITY}], "tool_choice": {"type": "any"}}, call),
    ("named tool", (MESSAGES,),
        {"tools": [{"name": "f", "input_schema": CITY}], "tool_choice": {"type": "tool", "name": "f"}}, call),
]  # fmt: skip
# An option that a route does not read is refused by its name.
READ = {
    RESPONSES: {"ignore_eos", "logit_bias", "stop", "include_stop_str_in_output", "skip_special_tokens",
        "repetition_penalty", "presence_penalty", "top_k", "max_tokens"},
    MESSAGES: {"stop", "top_k", "max_tokens"},
}  # fmt: skip
NAMES = {(RESPONSES, "max_tokens"): "max_output_tokens", (MESSAGES, "stop"): "stop_sequences"}


def options(client: httpx.Client, model: str) -> list[dict]:
    def ids(text: str) -> list[int]:
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        return client.post("/tokenize", json=body).json()["tokens"]

    body = {"model": model, "prompt": QUESTION, "max_tokens": 99, "temperature": 0, "return_token_ids": True}
    (choice,) = client.post(TEXT, json=body | structured(choice=["Rome"])).json()["choices"]
    *rome, end = choice["token_ids"]
    (ended,) = client.post("/detokenize", json={"model": model, "tokens": [end]}).json().values()
    letters = sorted(
        {i for text in ("Rome", '{"city": "Oslo", "sure": true}', "SELECT age FROM users") for i in ids(text)}
    )
    return [
        {},
        *({"min_tokens": n} for n in (2, 8, 40)),
        {"min_tokens": 8, "max_tokens": 8},
        {"ignore_eos": True},
        *({"allowed_token_ids": some} for some in (rome, [*rome, end], letters, [*letters, end], [0], [end])),
        *({"logit_bias": {f"{token}": bias}} for token in (end, rome[0], 0) for bias in (-100, 100)),
        *({"bad_words": words} for words in ([ended], ["Rome"], ["R", "O", "N", "{", "true"], ["!", " "])),
        *({"stop_token_ids": some} for some in (rome[-1:], letters, [end])),
        *({"stop": some} for some in (["o"], ["e", "}"], "unseen", ["\n", " "], ["Rome", "</f>"])),
        {"stop": ["e"], "include_stop_str_in_output": True},
        {"include_stop_str_in_output": True, "skip_special_tokens": False},
        *({"max_tokens": n} for n in (1, len(rome) - 1, len(rome), len(rome) + 1, 12)),
        {"n": 3, "temperature": 1.5},
        {"n": 2, "use_beam_search": True},
        {"repetition_detection": {"max_pattern_size": 2, "min_count": 2}},
        {"repetition_penalty": 5.0, "presence_penalty": 2.0},
        {"min_p": 1.0, "top_k": 1, "temperature": 2.0},
    ]  # fmt: skip


def added_tokens(tokenizer: dict) -> Iterator[tuple]:
    """Yield grammars that ask for the text of an added token that is not special, such as Qwen's <tool_call>."""
    for token in tokenizer["added_tokens"]:
        if not token["special"]:
            words = f"a?{regex.escape(token['content'])}[a-z]{{2}}"
            yield f"text of {token['content']}", ALL, structured(regex=words), pattern(words)


# ---- one request and its answer


def body_of(route: str, fields: dict, option: dict) -> dict:
    asked = {"max_tokens": 48, "temperature": 0} | option
    body = {NAMES.get((route, name), name): value for name, value in asked.items()} | fields
    if route == MESSAGES and isinstance(option.get("stop"), str):
        body["stop_sequences"] = [option["stop"]]
    if route == TEXT:
        return {"prompt": QUESTION} | body
    return {"input" if route == RESPONSES else "messages": [{"role": "user", "content": QUESTION}]} | body


def verdict(route: str, keeps: Callable[[str, bool], bool], option: dict, answer: Answer) -> str:
    """Return kept, cut or refused, or what is wrong."""
    if answer.refusal:
        return "refused" if answer.status == 400 else f"FAULT: status {answer.status}: {answer.refusal}"
    unread = option.keys() - READ.get(route, option.keys()) - {"temperature"}
    if unread:
        return f"FAULT: {unread} is read over: {answer.texts}"
    if len(answer.reasons) != (option.get("n", 1)):
        return f"FAULT: {len(answer.reasons)} answers: {answer.reasons}"
    # An answer without a text is an empty text, and no call of a tool where max_tokens cuts it.
    for text in answer.texts.values() or ([] if answer.cut else [""]):
        try:
            is_kept = keeps(text, True)
        except ValueError:  # no JSON
            is_kept = False
        if not is_kept and not (answer.cut and keeps(text, False)):
            return f"FAULT: {answer.reasons}: {text!r}"
    return "cut" if answer.cut else "kept"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="(default: %(default)s)")
    parser.add_argument("--only", default="", metavar="WORDS", help="only cases whose line has these words")
    args = parser.parse_args()
    began = time.monotonic()
    client = httpx.Client(base_url=args.url, timeout=900, limits=httpx.Limits(max_keepalive_connections=0))
    served = client.get("/v1/models").json()["data"][0]
    tokenizer = json.loads((Path(served["root"]) / "tokenizer.json").read_text())
    model, grammars = served["id"], [*GRAMMARS, *added_tokens(tokenizer)]
    # Where a call may follow, this model writes one after the other.
    no_commas = {"logit_bias": {f"{i}": -100 for text, i in tokenizer["model"]["vocab"].items() if "," in text}}
    single = options(client, model)
    draw = random.Random(0)
    pairs = [a | b for a, b in (draw.sample(single, 2) for _ in range(PAIRS))]
    cells = [
        (name, route, fields, keeps, option, streams)
        for name, routes, fields, keeps in grammars
        for route in routes
        for option in single
        for streams in (False, True)
    ]
    for option in pairs:
        name, routes, fields, keeps = draw.choice(grammars)
        cells.append((name, draw.choice(routes), fields, keeps, option, draw.random() < 0.5))
    cells = [cell for cell in cells if args.only in f"{cell[0]} {cell[1]} {cell[4]}"]
    draw.shuffle(cells)

    def run(cell: tuple) -> tuple[str, str]:
        name, route, fields, keeps, option, streams = cell
        try:
            body = {"model": model} | body_of(route, fields, option)
            body |= no_commas if name == "tool required" and route != MESSAGES else {}
            answer = send(client, route, body, streams)
            result = verdict(route, keeps, option, answer)
        except (httpx.HTTPError, KeyError, ValueError, TypeError) as error:
            result = f"FAULT: {type(error).__name__}: {error}"
        if result.startswith("FAULT"):
            print(
                f"{name}, {route}, {'streamed' if streams else 'whole'}, {json.dumps(option)[:120]}: {result[:300]}",
                flush=True,
            )
        return json.dumps(option)[:60], result.partition(":")[0]

    counts: dict[str, Counter] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for option, result in pool.map(run, cells):
            counts.setdefault(option, Counter())[result] += 1
    columns = "kept", "cut", "refused", "FAULT"
    print(f"| option | {' | '.join(columns)} |\n| --- | --- | --- | --- | --- |")
    for option in map(lambda option: json.dumps(option)[:60], single):
        if option in counts:
            print(f"| {option} | {' | '.join(f'{counts[option][column]}' for column in columns)} |")
    total = sum(counts.values(), Counter())
    print(f"{total.total()} requests, {dict(total)}, {time.monotonic() - began:.0f} s")
    return 1 if total["FAULT"] else 0


if __name__ == "__main__":
    sys.exit(main())
