"""Streamed text: the decoded text of all ids, whatever their number. Stop strings may cross token borders."""

import random

import pytest

from models.demos.qwen25_7b.text.tokenizer import Detokenizer
from tests.text.conftest import VOCABULARIES

ANSWER = "3, 4, 5 — Grüße 😀 end"
TEXTS = {
    "prose": "The capital of France is Paris, and it lies on the Seine. I do n't know . She 's here ! " * 4,
    "code": "def f(x):\n\n    if x == [ 'mean', 'verb' ]:\n        print( 'start' )\n\treturn  {  'a' : 1 }\n\n\n" * 3,
    "characters": "你好，世界：𠮷野家 龘龘龘齉爨 한국어 ქართული é ü — “q”\n😀😀👩‍👩‍👧‍👦🏳️‍🌈🪿\n\n🦄 שלום नमस्ते\r\n" * 2,
}


@pytest.fixture(params=VOCABULARIES)
def published(request, vocabulary):
    return vocabulary(request.param).hf


def deltas(tokenizer, ids, stop=()) -> tuple[list[str], Detokenizer]:
    stream = Detokenizer(tokenizer, stop)
    return [stream.add(id, last=i == len(ids) - 1) for i, id in enumerate(ids)], stream


def by_letters(tokenizer, text: str, rng: random.Random) -> list[int]:
    """Tokenize the text in parts of one to five letters. Token borders then differ."""
    ids, at, id_of = [], 0, tokenizer.backend_tokenizer.token_to_id
    while at < len(text):
        part = text[at : at + rng.randint(1, 5)]
        at += len(part)
        if id_of("▁") is None:
            ids += tokenizer.encode(part, add_special_tokens=False)
        else:  # a SentencePiece tokenizer would begin each part with a space
            token = id_of(part.replace(" ", "▁"))
            ids += [id_of(f"<0x{byte:02X}>") for byte in part.encode()] if token is None else [token]
    return ids


def garbage(tokenizer, rng: random.Random) -> list[int]:
    """Random tokens, many of them special, unknown, or part of a character."""
    size = len(tokenizer)
    parts = [id for id in rng.sample(range(size), 1000) if "\N{REPLACEMENT CHARACTER}" in tokenizer.decode([id])]
    byte = tokenizer.backend_tokenizer.token_to_id("<0x00>")
    parts += [] if byte is None else range(byte, byte + 256)
    kinds = [*tokenizer.all_special_ids, size + 7], parts, range(size)
    return [rng.choice(rng.choices(kinds, (1, 3, 4))[0]) for _ in range(150)]


def test_the_text_of_each_number_of_tokens_is_hugging_faces(published):
    """Before the last token, no more is shown than stays right."""
    rng = random.Random(1)
    answers = [published.encode(text, add_special_tokens=False) for text in TEXTS.values()]
    answers += [by_letters(published, text, rng) for text in TEXTS.values()]
    answers += [garbage(published, rng) for _ in range(10)]
    for ids in answers:
        stream = Detokenizer(published)
        for n, id in enumerate(ids, 1):
            expected = published.decode(ids[:n], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            stream.add(id, last=False)
            assert expected.startswith(stream.text), ids[:n]
            if n % 17 == 0 or n in (1, 2, len(ids)):
                assert "".join(deltas(published, ids[:n])[0]) == expected, ids[:n]


STOPS = [
    ((), ANSWER),
    (("4, 5",), "3, "),
    ((", 9", ", 5"), "3, 4"),
    (("3",), ""),
    (("5 — Grüße 😀",), "3, 4, "),
    (("5 — G!", "ße 😀 x"), ANSWER),
    (("4, 5 — Grü", "5"), "3, 4, "),  # the stop string that is complete first ends the text
    (("end", "d"), "3, 4, 5 — Grüße 😀 "),
]


@pytest.mark.parametrize("stop, expected", STOPS)
def test_a_text_ends_before_its_first_stop_string_for_any_tokenization(published, stop, expected):
    rng = random.Random(1)
    whole = published.encode(ANSWER, add_special_tokens=False)
    for ids in [whole, *(by_letters(published, ANSWER, rng) for _ in range(20))]:
        given, stream = deltas(published, ids, stop)
        assert "".join(given) == stream.text == expected, ids
        assert stream.stopped == (expected != ANSWER)


def test_text_is_shown_while_it_comes(published):
    """Each word of a text is shown before the next one is complete. What may begin a stop string waits."""
    text = "one two three four five six seven"
    given, _ = deltas(published, published.encode(text, add_special_tokens=False), ["seven!"])
    assert sum(map(bool, given)) >= 6
