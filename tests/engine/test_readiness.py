"""tt/generator.py as tt-metal's readiness checks use it: loaded by its path, on a mesh that the caller opened."""

import importlib.util
import inspect
import sys
from pathlib import Path

import pytest
import torch

from models.demos.qwen25_7b.tt import mesh
from models.demos.qwen25_7b.tt.mesh import traces_available
from tests.families import NEAR_TIE

FOLDER = Path(mesh.__file__).parents[1]
QUESTION = "What is the capital of France?"
NEW = 12


@pytest.fixture(scope="module")
def generator(mesh_device):
    """With two slots and the formats of float32's nearest recipe."""
    spec = importlib.util.spec_from_file_location("_readiness_generator_qwen25_7b", FOLDER / "tt/generator.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    generator = module.build_generator(
        model_dir=FOLDER, mesh_device=mesh_device, recipe="bf16", users=2, max_seq_len=128
    )
    yield generator
    generator.teardown()


@pytest.fixture(scope="module")
def prompt(tokenizer):
    return tokenizer.encode(QUESTION)


@pytest.fixture(scope="module")
def right(hf, prompt):
    """Hugging Face's greedy tokens, and its logits after the prompt and each of them."""
    out = hf.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, eos_token_id=None)[0].tolist()
    with torch.no_grad():
        return out[len(prompt) :], hf(torch.tensor([out])).logits[0, len(prompt) - 1 : -1]


def test_free_running_equals_hugging_face(generator, prompt, right):
    tokens, _ = right
    stopped = generator.generate(prompt, NEW)
    assert stopped == tokens[: len(stopped)] and stopped[-1] in generator.stop_ids


def test_teacher_forcing_reads_the_given_tokens(generator, hf, prompt, right):
    """Every prediction is heard, also the last; those after a forced token are those of its text."""
    tokens, logits = right
    steps = []

    def next_input(step, predicted):
        steps.append((step, predicted))
        return tokens[step]

    assert "enable_trace" in inspect.signature(generator.generate).parameters, "the check wants it by name"
    predictions = generator.generate(
        prompt_token_ids=prompt, max_new_tokens=NEW, next_input=next_input, enable_trace=True
    )
    assert steps == list(enumerate(predictions)) and predictions == logits.argmax(-1).tolist()
    generator.reset()
    forced = [token ^ 1 for token in tokens]  # no text, so a position beside the right one changes the choices
    other = generator.generate(prompt, NEW, next_input=lambda step, predicted: forced[step])
    with torch.no_grad():
        rows = hf(torch.tensor([prompt + forced])).logits[0, len(prompt) - 1 : -1]
    assert all(row.max() - row[token] <= NEAR_TIE * row.std() for row, token in zip(rows, other, strict=True))
    assert generator.generate(prompt, 4, next_input=next_input) == predictions[:4]
    assert generator.replica.traces.enabled == traces_available(), "also without a trace region"


def test_the_low_level_calls_give_logits(generator, prompt, right):
    """Two rows of one page table. Another prompt is in the first."""
    tokens, expected = right
    rows = torch.zeros(2, 64, dtype=torch.int64)
    rows[0, :5], rows[1, : len(prompt)] = torch.tensor(prompt[:5]), torch.tensor(prompt)
    blocks = torch.arange(generator.replica.blocks).reshape(2, -1).flip(0)
    caches = dict(page_table=blocks, kv_cache=generator.kv_cache)
    logits = [generator.prefill_forward(rows, prompt_lens=[5, len(prompt)], **caches)[1]]
    for step, token in enumerate(tokens[:8]):
        positions = torch.tensor([5 + step, len(prompt) + step])
        logits.append(generator.decode_forward(torch.tensor([[token], [token]]), positions, **caches)[1:])
    assert torch.cat(logits).argmax(-1).tolist() == expected[:9].argmax(-1).tolist()


def test_a_prefill_gives_the_logits_after_each_token(generator, prompt, right):
    tokens, expected = right
    text = torch.tensor([prompt + tokens])
    logits = generator.prefill_forward(text, prompt_lens=[text.shape[1]], return_all_logits=True)
    assert logits.shape[:2] == text.shape
    assert logits[0, len(prompt) - 1 : -1].argmax(-1).tolist() == expected.argmax(-1).tolist()
