"""Degenerate text is found from tt-metal's thresholds on."""

from types import SimpleNamespace

import pytest

from models.demos.qwen25_7b.demo.answers import answer
from models.demos.qwen25_7b.engine.open_model import TextDelta
from models.demos.qwen25_7b.text.degenerate import degenerate

PLAIN = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen"
)
DOUBLED = " ".join(word for word in PLAIN.split() for _ in range(2))
LOOP = "and then it rained "


@pytest.mark.parametrize(
    "text, found",
    [
        ("", None),
        ("!? ... \n", None),
        (PLAIN, None),
        (DOUBLED, "51% of 36 words repeat the word before"),
        ("The the difference DIFFERENCE.", None),  # too short to tell
        (PLAIN + " the the cat", None),  # 1 of 20 pairs
        (PLAIN + " the the the", None),  # 2 of 20 pairs are not above a tenth
        (PLAIN + " the the the the", "14% of 22 words repeat the word before"),
        (LOOP * 20, "75% of 80 words are one phrase of three"),
        (PLAIN + " " + LOOP * 10, "52% of 58 words are one phrase of three"),
        (PLAIN + " " + LOOP * 8, None),  # 24 of 50 words
    ],
)
def test_a_text(text, found):
    assert degenerate(text) == found


def test_the_demo_says_which_answer_is_degenerate(capsys):
    deltas = [TextDelta(user, text, 0, "stop") for user, text in enumerate((PLAIN, DOUBLED))]
    model = SimpleNamespace(
        generate=lambda *_, **__: iter(deltas), generator=SimpleNamespace(users=2), backend="golden mesh"
    )
    answer(model, ["a", "b"], [[1], [2]], None, SimpleNamespace(max_new_tokens=9, stop=(), out=None, speculate=1))
    assert "answers: 1 of 2 degenerate, the first is answer 1: 51% of 36 words" in capsys.readouterr().err
