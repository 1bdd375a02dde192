"""The host's sampler follows the definition of its options, a row or all rows of a step.

tests/text/test_generation_config.py compares its frequencies with Hugging Face's probabilities.
"""

import math
import random

import pytest
import torch

from models.demos.qwen25_7b.config.sampling import CANDIDATES, SamplingParams
from models.demos.qwen25_7b.engine.sampling import (
    SEEDS,
    NextToken,
    TokenCounts,
    TokenTables,
    gumbel,
    penalize,
    sample_tokens,
    stream_key,
)
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.tt.inputs import MOST_COUNTED, NEVER
from tests.generation import sample


def test_noise_depends_on_key_and_position_only():
    keys, positions = (5, 6, 5, 1 << 40), (9, 9, 10, 9)
    together = gumbel(keys, positions, 32)
    for row, (key, position) in enumerate(zip(keys, positions)):
        assert gumbel([key], [position], 32)[0].equal(together[row])
        assert gumbel([key], [position], 5)[0].equal(together[row, :5])
    assert len({tuple(row.tolist()) for row in together}) == 4


def test_neighboring_seeds_and_positions_are_independent():
    """Neighbors: seeds s and s + 1, positions p and p + 1, candidates c and c + 1, exchanges."""
    noise = torch.stack([gumbel([seed] * 64, range(64), 33) for seed in range(65)])  # [seed, position, candidate]
    samples = noise[:-1, :-1, :-1]
    for shifted in (noise[1:, :-1, :-1], noise[:-1, 1:, :-1], noise[:-1, :-1, 1:], noise[1:, 1:, :-1]):
        assert abs(torch.corrcoef(torch.stack([samples.flatten(), shifted.flatten()]))[0, 1]) < 0.01
    assert noise.flatten().double().unique().numel() > 0.98 * noise.numel()


def test_noise_is_gumbel_distributed():
    uniform = torch.exp(-torch.exp(-gumbel(range(1000), [7] * 1000, 32).double())).flatten().sort().values
    even = (torch.arange(len(uniform)) + 0.5) / len(uniform)
    assert (uniform - even).abs().max() < 1.63 / len(uniform) ** 0.5  # Kolmogorov-Smirnov bound at 1 %


def test_users_without_a_seed_get_keys_that_equal_no_seed():
    keys = {stream_key(None) for _ in range(1000)}
    assert len(keys) == 1000 and min(keys) >= SEEDS and max(keys) < 1 << 64
    assert stream_key(12) == 12


def test_the_logits_are_unchanged():
    logits = torch.arange(8).bfloat16()
    sample(logits, SamplingParams(0.7, top_k=3, top_p=0.5, seed=0), 0, 1)
    assert logits.equal(torch.arange(8))


@pytest.mark.parametrize(
    "option, value",
    [("temperature", -0.1), ("temperature", 1e-4), ("temperature", math.inf), ("temperature", math.nan), ("top_k", -1),
        ("top_p", 0.0),
     ("top_p", 1.01), ("top_p", math.nan), ("seed", -1), ("seed", 1 << 32), ("repetition_penalty", 0.0),
     ("repetition_penalty", math.inf),
     ("presence_penalty", math.nan), ("frequency_penalty", math.inf), ("temperature", "1"), ("temperature", None),
     ("temperature", 10**400), ("top_k", 1.5), ("top_k", True), ("top_p", "all"), ("seed", 1.5), ("seed", "1"),
     ("repetition_penalty", 1e-46), ("repetition_penalty", "1"), ("presence_penalty", 1e31), ("frequency_penalty", [])],
    ids=lambda value: f"{value}"[:20],
)  # fmt: skip
def test_impossible_options_are_refused(option, value):
    with pytest.raises(UserError) as caught:
        SamplingParams(**{option: value})
    assert option in str(caught.value) and str(value)[:200] in str(caught.value)


VOCAB = 4000


def reference(logits, params, key, position, counts) -> int:
    """One row, as TtSampler samples it: a stable sort, top-k and top-p by masks, noise for every candidate."""
    logits = logits.float()
    if params.penalized:
        logits = penalize(logits, params, counts).bfloat16().float()
    if params.greedy:
        return int(logits.argmax())
    count = len(logits) if not 1 <= params.top_k <= CANDIDATES else min(CANDIDATES, len(logits))
    values, tokens = logits.sort(descending=True, stable=True)
    allowed = torch.zeros(count)
    allowed[params.top_k or count :] = NEVER
    scaled = values[:count] * torch.tensor(1 / params.temperature) + allowed
    probabilities = scaled.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = before >= torch.tensor(params.top_p if params.top_p < 1 else 2.0)
    noise = gumbel([key], [position], count)[0]
    return int(tokens[torch.where(dropped, NEVER, scaled + noise).argmax()])


