"""All rows of a step are sampled at once. Each row gets the token of the plain definition: sort, mask, add noise."""

import random

import pytest
import torch

from models.demos.qwen25_7b.config.sampling import CANDIDATES, SamplingParams
from models.demos.qwen25_7b.engine.sampling import LogitsRow, TokenCounts, TokenTables, gumbel, sample_rows
from models.demos.qwen25_7b.tt.inputs import MOST_COUNTED, NEVER, penalty_factors

VOCAB = 4000


def penalized(logits: torch.Tensor, params: SamplingParams, counts: TokenCounts) -> torch.Tensor:
    """TtPenalties.forward, op for op, on a row."""
    positive, negative, frequency, presence = map(torch.tensor, penalty_factors(params))
    seen = torch.zeros_like(logits)
    seen[[*counts.prompt, *counts.answer]] = 1
    answer = torch.tensor(list(counts.answer), dtype=torch.long)
    in_answer = answer.bincount(minlength=len(logits)).clamp(max=MOST_COUNTED)
    old = logits * seen
    changed = old.relu() * positive - (-old).relu() * negative + logits
    return changed - in_answer * frequency - (in_answer > 0) * presence


def reference(logits, params, key, position, counts) -> int:
    """One row, as TtSampler samples it: a stable sort, top-k and top-p by masks, noise for every candidate."""
    logits = logits.float()
    if params.penalized:
        logits = penalized(logits, params, counts).bfloat16().float()
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
    requests = list(map(LogitsRow, logits, params, keys, positions, counts))
    assert sample_rows(requests) == [reference(*request) for request in requests]


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
        requests = [LogitsRow(row, params, 3, position) for position, row in enumerate(logits)]
        assert sample_rows(requests) == [reference(*request) for request in requests]


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
