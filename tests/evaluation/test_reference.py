"""What a model is compared with: a reference file, or Hugging Face's reading, a layer at a time."""

import pytest
import torch
from qwen25_7b_lab.evaluation.readiness import agreement
from qwen25_7b_lab.evaluation.reference import HuggingFace
from qwen25_7b_lab.evaluation.texts import sample

from models.demos.qwen25_7b.config import BFP8, PERFORMANCE
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from tests.accuracy.test_teacher_forcing import entries_of

VOCAB = 1056


@pytest.fixture(scope="module")
def tokens(tokenizer) -> list[int]:
    """Tokens of chats, shorter than the replica's context."""
    return sample(tokenizer.hf, SMALL_CHECKPOINT, None, count=1, prompt_length=20, steps=23).texts[0]


def test_a_model_agrees_with_a_file_of_its_own_choices(replica, hugging_face, tokens, tmp_path):
    """In the form of tt_transformers: row i is what follows token i. tests/accuracy reads it."""
    with torch.no_grad():
        best = hugging_face.model(torch.tensor([tokens])).logits[0, :-1].topk(5).indices
    for choices, least, most in ((best, 0.9, 1), (best[:, [1, 0, 2, 3, 4]], 0, 0.1)):  # and with the second best first
        torch.save({"reference_tokens": torch.tensor([tokens]), "top5_tokens": choices}, tmp_path / "small.refpt")
        count, shares = agreement([replica], entries_of(tmp_path / "small.refpt", VOCAB))
        assert count == len(tokens) - len(tokens) // 2 and least <= shares[1] <= most and shares[5] == 1


@pytest.mark.parametrize("recipe", [None, BFP8, PERFORMANCE], ids=str)
def test_a_layer_at_a_time_reads_as_the_whole_model(tokens, recipe):
    """Hugging Face's own whole model judges: states, logits and a greedy answer."""
    streamed, whole = (HuggingFace(SMALL_CHECKPOINT, recipe, whole=whole) for whole in (False, True))
    assert all(parameter.is_meta for parameter in streamed.model.model.layers.parameters())
    texts = [tokens, tokens[:9], *[tokens[5:20]] * 8]
    ours, theirs = (model.read(texts) for model in (streamed, whole))
    for text, ids in enumerate(texts):
        places = [text] * len(ids), range(len(ids))
        torch.testing.assert_close(ours.logits(*places), theirs.logits(*places), rtol=0, atol=1e-4)
    assert all(parameter.is_meta for parameter in streamed.model.model.layers.parameters())
    greedy = dict(max_new_tokens=4, do_sample=False, pad_token_id=0)
    answers = [model.model.generate(torch.tensor([tokens]), **greedy).tolist() for model in (streamed, whole)]
    assert answers[0] == answers[1]
