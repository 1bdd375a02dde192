"""A checkpoint's own sampling: what Hugging Face's generate makes of generation_config.json."""

import json

import pytest
import torch

from models.common.errors import UserError
from models.demos.qwen25_7b.config.sampling import Sampling, Seen
from models.demos.qwen25_7b.serving.generation_config import default_sampling, not_done
from models.demos.qwen25_7b.serving.sampling import choose

QWEN25_7B_INSTRUCT = dict(do_sample=True, repetition_penalty=1.05, temperature=0.7, top_p=0.8, top_k=20)
DRAWS, VOCABULARY = 800, 60


def written(place, **fields):
    (place / "generation_config.json").write_text(json.dumps(fields))
    return place


def of_hugging_face(fields: dict, logits: torch.Tensor, seen: Seen) -> torch.Tensor:
    """[vocabulary] probabilities with which generate would choose."""
    from transformers import GenerationConfig, LogitsProcessorList, Qwen2Config, Qwen2ForCausalLM

    tiny = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, **tiny))
    config = GenerationConfig(**fields)
    processors = model._get_logits_processor(config, logits_processor=LogitsProcessorList())
    scores = processors(torch.tensor([[*seen.prompt, *seen.answer]]), logits[None].clone())[0]
    return scores.softmax(-1) if config.do_sample else torch.nn.functional.one_hot(scores.argmax(), VOCABULARY).float()


@pytest.mark.parametrize(
    "fields",
    [
        QWEN25_7B_INSTRUCT,
        dict(do_sample=True),
        dict(do_sample=True, top_p=0.5, temperature=1.5),
        dict(do_sample=True, top_k=0, repetition_penalty=2.0),
        dict(do_sample=False, repetition_penalty=3.0),
        {},
    ],
    ids=str,
)
def test_tokens_are_as_likely_as_with_hugging_face(tmp_path, fields):
    logits = 2 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0))
    likeliest = logits.argsort(descending=True).tolist()
    seen = Seen(prompt=likeliest[:1] + likeliest[-3:], answer=likeliest[2:4])
    sampling = default_sampling(written(tmp_path, **fields))
    expected = of_hugging_face(fields, logits, seen)
    drawn = torch.zeros(VOCABULARY)
    for position in range(DRAWS if not sampling.greedy else 1):
        drawn[choose(logits, sampling, 7, position, seen)] += 1
    assert not drawn[expected == 0].any(), "a token that generate would never take"
    assert (drawn / drawn.sum() - expected).abs().max() < 0.05  # 2.7 deviations of the likeliest a coin could be


def test_a_checkpoint_without_the_file_is_greedy(tmp_path):
    assert default_sampling(tmp_path) == Sampling(top_k=50)


def test_what_is_not_done_is_named(tmp_path):
    place = written(tmp_path, do_sample=True, min_p=0.1, typical_p=1.0, no_repeat_ngram_size=3, num_beams=1)
    assert not_done(place) == ["min_p", "no_repeat_ngram_size"]


@pytest.mark.parametrize("name, value", [("temperature", "hot"), ("top_k", 2.5), ("top_p", True), ("top_p", 0)])
def test_a_value_that_is_none_is_named(tmp_path, name, value):
    with pytest.raises(UserError, match=f"generation_config.json: {name} must be .*{value}"):
        default_sampling(written(tmp_path, do_sample=True, **{name: value}))
