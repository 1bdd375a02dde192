"""Where an answer began is known when its text comes back as a prompt, and of no other prompt."""

from models.demos.qwen25_7b.config.sampling import Seen
from models.demos.qwen25_7b.serving.vllm_sampling import REMEMBERED, Answers


def test_a_text_that_comes_back_is_parted_where_its_answer_began():
    answers = Answers()
    answers.written(Seen([5, 6], []), 7)
    answers.written(Seen([5, 6], [7]), 8)
    assert answers.seen([5, 6, 7, 8]) == ([5, 6], [7, 8])
    for prompt in ([5, 6], [5, 6, 7], [5, 6, 7, 8, 9], [5, 6, 7, 9]):
        assert answers.seen(prompt) == (prompt, []), "a new prompt was taken for it"


def test_texts_are_remembered_until_as_many_others_were_written():
    answers = Answers()
    answers.written(Seen([1], []), 2)
    for other in range(REMEMBERED - 1):
        answers.written(Seen([3], [other]), 4)
        answers.written(Seen([3], [other, 4]), 5)
    assert answers.seen([1, 2]) == ([1], [2])
    answers.written(Seen([6], []), 7)
    assert answers.seen([1, 2]) == ([1, 2], [])
