"""Scores of the command `parity`. Its run is in test_commands.py, and refused options in test_bad_inputs.py."""

import pytest

from models.demos.qwen25_7b.evaluation.parity import Outcome, mcnemar_p, wilson_interval
from models.demos.qwen25_7b.evaluation.questions import (
    MARK,
    last_number,
    sums_of_the_small_world,
    word_problems,
)


@pytest.mark.parametrize(
    "right, questions, low, high",
    [(0, 10, 0, 0.2775), (5, 10, 0.2366, 0.7634), (39, 40, 0.8712, 0.9956), (200, 200, 0.9812, 1)],
)
def test_wilson_interval(right, questions, low, high):
    """The values are those of statsmodels' proportion_confint(method="wilson")."""
    assert wilson_interval(right, questions) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    "gained, lost, p", [(0, 0, 1), (1, 0, 1), (0, 5, 0.0625), (5, 0, 0.0625), (3, 10, 0.09229)]
)
def test_mcnemars_exact_test(gained, lost, p):
    assert mcnemar_p(gained, lost) == pytest.approx(p, rel=1e-3)


def test_an_outcome_is_compared_answer_by_answer():
    """Equal scores with different answers are told from equal answers."""
    questions = [
        {"question": "", "answer": f"{MARK} {number}"} for number in ("2", "1,000", "3", "4")
    ]
    reference = Outcome.of(["is 2.", "So 1000", "is 5", "none"], questions)
    ours = Outcome.of(["2 is right: 7", "So 1000", "is 3", "none"], questions)
    assert reference.right == [True, True, False, False]
    right, _, same, gained, lost, p = ours.row(reference)
    assert (right, same, gained, lost, p) == ("2 of 4", "2", "1", "1", "1")


def test_made_questions_are_answered_by_their_numbers():
    """Each problem's number follows from the numbers in its text."""
    problems = word_problems(80)
    assert problems[:20] == word_problems(20) and len({p["question"] for p in problems}) > 70
    operations = {"gets": int.__add__, "gives": int.__sub__, "boxes": int.__mul__}
    for problem in problems:
        words = problem["question"].replace("?", "").split()
        first, second = (int(word) for word in words if word.isdecimal())
        operation = next((operations[w] for w in words if w in operations), int.__add__)
        assert problem["answer"] == f"{MARK} {operation(first, second)}"


def test_questions_of_the_small_world_name_their_last_number():
    made = sums_of_the_small_world(200)
    assert len(made) == 200 == len({question["question"] for question in made})
    for question in made:
        text, number = question["answer"].split(f" {MARK} ")
        assert last_number(text) == number
