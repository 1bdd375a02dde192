"""Streamed text: stop strings may cross token borders, and characters may span several tokens."""

import random

import pytest

from models.demos.qwen25_7b.text.tokenizer import WINDOW, Detokenizer

ANSWER = "3, 4, 5 — Grüße 😀 end"


@pytest.fixture
def tokenizer(tokenizer):
    return tokenizer.hf


def deltas(tokenizer, ids, stop) -> tuple[list[str], Detokenizer]:
    stream = Detokenizer(tokenizer, stop)
    return [stream.add(id, last=i == len(ids) - 1) for i, id in enumerate(ids)], stream


def by_letters(tokenizer, text: str, rng: random.Random) -> list[int]:
    """Tokenize the text in parts of one to five letters. Token borders then differ."""
    ids, at = [], 0
    while at < len(text):
        size = rng.randint(1, 5)
        ids += tokenizer.encode(text[at : at + size], add_special_tokens=False)
        at += size
    return ids


@pytest.mark.parametrize(
    "stop, expected",
    [
        ((), ANSWER),
        (("4, 5",), "3, "),
        ((", 9", ", 5"), "3, 4"),
        (("3",), ""),
        (("5 — Grüße 😀",), "3, 4, "),
        (("5 — G!", "ße 😀 x"), ANSWER),
        (("4, 5 — Grü", "5"), "3, 4, "),  # the stop string that is complete first ends the text
        (("end", "d"), "3, 4, 5 — Grüße 😀 "),
    ],
)
def test_a_text_ends_before_its_first_stop_string_for_any_tokenization(tokenizer, stop, expected):
    rng = random.Random(1)
    for ids in [tokenizer.encode(ANSWER), *(by_letters(tokenizer, ANSWER, rng) for _ in range(20))]:
        given, stream = deltas(tokenizer, ids, stop)
        assert "".join(given) == stream.text == expected, ids
        assert stream.stopped == (expected != ANSWER)


def test_a_possible_stop_string_is_held_back_until_it_is_decided(tokenizer):
    ids = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "abcabd"]
    given, _ = deltas(tokenizer, ids, ["abd"])
    assert given == ["", "", "abc", "", "", ""]
    given, _ = deltas(tokenizer, ids[:2], ["abd"])
    assert given == ["", "ab"], "nothing follows, so nothing is held back"


def test_a_long_answer_costs_no_more_a_token_than_a_short_one(tokenizer):
    """Each token decodes a window. Its borders do not cut a character or a stop string in two."""
    decoded = []

    class Counted:
        @staticmethod
        def decode(ids, **how):
            decoded.append(len(ids))
            return tokenizer.decode(ids, **how)

    text = " ".join(f"{n} 😀 Grüße — {n * n}" for n in range(60))
    ids = by_letters(tokenizer, text, random.Random(2))
    given, stream = deltas(Counted, ids, ())
    assert "".join(given) == stream.text == text and stream.ids == ids
    assert len(ids) > 8 * WINDOW and max(decoded) < 2 * WINDOW
    given, stream = deltas(Counted, ids, ["57 😀 Grüße — 32"])
    assert stream.stopped and "".join(given) == text[: text.index("57 😀 Grüße — 32")]