def random_params(rng: random.Random, vocab: int) -> SamplingParams:
    penalties = {}
    if rng.random() < 0.4:
        penalties = dict(
            repetition_penalty=rng.choice((0.7, 1.0, 1.05, 1.5)),
            presence_penalty=rng.choice((-1.5, 0.0, 2.0)),
            frequency_penalty=rng.choice((-0.5, 0.0, 0.3)),
        )
    return SamplingParams(
        temperature=rng.choice((0.0, 1e-3, 0.3, 0.7, 1.0, 2.0, 5.0, 1e6)),
        top_k=rng.choice((0, 0, 0, 1, 20, 32, 33, 100, 1024, 1500, vocab, 1 << 30)),
        top_p=rng.choice((1.0, 1.0, 0.999, 0.95, 0.8, 0.3, 1e-6)),
        **penalties,
    )


def random_counts(rng: random.Random, vocab: int) -> TokenCounts:
    ids = rng.choices(range(vocab), k=rng.choice((0, 5, 300)))
    return TokenCounts(ids, ids[:7] * rng.choice((0, 1, 50)) + ids[100:])


SHAPES = {
    "a language model's spread": lambda x: 3 * x,
    "peaked": lambda x: 30 * x,
    "flat": lambda x: 0.01 * x,
    "all equal": lambda x: torch.full_like(x, -7.0),
    "few values": lambda x: x.round(),
    "zeros of both signs": lambda x: (x.round() * 1e-9).sign() * torch.where(x > 0, 0.0, -0.0),
    "one far above": lambda x: torch.where(torch.arange(x.shape[-1]) == 3, 1e4, x),
    "tiny": lambda x: x * 1e-38,
    "huge": lambda x: x * 1e20,
}


@pytest.mark.parametrize("vocab", [5, 1056, VOCAB])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_get_the_tokens_of_the_plain_definition(shape, vocab):
    """Different parameters share a step."""
    rng = random.Random(shape)
    rows = 24
    x = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab))
    logits = SHAPES[shape](x).bfloat16()
    params = [random_params(rng, vocab) for _ in range(rows)]
    keys = [rng.randrange(1 << 64) for _ in range(rows)]
    positions = [rng.randrange(1 << 15) for _ in range(rows)]
    counts = [random_counts(rng, vocab) for _ in range(rows)]
    requests = list(map(NextToken, range(rows), params, keys, positions, counts))
    assert sample_tokens(logits, requests) == list(map(reference, logits, params, keys, positions, counts))


@pytest.mark.parametrize("top_k, top_p", [(0, 1.0), (0, 0.9), (20, 0.8), (0, 1e-6)])
@pytest.mark.parametrize(
    "special", [(), (-torch.inf,), (torch.inf,), (torch.nan,), (-torch.nan, torch.inf, -torch.inf)]
)
def test_infinite_and_absent_logits(special, top_k, top_p):
    """Tokens with -inf are never sampled beside others. Infinity and NaN win."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3000, generator=generator)
    logits[3] = -torch.inf
    logits[4] = 3e38
    logits[5] = -3e38
    for i, value in enumerate(special):
        logits[:3, 50 + i :: 7] = value
    logits = logits.bfloat16()
    for temperature in (0.5, 1e-3):
        params = SamplingParams(temperature, top_k, top_p)
        requests = [NextToken(position, params, 3, position) for position in range(len(logits))]
        right = [reference(row, params, 3, position, TokenCounts()) for position, row in enumerate(logits)]
        assert sample_tokens(logits, requests) == right


COLUMNS = 50


def counted(ids: list[int], most: int) -> torch.Tensor:
    counts = torch.tensor(ids, dtype=torch.long).bincount(minlength=COLUMNS)
    return counts.clamp(max=most).bfloat16()


@pytest.mark.parametrize("occurrences", [True, False])
def test_rows_are_those_of_the_sequences(occurrences):
    rng = random.Random(0)
    tables = TokenTables(COLUMNS)
    for _ in range(5):
        sequences = {
            slot: TokenCounts(*([rng.randrange(9)] * rng.choice((0, 1, 300)) for _ in range(2)))
            for slot in rng.sample(range(32), 20)
        }
        tables.update(sequences, occurrences=occurrences)
        for slot, (prompt, answer) in sequences.items():
            assert tables.seen[0, 0, slot].equal(counted(prompt + answer, 1)), slot
            if occurrences:
                assert tables.counts[0, 0, slot].equal(counted(answer, MOST_COUNTED)), slot
