"""The small checkpoint on a mesh gives Hugging Face's float32 tokens, alone or in a batch."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from models.common.mesh import traces_available
from models.common.metrics import assert_close
from models.demos.qwen25_7b.config import BF16
from models.demos.qwen25_7b.evaluation.texts import ForcedText
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.weights import Checkpoint

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
def tokenizer():
    return ChatTokenizer(SMALL_CHECKPOINT, instruct=True)


@pytest.fixture(scope="module")
def hf():
    return HuggingFace(
        AutoModelForCausalLM.from_pretrained(SMALL_CHECKPOINT, dtype=torch.float32).eval()
    )


@pytest.fixture(scope="module")
def requested(hf, tokenizer):
    """(prompt, Hugging Face's answer) of each user."""
    return [
        (prompt, hf.greedy(prompt, tokenizer.stop_ids))
        for prompt in map(tokenizer.encode, QUESTIONS)
    ]


@pytest.fixture(scope="module")
def prompts(requested):
    return [prompt for prompt, _ in requested]


@pytest.fixture(scope="module")
def answers(requested):
    return [answer for _, answer in requested]


@pytest.fixture(scope="module")
def generators(mesh_device, queues):
    generators = Generators(mesh_device, queues)
    yield generators
    generators.close_all()


@pytest.fixture
def bf16(generators):
    return generators.of(BF16)


class HuggingFace:
    def __init__(self, model):
        self.model = model

    @torch.no_grad()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """Return logits [tokens, vocab]. Row t predicts the token after token t."""
        return self.model(torch.tensor([ids])).logits[0]

    def greedy(self, prompt: list[int], stop_ids) -> list[int]:
        out = self.model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=sorted(stop_ids),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        )  # fmt: skip
        return out[0, len(prompt) :].tolist()


class Generators:
    """A generator for each recipe, sampling on the chips or on the host. Replicas are built once.

    Only one replica has traces at a time. Another replica's allocations would overlap the
    temporaries of the traces.
    """

    def __init__(self, mesh_device, queues):
        self.mesh_device, self.queues = mesh_device, queues
        self.replicas = {}

    def of(self, recipe, on_host=False):
        from models.demos.qwen25_7b.serving.generator import Generator

        for known, replica in self.replicas.items():
            if known != recipe:
                replica.close()
        if recipe not in self.replicas:
            self.replicas[recipe] = self.fresh_replica(recipe)
        return Generator([self.replicas[recipe]], on_host=on_host)

    def fresh(self, recipe):
        from models.demos.qwen25_7b.serving.generator import Generator

        self.close_all()
        return Generator([self.fresh_replica(recipe)])

    def fresh_replica(self, recipe):
        from models.demos.qwen25_7b.serving.replica import Replica

        checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
        return Replica.load(
            self.mesh_device, checkpoint, checkpoint.config, recipe, users=USERS, max_seq_len=2048,
            traced=traces_available(), queues=self.queues,
        )  # fmt: skip

    def close_all(self):
        for replica in self.replicas.values():
            replica.close()


def generate(generator, prompts, stop_ids=(), new_tokens=NEW_TOKENS, **options) -> list[list[int]]:
    """Return the new tokens of each user."""
    new = [[] for _ in prompts]
    for token in generator.generate(prompts, new_tokens, stop_ids=stop_ids, **options):
        new[token.user].append(token.id)
    return new


def agreement(generator, hf, prompts, continuations) -> float:
    """Return the share of positions with equal top-1 tokens, under teacher forcing."""
    from models.demos.qwen25_7b.evaluation.teacher_forcing import predict_with_decode

    texts = [ForcedText(p + c, len(p)) for p, c in zip(prompts, continuations)]
    expected = [hf.logits(text.ids).argmax(-1) for text in texts]
    same = []
    for prediction in predict_with_decode(generator.replicas, texts):
        choices = prediction.logits.argmax(-1)
        same += [
            expected[text][at] == c
            for text, at, c in zip(prediction.texts, prediction.positions, choices)
        ]
    same = torch.stack(same).float()
    print(f"top-1 agreement {same.mean():.4f} over {len(same)} positions")
    return float(same.mean())


