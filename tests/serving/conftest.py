"""Fixtures: prompts, and the model class for vLLM."""

import pytest

CAPITALS = "France Japan Italy Spain Egypt Peru Canada Kenya Norway Cuba India China".split()
QUESTIONS = (
    *(f"What is the capital of {country}?" for country in CAPITALS),
    *(f"Count from {n} to {n + 12}." for n in range(2, 14)),
    *(f"Spell the word {w}." for w in "banana house garden window apple river".split()),
    *(f"What is {a} + {b}?" for a, b in ((7, 5), (3, 4), (9, 8), (2, 6), (5, 5), (8, 1))),
    "Name the planets.",
    "What are the days of the week?",
    "Name the months of the year.",
    "Tell a story about teacher Tom, doctor Anna and a fox.",
)


@pytest.fixture(scope="session", autouse=True)
def tiles_elsewhere(tmp_path_factory):
    """Keep the user's cache untouched."""
    with pytest.MonkeyPatch.context() as patched:
        root = tmp_path_factory.mktemp("tiles")
        patched.setattr("models.demos.qwen25_7b.weights.cache.cache_root", lambda: root)
        yield


@pytest.fixture(scope="session")
def vocab_size(checkpoint) -> int:
    return checkpoint.config.vocab_size


@pytest.fixture(scope="session")
def prompts(tokenizer) -> list[list[int]]:
    """48 prompts of 13 to about 350 tokens: one question, or several in a row."""
    short = [tokenizer.encode(question) for question in QUESTIONS]
    return short + [sum(short[i : i + 2 + 3 * i], []) for i in range(48 - len(short))]


@pytest.fixture(scope="session")
def tight(prompts) -> list[list[int]]:
    """12 prompts of nearly a block each. Each request needs another block during its answer.

    prompts[17] begins none of them. Its answer has a near tie: Hugging Face's two best tokens are 0.018 apart.
    A preempted request is prefilled again in another batch, and bfloat16's rounding there may choose the other token.
    """
    return [sum(prompts[i : i + 4], []) for i in range(10, 23) if i != 17]


@pytest.fixture(scope="session")
def started(mesh_device, checkpoint):
    """(model, caches, blocks) of the vLLM class as the plugin starts it.

    Its recipe gives Hugging Face's tokens exactly.
    """
    from vllm_requests import BLOCK, MAX_LEN, SLOTS, start

    from models.demos.qwen25_7b.vllm.generator_vllm import QwenForCausalLM

    return start(
        QwenForCausalLM, mesh_device, checkpoint, slots=SLOTS, max_len=MAX_LEN, block=BLOCK
    )


@pytest.fixture(scope="module")
def served(started):
    """Return `started`, and release its traces after the module.

    Later allocations would overlap the temporaries of the traces.
    """
    yield started
    started[0].replica.close()
