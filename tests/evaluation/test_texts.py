"""The sequences that a model is scored on, their scored tokens, and files of questions in GSM8K's format."""

import json
import re

import pytest
from qwen25_7b_lab.evaluation.questions import NUMBER, read_questions
from qwen25_7b_lab.evaluation.small_questions import small_questions
from qwen25_7b_lab.evaluation.texts import HELD_OUT, sample

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT


def test_a_file_is_cut_evenly_and_each_token_but_the_last_is_scored(tokenizer, tmp_path):
    got = sample(tokenizer.hf, tmp_path, HELD_OUT, count=4, prompt_length=5, steps=3)
    ids = tokenizer.hf.encode(HELD_OUT.read_text())
    assert [len(t) for t in got.texts] == [9] * 4 and got.scored == [[5, 6, 7]] * 4 and got.tokens == 12
    assert got.texts[0] == ids[:9] and got.texts[-1] == ids[-9:], "not from end to end"


def test_no_more_texts_than_the_file_has(tokenizer, tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("one two three four five six seven eight nine ten " * 3)
    tokens = len(tokenizer.hf.encode(file.read_text()))
    got = sample(tokenizer.hf, tmp_path, file, count=32, prompt_length=3, steps=tokens // 2 - 4)
    assert len(got.texts) == 2
    with pytest.raises(UserError, match=rf"short.txt has {tokens} tokens, and one text takes {tokens + 1}"):
        sample(tokenizer.hf, tmp_path, file, count=1, prompt_length=3, steps=tokens - 3)


def test_the_small_checkpoints_questions_are_held_out_of_training(tokenizer):
    got = sample(tokenizer.hf, SMALL_CHECKPOINT, None, count=8, prompt_length=16, steps=48)
    requested = {t.user for turns in small_questions().values() for t in turns if t.held_out}
    trained = {t.user for turns in small_questions().values() for t in turns if not t.held_out}
    for ids, judged in zip(got.texts, got.scored):
        text = tokenizer.hf.decode(ids)
        questions = [turn.split("<|im_end|>")[0] for turn in text.split("<|im_start|>user\n")[1:]]
        # The last question is cut.
        assert len(ids) == 65 and all(q in requested and q not in trained for q in questions[:-1]), text
        answers = "".join(tokenizer.hf.decode(ids[at + 1]) for at in judged)
        whole = [turn.split("assistant\n")[1].split("<|im_end|>")[0] for turn in text.split("user\n")[3:-1]]
        assert all(f"{answer}<|im_end|>" in answers for answer in whole), (whole, answers)
        assert answers and "user" not in answers and "<|im_end|>\n" not in answers, answers
        assert min(judged) >= 16 and max(judged) <= 63
    assert sample(tokenizer.hf, SMALL_CHECKPOINT, None, count=8, prompt_length=16, steps=48) == got


GOOD = json.dumps({"question": "What is 1 + 1?", "answer": "One and one.\n#### 2", "source": "kept out"})


def test_a_file_has_one_question_a_line(tmp_path):
    file = tmp_path / "asked.jsonl"
    file.write_text(f"{GOOD}\n\n{GOOD}\n")
    assert read_questions(file) == [{"question": "What is 1 + 1?", "answer": "One and one.\n#### 2"}] * 2


@pytest.mark.parametrize(
    "text, number", [("So 7 + 5 = 12.", "12"), ("It is $1,014.50.", "1,014.50"), ("below: -3", "-3"), ("12 %, 4,", "4")]
)
def test_the_last_number_of_an_answer(text, number):
    assert re.findall(NUMBER, text)[-1].rstrip(",") == number
