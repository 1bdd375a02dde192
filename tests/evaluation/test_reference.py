"""Reference files have tt-metal's format. A position in a file is a position in the text."""

import pytest
import torch
from qwen25_7b_lab.evaluation.reference import HuggingFace
from qwen25_7b_lab.evaluation.texts import sample

from models.demos.qwen25_7b.config import BFP8, PERFORMANCE
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from tests.accuracy.reference_file import Reference, agreement

VOCAB = 1056


@pytest.fixture(scope="module")
def tokens(tokenizer) -> list[int]:
    """Tokens of chats, shorter than the replica's context."""
    return sample(tokenizer.hf, SMALL_CHECKPOINT, None, count=1, prompt_length=20, steps=23).texts[0]


@pytest.fixture(scope="module")
def reference(hugging_face, tokens) -> Reference:
    with torch.no_grad():
        logits = hugging_face.model(torch.tensor([tokens])).logits[0]
    return Reference(tokens, logits[:-1].topk(5).indices)


def test_a_file_of_tt_metals_form_is_read(reference, tmp_path):
    """Row i is what follows token i."""
    contents = {"reference_tokens": torch.tensor([reference.tokens]), "top5_tokens": reference.top5}
    torch.save(contents, tmp_path / "small.refpt")
    loaded = Reference.load(tmp_path / "small.refpt", VOCAB)
    assert loaded.tokens == reference.tokens and torch.equal(loaded.top5, reference.top5)


def test_every_token_of_the_second_half_is_scored_once(reference):
    texts = reference.texts()
    n = len(reference.tokens)
    judged = sorted(at for text in texts for at in range(text.prompt_length, len(text.ids) - 1))
    assert judged == list(range(n // 2, n - 1))
    assert all(text.ids == reference.tokens[: len(text.ids)] for text in texts), "what stands before a token is missing"


def test_a_model_agrees_with_its_own_reference(replica, reference):
    top1, top5, tokens = agreement([replica], reference)
    assert tokens == len(reference.tokens) - 1 - len(reference.tokens) // 2 and top5 == 1 and top1 > 0.9
    second_best = Reference(reference.tokens, reference.top5[:, [1, 0, 2, 3, 4]])
    assert agreement([replica], second_best)[0] < 0.1


ids = torch.arange(8)[None]
five = torch.zeros(8, 5, dtype=torch.long)


@pytest.mark.parametrize(
    "contents, message",
    [
        (b"no torch file", "UnpicklingError"),
        ({"reference_tokens": ids[0], "top5_tokens": five}, r"has \[8\] and \[8, 5\]"),
        ({"reference_tokens": ids + VOCAB, "top5_tokens": five}, "another model"),
    ],
)
def test_a_file_that_is_no_reference_is_refused(tmp_path, contents, message):
    file = tmp_path / "some.refpt"
    file.write_bytes(contents) if isinstance(contents, bytes) else torch.save(contents, file)
    with pytest.raises(UserError, match=message) as refused:
        Reference.load(file, VOCAB)
    assert "some.refpt" in str(refused.value)


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
