"""The table of structured output. Each answer is parsed, and checked against the schema or the pattern."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jsonschema
from options_client import Client, Row, expect, refused
from options_sampling import HOT, LONG, tokens

QUESTION = "What is the capital of Japan?"
CHOICE = ["Paris", "Tokyo", "New Delhi"]
REGEX = r"[A-Z][a-z]{3,8}, [0-9]{2,4}\."
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": CHOICE},
        "population": {"type": "integer", "minimum": 1, "maximum": 999},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["city", "population", "tags"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= "SELECT " column " FROM " table\ncolumn ::= "name" | "age"\ntable ::= "users" | "cities"\n'
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<fn>", "schema": SCHEMA, "end": "</fn>"}],
    "triggers": ["<fn>"],
}
SHAPE = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}


def is_choice(text: str) -> bool:
    return text in CHOICE


def is_regex(text: str) -> bool:
    return re.fullmatch(REGEX, text) is not None


def is_json(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def is_grammar(text: str) -> bool:
    return text in {f"SELECT {c} FROM {t}" for c in ("name", "age") for t in ("users", "cities")}


def expect_shape(shape, text: str) -> None:
    try:
        right = shape(text)
    except (ValueError, jsonschema.ValidationError) as error:
        right, text = False, f"{text!r} ({error})"
    expect(right, f"not as asked: {text!r}")


def constrained(client: Client, shape, result: str, **body) -> str:
    """On both endpoints, greedy and hot, whole and streamed."""
    body = dict(max_tokens=120, **body)
    for temperature in (0, HOT):
        body.update(temperature=temperature, seed=1)
        (whole,) = client.complete(QUESTION, **body)
        (chat,) = client.chat(QUESTION, **body)
        events = client.stream("/v1/completions", prompt=client.prompt(QUESTION), **body)
        streamed = "".join(event["choices"][0]["text"] for event in events)
        for text in (whole["text"], chat["message"]["content"], streamed):
            expect_shape(shape, text)
        expect(streamed == whole["text"], f"streamed {streamed!r}, whole {whole['text']!r}")
        expect(whole["finish_reason"] == "stop", f"{whole}")
    return f"works: {result}"


def most_likely_choice(client: Client) -> str:
    """The greedy choice is the most likely token at each place where the grammar leaves several."""
    (choice,) = client.complete(QUESTION, structured_outputs={"choice": ["Paris", "Tokyo"]})
    ways = [client.ids(word) for word in ("Paris", "Tokyo")]
    logits = client.logits(client.prompt(QUESTION), [0])[0]
    best = max(ways, key=lambda ids: logits[ids[0]])
    if ways[0][0] != ways[1][0]:
        expect(choice["text"] == client.tokenizer.decode(best), f"{choice['text']!r}")
    return "works: the likelier one at the first token"


def free_strings(client: Client) -> str:
    """The grammar takes the second stop token for text of a string, and vLLM ends the answer there."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}},
        "required": ["name"],
    }
    others = [token for token in client.stop_ids if token != client.tokenizer.eos_token_id]
    bias = {str(token): -100 for token in others}
    for seed in range(3):
        body = dict(
            temperature=1,
            seed=seed,
            max_tokens=80,
            structured_outputs={"json": schema},
            logit_bias=bias,
        )
        (choice,) = client.complete(QUESTION, **body)
        expect_shape(is_object, choice["text"])
    return (
        "works with a `logit_bias` of -100 for the second stop token, which vLLM's grammar takes for text"
    )


def several(client: Client) -> str:
    """Structured requests with n, log-probabilities and penalties."""
    choices = client.complete(
        QUESTION, n=4, temperature=HOT, seed=4, structured_outputs={"regex": REGEX}
    )
    for choice in choices:
        expect_shape(is_regex, choice["text"])
    expect(len({choice["text"] for choice in choices}) > 1, f"{choices}")
    (choice,) = client.complete(
        QUESTION,
        max_tokens=120,
        structured_outputs={"json": SCHEMA},
        logprobs=3,
        repetition_penalty=1.2,
    )
    expect_shape(is_json, choice["text"])
    expect(len(choice["logprobs"]["tokens"]) == len(choice["token_ids"]), f"{choice}")
    return "works"


def beside_others(client: Client) -> str:
    """24 requests at once: a third of them structured, the others keep Hugging Face's greedy text."""
    kinds = [
        ({"choice": CHOICE}, is_choice),
        ({"regex": REGEX}, is_regex),
        ({"json": SCHEMA}, is_json),
    ]

    def send(i: int) -> None:
        structured, shape = kinds[i // 3 % 3]
        if i % 3:
            question = (QUESTION, LONG)[i % 2]
            answer = tokens(client.complete(question, max_tokens=32))
            client.expect_ended(answer, 32)
            client.expect_greedy(question, answer)
        else:
            body = dict(temperature=i % 2, max_tokens=120, structured_outputs=structured)
            expect_shape(shape, client.complete(QUESTION, **body)[0]["text"])

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(send, range(24)))
    return "works: others of the batch have Hugging Face's greedy text"


def seeded_beside(client: Client) -> str:
    """The plugin samples the steps of a batch with structured output on the host, with vLLM's noise."""
    body = dict(temperature=HOT, seed=5, max_tokens=24)
    alone = tokens(client.complete(LONG, **body))
    with ThreadPoolExecutor(1) as pool:
        long = dict(structured_outputs={"regex": "[a-z]{60}"}, max_tokens=80)
        other = pool.submit(client.complete, QUESTION, **long)
        beside = tokens(client.complete(LONG, **body))
        other.result()
    expect(beside != alone, "the text is the same: mend this row")
    return "another text than alone: the plugin samples the whole batch with vLLM's noise"


ROWS = [
    Row(
        "`structured_outputs` choice",
        partial(
            constrained,
            shape=is_choice,
            result="one of the choices",
            structured_outputs={"choice": CHOICE},
        ),
    ),
    Row("choice, temperature 0", most_likely_choice),
    Row(
        "`structured_outputs` regex",
        partial(
            constrained,
            shape=is_regex,
            result="the text matches",
            structured_outputs={"regex": REGEX},
        ),
    ),
    Row(
        "`structured_outputs` json",
        partial(
            constrained,
            shape=is_json,
            result="the text validates against the schema",
            structured_outputs={"json": SCHEMA},
        ),
    ),
    Row(
        "`structured_outputs` grammar",
        partial(
            constrained, shape=is_grammar, result="EBNF", structured_outputs={"grammar": GRAMMAR}
        ),
    ),
    Row(
        "`response_format` json_schema",
        partial(
            constrained,
            shape=is_json,
            result="the text validates against the schema",
            response_format=SHAPE,
        ),
    ),
    Row("strings of any text", free_strings),
    Row("with `n`, `logprobs`, penalties", several),
    Row("beside other requests", beside_others),
    Row("a seeded request beside one", seeded_beside),
    Row(
        "a regex that is none",
        partial(refused, limit="vLLM", words="regex", structured_outputs={"regex": "("}),
    ),
    Row(
        "two kinds at once",
        partial(
            refused,
            limit="vLLM",
            words="You can only use one kind of",
            structured_outputs={"regex": "a", "choice": ["a"]},
        ),
    ),
    Row(
        "`guided_choice` and the other names of old vLLMs",
        partial(
            refused,
            limit="RequestCheck",
            words="vLLM ignores guided_choice: use structured_outputs",
            guided_choice=["a"],
        ),
    ),
]