def whole_texts(tokenizer, prompts, answers):
    """Return ([prompt], [rest]) of each user's sequence.

    The rest is the answer, and then another question with its answer.
    """
    turns = [prompt + answer for prompt, answer in zip(prompts, answers)]
    texts = [turns[user] + turns[(user + 3) % USERS] for user in range(USERS)]
    return [ids[: len(prompt)] for ids, prompt in zip(texts, prompts)], [
        ids[len(prompt) :] for ids, prompt in zip(texts, prompts)
    ]


def test_greedy_tokens_of_a_batch_equal_hugging_faces(bf16, tokenizer, prompts, answers):
    assert "Paris" in tokenizer.hf.decode(answers[0])
    assert max(map(len, answers)) == NEW_TOKENS, "no answer is long"
    assert generate(bf16, prompts, tokenizer.stop_ids) == answers


def test_bf16_predicts_hugging_faces_tokens_over_whole_texts(
    generators, hf, tokenizer, prompts, answers
):
    assert (
        agreement(generators.of(BF16, on_host=True), hf, *whole_texts(tokenizer, prompts, answers))
        >= 0.985
    )


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 127, 128, 129, 300, 1030, 2047])
def test_prefill_of_any_length(generators, hf, prompts, answers, tokens):
    """Lengths around a tile and around whole chunks. The longest take several prefill batches."""
    from models.demos.qwen25_7b.evaluation.teacher_forcing import predict_with_decode

    ids = sum((prompt + answer for prompt, answer in zip(prompts, answers)), [])
    ids = (ids * (tokens // len(ids) + 1))[:tokens]
    (prediction,) = predict_with_decode(
        generators.of(BF16).replicas, [ForcedText([*ids, 0], len(ids))]
    )
    assert_close(prediction.logits[0].float(), hf.logits(ids)[-1], pcc=0.999)


def test_prompts_of_traced_lengths_get_the_same_answer_again(bf16, prompts):
    """The first prompt of a length runs op by op, and later prompts replay its trace.

    A prompt of another length runs between them.
    """
    long, longer = sum(prompts, [])[:100], (sum(prompts, []) * 20)[:700]
    first = [generate(bf16, [prompt], new_tokens=4) for prompt in (long, longer)]
    assert [generate(bf16, [prompt], new_tokens=4) for prompt in (long, longer)] == first
    other = [generate(bf16, [prompt[::-1]], new_tokens=4) for prompt in (long, longer)]
    assert (
        other != first
        and [generate(bf16, [prompt], new_tokens=4) for prompt in (long, longer)] == first
    )


def test_a_users_text_does_not_depend_on_the_batch(bf16, tokenizer, prompts):
    batch = prompts[1:4] + prompts[:1] + prompts[4:7]
    together = generate(bf16, batch, tokenizer.stop_ids, new_tokens=24)
    for user in (3, 5):
        assert generate(bf16, [batch[user]], tokenizer.stop_ids, new_tokens=24) == [together[user]]


def test_a_used_generator_gives_the_same_answer_as_a_new_one(bf16, generators, tokenizer, prompts):
    generate(
        bf16, [prompt * 12 for prompt in prompts[:4]], new_tokens=3
    )  # long: it fills the caches' first blocks
    running = bf16.generate(prompts, 20)
    for _ in range(USERS + 4):
        next(running)
    running.close()  # a client leaves in the middle
    used = generate(bf16, prompts[:5], tokenizer.stop_ids, new_tokens=24)
    assert used == generate(generators.fresh(BF16), prompts[:5], tokenizer.stop_ids, new_tokens=24)


def test_the_host_samples_what_the_chips_sample(generators, tokenizer, prompts):
    """Users have different options, some greedy. The whole batch runs first, then three users."""
    from models.demos.qwen25_7b.config.sampling import SamplingParams

    options = [
        SamplingParams(4.0, top_k=1 + 4 * user, top_p=(1.0, 0.9, 0.6)[user % 3], seed=user)
        if user % 4
        else SamplingParams()
        for user in range(USERS)
    ]
    on_chips = generators.of(BF16)
    got = generate(on_chips, prompts, tokenizer.stop_ids, new_tokens=20, sampling=options)
    few = generate(
        on_chips,
        prompts[:3],
        tokenizer.stop_ids,
        new_tokens=20,
        sampling=SamplingParams(4.0, seed=7),
    )
    on_host = generators.of(BF16, on_host=True)
    assert generate(on_host, prompts, tokenizer.stop_ids, new_tokens=20, sampling=options) == got
    assert (
        generate(
            on_host,
            prompts[:3],
            tokenizer.stop_ids,
            new_tokens=20,
            sampling=SamplingParams(4.0, seed=7),
        )
        == few
    )
    assert got != generate(on_host, prompts, tokenizer.stop_ids, new_tokens=20), (
        "everything sampled is what greedy takes"
    )


def test_sampling_is_repeatable_by_its_seed(bf16, prompts):
    from models.demos.qwen25_7b.config.sampling import SamplingParams

    def sampled(seed, requested):
        return generate(
            bf16,
            requested,
            new_tokens=12,
            sampling=SamplingParams(temperature=3.0, top_k=32, top_p=0.98, seed=seed),
        )

    first = sampled(11, prompts[:3])
    assert sampled(11, prompts[:3]) == first
    assert sampled(11, prompts[:1]) == first[:1], "the batch changed a user's sampled tokens"
    assert sampled(11, prompts[2::-1]) == first[::-1], "the slot changed a user's sampled tokens"
    assert sampled(12, prompts[:3]) != first


def test_seeded_answers_are_the_same_after_a_preemption(bf16, prompts):
    """Noise depends on seed and position.

    Prefill rounds the cache's rows differently from decode. This changes one token in fifteen at
    this temperature. Noise of another position would change nearly all tokens.
    """
    from models.demos.qwen25_7b.config.sampling import SamplingParams

    samplings = [SamplingParams(temperature=2.0, top_k=32, seed=seed) for seed in range(USERS)]
    whole = generate(bf16, prompts[:1] * USERS, new_tokens=20, sampling=samplings)
    begun = [prompts[0] + ids[:9] for ids in whole]
    rest = generate(bf16, begun, new_tokens=11, sampling=samplings)
    same = 0
    for again, ids in zip(rest, whole):
        same += next((i for i, (a, b) in enumerate(zip(again, ids[9:])) if a != b), len(again))
    assert same / USERS >= 4, (
        f"{same / USERS} of 11 tokens, on average, until the first that differs"
    )


def test_users_without_a_seed_never_share_a_stream(bf16, prompts):
    from models.demos.qwen25_7b.config.sampling import SamplingParams

    texts = generate(
        bf16, prompts[:1] * USERS, new_tokens=12, sampling=SamplingParams(temperature=5.0)
    )
    assert len(set(map(tuple, texts))) == USERS


def test_a_stop_token_ends_only_its_sequence(bf16, prompts):
    free = generate(bf16, prompts[:3], new_tokens=10)
    stop = free[1][4]
    seen = [[] for _ in free]
    for token in bf16.generate(prompts[:3], 10, stop_ids={stop}):
        seen[token.user].append(token)
    for tokens, unstopped in zip(seen, free):
        length = unstopped.index(stop) + 1 if stop in unstopped else 10
        assert [token.id for token in tokens] == unstopped[:length]
        assert [token.last for token in tokens] == [False] * (length - 1) + [True]
    assert len(seen[1]) <= 5 and max(map(len, seen)) == 10, (
        "choose a stop token that some answers lack"
    )
