"""Files of questions in GSM8K's format."""

import json
import re

import pytest

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.evaluation.questions import NUMBER, read_questions

GOOD = json.dumps({"question": "What is 1 + 1?", "answer": "One and one.\n#### 2", "source": "kept out"})


def test_a_file_has_one_question_a_line(tmp_path):
    file = tmp_path / "asked.jsonl"
    file.write_text(f"{GOOD}\n\n{GOOD}\n")
    assert read_questions(file) == [{"question": "What is 1 + 1?", "answer": "One and one.\n#### 2"}] * 2


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "line 2: not JSON"),
        ('{"question": "What is 1 + 1?", "answer": "2"}', "line 2: must be"),
        (None, "has no questions"),
    ],
)
def test_a_bad_question_file_is_refused(tmp_path, line, message):
    file = tmp_path / "asked.jsonl"
    file.write_text("" if line is None else f"{GOOD}\n{line}\n")
    with pytest.raises(UserError, match=message) as refused:
        read_questions(file)
    assert "asked.jsonl" in str(refused.value)


@pytest.mark.parametrize(
    "text, number", [("So 7 + 5 = 12.", "12"), ("It is $1,014.50.", "1,014.50"), ("below: -3", "-3"), ("12 %, 4,", "4")]
)
def test_the_last_number_of_an_answer(text, number):
    assert re.findall(NUMBER, text)[-1].rstrip(",") == number
