"""A checkpoint's generation_config.json gives the sampling of Hugging Face's generate."""

import json
from dataclasses import replace

import pytest
import torch
import transformers
from transformers import GenerationConfig, LogitsProcessorList, Qwen2Config, Qwen2ForCausalLM

from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.engine.sampling import TokenCounts
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.text.generation_config import (
    UNSUPPORTED,
    default_sampling,
    read_generation_config,
    stop_ids,
    unsupported_fields,
)
from tests.generation import sample

QWEN25_7B_INSTRUCT = dict(do_sample=True, repetition_penalty=1.05, temperature=0.7, top_p=0.8, top_k=20)
DRAWS, VOCABULARY = 800, 60


def read(place, **fields):
    (place / "generation_config.json").write_text(json.dumps(fields))
    return read_generation_config(place)


def of_hugging_face(fields: dict, logits: torch.Tensor, seen: TokenCounts) -> torch.Tensor:
    """Return the probabilities [vocabulary] of generate's next token."""
    tiny = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1)
    tiny |= dict(num_attention_heads=1, num_key_value_heads=1)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, **tiny))
    config = model._prepare_generation_config(GenerationConfig(**fields))[0]
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
        *(QWEN25_7B_INSTRUCT | {name: None} for name in QWEN25_7B_INSTRUCT),
        dict.fromkeys(QWEN25_7B_INSTRUCT) | dict(do_sample=True),
        dict.fromkeys(QWEN25_7B_INSTRUCT),
        {},
    ],
    ids=str,
)
def test_token_probabilities_equal_hugging_faces(tmp_path, fields):
    logits = 2 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0))
    ranked = logits.argsort(descending=True).tolist()
    seen = TokenCounts(prompt=ranked[:1] + ranked[-3:], answer=ranked[2:4])
    sampling = default_sampling(read(tmp_path, **fields))
    expected = of_hugging_face(fields, logits, seen)
    counts = torch.zeros(VOCABULARY)
    for position in range(DRAWS if not sampling.greedy else 1):
        counts[sample(logits, sampling, 7, position, seen)] += 1
    assert not counts[expected == 0].any(), "a token that generate would never sample"
    assert (counts / counts.sum() - expected).abs().max() < 0.05  # 2.7 standard deviations at probability 0.5


def test_a_checkpoint_without_the_file_is_greedy(tmp_path):
    assert default_sampling(read_generation_config(tmp_path)) == SamplingParams(top_k=50)


@pytest.mark.parametrize("name, value", [("temperature", "hot"), ("top_p", 0)])
def test_an_invalid_value_is_named(tmp_path, name, value):
    with pytest.raises(UserError, match=f"generation_config.json.*{name}.*{value}"):
        default_sampling(read(tmp_path, do_sample=True, **{name: value}))


@pytest.mark.parametrize("name", sorted(vars(GenerationConfig())))
def test_a_null_means_not_set(tmp_path, name):
    """For top_k that is no limit with transformers 4.57, and 50 with 5."""
    config, without = read(tmp_path, **{name: None}), read(tmp_path)
    assert (stop_ids(config), unsupported_fields(config)) == (set(), [])
    top_k = 0 if name == "top_k" and transformers.__version__ < "5" else 50
    assert default_sampling(config) == replace(default_sampling(without), top_k=top_k)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_each_unsupported_field_is_named_where_it_does_something(tmp_path, name):
    value = dict(watermarking_config={"bias": 3.0}, suppress_tokens=[1], begin_suppress_tokens=[1])
    assert unsupported_fields(read(tmp_path, **{name: UNSUPPORTED[name] or None})) == []
    assert unsupported_fields(read(tmp_path, **{name: value.get(name, 0.7)})) == [name]


@pytest.mark.parametrize("value", ["<|im_end|>", ["<|im_end|>"], [151645, None], 1.5])
def test_a_stop_token_is_an_id(tmp_path, value):
    with pytest.raises(UserError, match="eos_token_id"):
        stop_ids(read(tmp_path, eos_token_id=value))
