"""The small checkpoint on a mesh gives Hugging Face's float32 tokens, alone or in a batch."""

import pytest
import torch
from qwen25_7b_lab.evaluation.teacher_forcing import predict_with_decode
from qwen25_7b_lab.evaluation.texts import ForcedText

from models.demos.qwen25_7b.config.sampling import GREEDY, SamplingParams
from models.demos.qwen25_7b.engine.generator import Generator
from tests.generation import generate, greedy
from tests.metrics import assert_close

pytestmark = pytest.mark.make_test_on("N300")

NEW_TOKENS = 64
QUESTIONS = (
    "What is the capital of France?",
    "Count from 2 to 25.",  # the answer uses all new tokens
    "Tell a story about teacher Tom, doctor Anna and a fox.",
    "What is 7 + 5?",
    "Spell the word banana.",
    "What are the days of the week?",
    "Name the planets.",
    "Name the months of the year.",
)
USERS = len(QUESTIONS)


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return [tokenizer.encode(question) for question in QUESTIONS]


@pytest.fixture(scope="module")
def answers(hf, tokenizer, prompts):
    """Hugging Face's answers."""
    return [greedy(hf, prompt, NEW_TOKENS, tokenizer.stop_ids) for prompt in prompts]


@pytest.fixture(scope="module")
def replica(replica_of):
    return replica_of(USERS, 2048)


@pytest.fixture
def generator(replica):
    return Generator([replica])


def test_greedy_tokens_of_a_batch_equal_hugging_faces(generator, tokenizer, prompts, answers):
    assert "Paris" in tokenizer.hf.decode(answers[0])
    assert max(map(len, answers)) == NEW_TOKENS, "no answer is long"
    assert generate(generator, prompts, NEW_TOKENS, stop_ids=tokenizer.stop_ids) == answers


def test_a_used_generator_gives_the_same_answers(generator, tokenizer, prompts, answers):
    long = [prompt * 12 for prompt in prompts[:4]]  # they fill the caches' first blocks
    generate(generator, long, 3)
    running = generator.generate(prompts, 20)
    for _ in range(USERS + 4):
        next(running)
    running.close()  # a client leaves in the middle
    used = generate(generator, prompts, 24, stop_ids=tokenizer.stop_ids)
    assert used == [ids[:24] for ids in answers]


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 127, 128, 129, 300, 1030, 2047])
@torch.no_grad()
def test_prefill_of_any_length(replica, hf, prompts, answers, tokens):
    """Lengths around a tile and around whole chunks. The longest take several prefill batches."""
    ids = sum((prompt + answer for prompt, answer in zip(prompts, answers)), [])
    ids = (ids * (tokens // len(ids) + 1))[:tokens]
    (prediction,) = predict_with_decode([replica], [ForcedText([*ids, 0], len(ids))])
    expected = hf(torch.tensor([ids])).logits[0, -1]
    assert_close(prediction.logits[0].float(), expected, pcc=0.999)


def test_prompts_of_traced_lengths_get_the_same_answer_again(generator, prompts):
    """The first prompt of a length runs op by op, and later prompts replay its trace.

    A prompt of another length runs between them.
    """
    both = sum(prompts, [])[:100], (sum(prompts, []) * 20)[:700]

    def answers(prompts):
        return [generate(generator, [prompt], 4) for prompt in prompts]

    first = answers(both)
    assert answers(both) == first
    assert answers(prompt[::-1] for prompt in both) != first
    assert answers(both) == first


def test_the_host_samples_what_the_chips_sample(replica, tokenizer, prompts):
    """Users have different options, some greedy. The whole batch runs first, then three users."""
    options = [
        SamplingParams(4.0, top_k=1 + 4 * user, top_p=(1.0, 0.9, 0.6)[user % 3], seed=user)
        if user % 4
        else SamplingParams()
        for user in range(USERS)
    ]
    hot = [SamplingParams(4.0, seed=7)] * 3

    def answers(on_host):
        generator = Generator([replica], on_host=on_host)
        return [
            generate(generator, some, 10, stop_ids=tokenizer.stop_ids, sampling=sampling)
            for some, sampling in ((prompts, options), (prompts[:3], hot), (prompts, GREEDY))
        ]

    on_chips = answers(on_host=False)
    assert answers(on_host=True) == on_chips
    assert on_chips[0] != on_chips[2], "everything sampled is what greedy takes"


def test_sampling_is_repeatable_by_its_seed(generator, prompts):
    def sampled(seed, some):
        sampling = SamplingParams(temperature=3.0, top_k=32, top_p=0.98, seed=seed)
        return generate(generator, some, 12, sampling=sampling)

    first = sampled(11, prompts[:3])
    assert sampled(11, prompts[:3]) == first
    assert sampled(11, prompts[:1]) == first[:1], "the batch changed a user's sampled tokens"
    assert sampled(11, prompts[2::-1]) == first[::-1], "the slot changed a user's sampled tokens"
    assert sampled(12, prompts[:3]) != first


def test_seeded_answers_are_the_same_after_a_preemption(generator, prompts):
    """Noise depends on seed and position.

    Prefill rounds the cache's rows differently from decode. This changes one token in fifteen at
    this temperature. Noise of another position would change nearly all tokens.
    """
    samplings = [SamplingParams(temperature=2.0, top_k=32, seed=seed) for seed in range(USERS)]
    whole = generate(generator, prompts[:1] * USERS, 20, sampling=samplings)
    begun = [prompts[0] + ids[:9] for ids in whole]
    rest = generate(generator, begun, 11, sampling=samplings)
    same = 0
    for again, ids in zip(rest, whole):
        same += next((i for i, (a, b) in enumerate(zip(again, ids[9:])) if a != b), len(again))
    mean = same / USERS
    assert mean >= 4, f"{mean} of 11 tokens, on average, until the first that differs"


def test_users_without_a_seed_never_share_a_stream(generator, prompts):
    texts = generate(generator, prompts[:1] * USERS, 12, sampling=SamplingParams(temperature=5.0))
    assert len(set(map(tuple, texts))) == USERS


def test_a_stop_token_ends_only_its_sequence(generator, prompts):
    free = generate(generator, prompts[:3], 10)
    stop = free[1][4]
    expected = [ids[: ids.index(stop) + 1] if stop in ids else ids for ids in free]
    assert generate(generator, prompts[:3], 10, stop_ids={stop}) == expected
    lengths = list(map(len, expected))
    assert lengths[1] <= 5 and max(lengths) == 10, "choose a stop token that some answers lack"
