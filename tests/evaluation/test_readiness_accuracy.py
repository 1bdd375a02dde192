"""Teacher forcing as tt-metal's readiness check counts it, with its reference files."""

import pytest
import torch
from qwen25_7b_lab.evaluation.readiness import PROMPTS, agreement, chat_entries, load_entries

from models.demos.qwen25_7b.errors import UserError

VOCAB = 1024


def refpt(entries) -> dict:
    """What models/common/readiness_check/generate.py writes."""
    return dict(
        format_version="readiness_v1", k=100, hf_model_id="small", token_ids_meta=dict(bos_id=None, eos_id=0, pad_id=0),
        entries=[
            dict(
                prompt_text="", prompt_tokens=torch.tensor([text.ids[: text.prompt_length]]),
                tf_prompt_len=text.prompt_length,
                generated_tokens=torch.tensor([text.ids[text.prompt_length :]]), topk_tokens=choices.int(),
            )
            for text, choices in entries
        ],
    )  # fmt: skip


@pytest.fixture(scope="module")
def entries(hf, tokenizer):
    return chat_entries(hf, tokenizer, PROMPTS[1:2])


# What is done to the reference's choices
CHANGES = (
    lambda choices: choices,
    lambda choices: choices.roll(1, 1),  # the best is the second
    lambda choices: choices.roll(5, 1),  # the sixth
    lambda choices: choices.roll(-1, 1)[:, :99],  # no choice at all
)


def test_decode_agrees_with_a_reference_file(entries, replica_of, tmp_path):
    """Every token after the prompt counts, also the first one, which prefill predicts."""
    (entry,) = entries
    changed = [entry._replace(choices=change(entry.choices)) for change in CHANGES]
    torch.save(refpt(changed), tmp_path / "a.refpt")
    tokens, shares = agreement([replica_of(4, 96)], load_entries(tmp_path / "a.refpt", VOCAB))
    assert tokens == 4 * len(entry.choices) and shares == {1: 0.25, 5: 0.5, 100: 0.75}


BAD = {
    "of another version": lambda contents: contents | dict(format_version="readiness_v2"),
    "without entries": lambda contents: contents | dict(entries=[]),
    "of fewer rows": lambda contents: (
        contents | dict(entries=[contents["entries"][0] | dict(topk_tokens=torch.zeros(1, 5))])
    ),
    "of another model": lambda contents: (
        contents | dict(entries=[contents["entries"][0] | dict(prompt_tokens=torch.tensor([[VOCAB]]))])
    ),
    "of tt-metal's older kind": lambda contents: dict(
        reference_tokens=torch.zeros(1, 8), top5_tokens=torch.zeros(8, 5)
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_another_file_is_refused(entries, tmp_path, what):
    torch.save(BAD[what](refpt(entries)), tmp_path / "a.refpt")
    with pytest.raises(UserError, match="--reference .*a.refpt"):
        load_entries(tmp_path / "a.refpt", VOCAB)


def test_a_file_that_torch_cannot_read_is_refused(tmp_path):
    (tmp_path / "a.refpt").write_bytes(b"no zip")
    with pytest.raises(UserError, match="no .refpt file"):
        load_entries(tmp_path / "a.refpt", VOCAB)
