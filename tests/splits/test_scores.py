"""lm-eval's score of a model is the same on every split, with any number of replicas."""

import json

import pytest
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from qwen25_7b_lab.evaluation.harness import ReplicaLM
from qwen25_7b_lab.evaluation.model import EvaluatedModel, replicas_on
from qwen25_7b_lab.evaluation.questions import questions_task, read_questions
from qwen25_7b_lab.evaluation.small_questions import small_questions

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.text.tokenizer import ChatTokenizer

# one replica of two chips, eight of one, two of four
pytestmark = pytest.mark.make_test_on("N300", "T3K-tp1", "T3K-tp4")

COUNT, WRONG = (36, 4)  # more questions than a replica has slots, and false answers in the file


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    """A file in GSM8K's format, with sums from the small checkpoint's training data."""
    taught = [turn for turn in small_questions()["sums"] if not turn.held_out]
    some = taught[:: len(taught) // COUNT][:COUNT]
    file = tmp_path_factory.mktemp("sums") / "sums.jsonl"
    lines = []
    for i, turn in enumerate(some):
        number = int(turn.answer.split("=")[1].strip(" .")) + (i < WRONG)
        lines.append(json.dumps({"question": turn.user, "answer": f"{turn.answer}\n#### {number}"}))
    file.write_text("\n".join(lines) + "\n\n")
    return file


def test_every_split_scores_the_same(replica_devices, queues, sums):
    evaluated = EvaluatedModel.open(None)
    options = dict(texts=COUNT, max_seq_len=64, queues=queues)
    with replicas_on(replica_devices, evaluated.checkpoint, BFP8, **options) as replicas:
        model = ReplicaLM(replicas, ChatTokenizer(evaluated.directory, instruct=True))
        results = simple_evaluate(
            model,
            tasks=[questions_task(read_questions(sums), instruct=True, new_tokens=16)],
            task_manager=TaskManager(include_defaults=False),
            apply_chat_template=True,
            bootstrap_iters=0,
        )
    assert results["n-samples"]["questions"]["effective"] == COUNT
    assert results["results"]["questions"]["exact_match,flexible-extract"] == (COUNT - WRONG) / COUNT
    assert results["results"]["questions"]["exact_match,strict-match"] == 0, "it never learnt to write the mark"
