"""Which texts a model is judged on, and at which of their tokens."""

from pathlib import Path

import pytest

from models.common.errors import UserError
from models.demos.qwen25_7b.evaluation.texts import HELD_OUT, sample
from models.demos.qwen25_7b.reference.corpus import make_questions
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT


def test_a_file_is_cut_evenly_and_every_further_token_but_the_last_is_judged(text, tmp_path):
    got = sample(text.tokenizer, tmp_path, HELD_OUT, count=4, beginning=5, steps=3)
    ids = text.tokenizer.encode(HELD_OUT.read_text())
    assert [len(t) for t in got.texts] == [9] * 4 and got.judged == [[5, 6, 7]] * 4 and got.tokens == 12
    assert got.texts[0] == ids[:9] and got.texts[-1] == ids[-9:], "not from end to end"


def test_no_more_texts_than_the_file_has(text, tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("one two three four five six seven eight nine ten " * 3)
    tokens = len(text.tokenizer.encode(file.read_text()))
    got = sample(text.tokenizer, tmp_path, file, count=32, beginning=3, steps=tokens // 2 - 4)
    assert len(got.texts) == 2
    with pytest.raises(UserError, match=rf"short.txt has {tokens} tokens, one text takes {tokens + 1}"):
        sample(text.tokenizer, tmp_path, file, count=1, beginning=3, steps=tokens - 3)


def test_the_small_checkpoint_is_asked_what_it_was_not_trained_on(text):
    got = sample(text.tokenizer, SMALL_CHECKPOINT, None, count=8, beginning=16, steps=48)
    asked = {t.user for turns in make_questions().values() for t in turns if t.held_out}
    trained = {t.user for turns in make_questions().values() for t in turns if not t.held_out}
    for ids, judged in zip(got.texts, got.judged):
        said = text.tokenizer.decode(ids)
        questions = [turn.split("<|im_end|>")[0] for turn in said.split("<|im_start|>user\n")[1:]]
        assert len(ids) == 65 and all(q in asked and q not in trained for q in questions[:-1]), said  # the last is cut
        answers = "".join(text.tokenizer.decode(ids[at + 1]) for at in judged)
        whole = [turn.split("assistant\n")[1].split("<|im_end|>")[0] for turn in said.split("user\n")[3:-1]]
        assert all(f"{answer}<|im_end|>" in answers for answer in whole), (whole, answers)
        assert answers and "user" not in answers and "<|im_end|>\n" not in answers, answers
        assert min(judged) >= 16 and max(judged) <= 63
    assert sample(text.tokenizer, SMALL_CHECKPOINT, None, count=8, beginning=16, steps=48) == got


@pytest.mark.parametrize("contents", [None, b"\xff\xfe\xff"])
def test_a_file_that_is_no_text(text, tmp_path, contents):
    file = tmp_path / "some.txt"
    if contents is not None:
        file.write_bytes(contents)
    with pytest.raises(UserError, match="some.txt cannot be read"):
        sample(text.tokenizer, tmp_path, Path(file), count=1, beginning=1, steps=1)


def test_what_ships_is_enough_for_the_default_evaluation_by_a_large_vocabulary():
    words = len(HELD_OUT.read_text().split())
    assert words * 1.25 >= 32 * 97, "English prose takes some 1.3 tokens a word of a large vocabulary"
