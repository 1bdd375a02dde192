"""TtSampler samples the host's tokens from the same logits: mixed options, ties, padding."""

from dataclasses import replace

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.config import BFP8, QWEN25_7B
from models.demos.qwen25_7b.config.sampling import CANDIDATES, SamplingParams
from models.demos.qwen25_7b.engine.sampling import TokenCounts, TokenTables, gumbel, penalize
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.plans.transforms import PADDING_LOGIT
from models.demos.qwen25_7b.tt.inputs import MOST_COUNTED, SamplingControls
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.placement import replicate, shard
from models.demos.qwen25_7b.tt.sampler import TtPenalties, TtSampler
from tests.generation import sample

VOCABULARIES = {"tiny": 1056, "7b": QWEN25_7B.vocab_size}
OPTIONS = [
    SamplingParams(),
    SamplingParams(1.0, seed=1),
    SamplingParams(0.7, top_k=20, top_p=0.8, seed=2),  # options of Qwen2.5's generation_config.json
    SamplingParams(3.0, top_k=5, seed=3),
    SamplingParams(2.0, top_p=0.5, seed=4),
    SamplingParams(1.0, top_k=1, seed=5),
    SamplingParams(0.001, seed=6),
    SamplingParams(50.0, top_p=0.95, seed=7),
]


class Sampled:
    """A sampler for one vocabulary size. Its logits have TtLMHead's layout."""

    def __init__(self, mesh_device, vocab_size: int):
        self.mesh_device, self.vocab_size = mesh_device, vocab_size
        config = replace(QWEN25_7B, vocab_size=vocab_size, eos_token_ids=(), bos_token_id=0)
        self.config = TtModelConfig.make(mesh_device, config, BFP8, min_slots=MAX_USERS, max_seq_len=32)
        self.plan, self.shards = self.config.parallel, self.config.logits_shards
        self.sampler = TtSampler(mesh_device, self.config)
        self.tokens = replicate(torch.zeros(1, 1, 1, MAX_USERS).int(), mesh_device, ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT)

    def sample(
        self, logits: torch.Tensor, samplings: list[SamplingParams], noise: torch.Tensor, padding={}
    ) -> list[int]:
        """Sample a token for each slot from logits [32, vocab_size]. padding: see shards_on_chips."""
        shards, controls = self.shards_on_chips(logits, padding), self.controls(samplings, noise)
        self.sampler.sample_random(shards, controls, self.tokens)
        tokens = self.of_all_chips(self.tokens)
        if all(sampling.greedy for sampling in samplings):
            self.sampler.sample_greedy(shards, self.tokens)
            assert self.of_all_chips(self.tokens) == tokens, "a greedy slot did not sample the largest logit"
        return tokens

    def padded(self, logits: torch.Tensor) -> torch.Tensor:
        """logits [32, vocab_size] -> [1, 1, 32, columns of all chips], as TtLMHead pads them."""
        missing = self.plan.tp * self.plan.vocab - self.vocab_size
        return torch.nn.functional.pad(logits, (0, missing), value=PADDING_LOGIT)[None, None]

    def shards_on_chips(self, logits: torch.Tensor, padding={}) -> list[ttnn.Tensor]:
        """Send logits to the chips as logits shards.

        padding: slot -> value of its padding columns, instead of TtLMHead's.
        """
        padded = self.padded(logits)
        for row, value in padding.items():
            padded[..., row, self.vocab_size :] = value
        of_chips = padded.unflatten(3, (self.plan.tp, -1))
        return [shard(of_chips.narrow(4, *columns).flatten(3), self.mesh_device, 3) for columns in self.shards]

    def controls(self, samplings: list[SamplingParams], noise: torch.Tensor) -> SamplingControls:
        values = replace(SamplingControls.of(samplings), noise=noise[None, None])
        return values.to_host(self.mesh_device).to_device(self.mesh_device)

    def of_all_chips(self, ids: ttnn.Tensor) -> list[int]:
        of_chips = ttnn.to_torch(ids, mesh_composer=ttnn.ConcatMeshToTensor(self.mesh_device, dim=0)).flatten(1)
        assert (of_chips == of_chips[:1]).all(), "the chips do not agree"
        assert (of_chips == of_chips.round()).all()
        return of_chips[0].int().tolist()


@pytest.fixture(scope="module")
def sampled(mesh_device, size) -> Sampled:
    return Sampled(mesh_device, VOCABULARIES[size])


POSITION = 17  # of every token sampled here


def noise_of(samplings: list[SamplingParams]) -> torch.Tensor:
    """Return noise [32, CANDIDATES] as the generator writes it: zeros for greedy slots."""
    noise = torch.zeros(MAX_USERS, CANDIDATES)
    rows = [row for row, sampling in enumerate(samplings) if not sampling.greedy]
    noise[rows] = gumbel([samplings[row].seed for row in rows], [POSITION] * len(rows), CANDIDATES)
    return noise


def on_host(samplings: list[SamplingParams], logits: torch.Tensor) -> list[int]:
    return [sample(row, sampling, sampling.seed or 0, POSITION) for sampling, row in zip(samplings, logits)]


def random_logits(sampled, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(MAX_USERS, sampled.vocab_size, generator=generator)).bfloat16()


def test_32_users_with_different_sampling_parameters(sampled):
    logits = random_logits(sampled, seed=0)
    samplings = OPTIONS * 4
    got = sampled.sample(logits.float(), samplings, noise_of(samplings))
    assert got == on_host(samplings, logits)
    assert got != logits.argmax(-1).tolist(), "every random slot sampled the largest logit"


def test_of_equal_logits_the_lowest_token_comes_first(sampled):
    """Ties lie in one logits shard, in several, on several chips. Some outnumber the candidates."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.zeros(MAX_USERS, sampled.vocab_size)
    first = []
    for row in logits:
        count = 2 + int(torch.randint(60, (), generator=generator))
        tied = torch.randperm(sampled.vocab_size, generator=generator)[:count]
        row[tied] = 5.0
        first.append(int(tied.min()))
    assert sampled.sample(logits, [SamplingParams()] * MAX_USERS, torch.zeros(MAX_USERS, CANDIDATES)) == first
    samplings = [SamplingParams(1.0, top_k=3, seed=user) for user in range(MAX_USERS)]
    got = sampled.sample(logits, samplings, noise_of(samplings))
    assert got == on_host(samplings, logits)


@pytest.mark.parametrize("level", [-1e4, 0.0, 1e4])
def test_every_vocabulary_column_and_no_padding_can_be_sampled(sampled, level):
    """Largest logits stand in the first and last columns of shards and chips.

    All other logits are low, zero or high.
    """
    starts = [chip * sampled.plan.vocab + first for chip in range(sampled.plan.tp) for first, _ in sampled.shards]
    starts = [start for start in starts if start < sampled.vocab_size]
    winners = sorted({0, sampled.vocab_size - 1, *starts, *(start - 1 for start in starts[1:])})
    winners = (winners * MAX_USERS)[:MAX_USERS]
    logits = torch.full((MAX_USERS, sampled.vocab_size), level)
    logits[range(MAX_USERS), winners] = level + 100
    assert sampled.sample(logits, [SamplingParams()] * MAX_USERS, torch.zeros(MAX_USERS, CANDIDATES)) == winners


def test_a_slot_of_nans_samples_a_valid_token_and_changes_no_other_slot(sampled):
    """An inactive slot holds leftovers on a chip, which may be NaN."""
    logits = random_logits(sampled, seed=2)
    samplings = [OPTIONS[user % 3] for user in range(MAX_USERS)]
    alone = sampled.sample(logits.float(), samplings, noise_of(samplings))
    garbage = {0: torch.nan, 7: torch.inf, 8: torch.nan, 31: -torch.inf}
    for row, value in garbage.items():
        logits[row] = value
    padded = sampled.plan.tp * sampled.plan.vocab > sampled.vocab_size
    padding = dict.fromkeys((0, 31), torch.nan) if padded else {}
    got = sampled.sample(logits.float(), samplings, noise_of(samplings), padding=padding)
    for row in set(range(MAX_USERS)) - set(garbage):
        assert got[row] == alone[row], row
    assert all(0 <= token < sampled.vocab_size for token in got), "an embedding has no row for that"


PENALTIES = [
    SamplingParams(),
    SamplingParams(repetition_penalty=1.05),  # Qwen2.5-7B-Instruct's default
    SamplingParams(0.7, top_k=20, top_p=0.8, repetition_penalty=1.05, seed=1),
    SamplingParams(1.0, repetition_penalty=0.7, presence_penalty=1.5, frequency_penalty=-0.3, seed=2),
    SamplingParams(frequency_penalty=0.37),
    SamplingParams(presence_penalty=-2.0, frequency_penalty=2.0),
    SamplingParams(2.0, presence_penalty=0.9, seed=3),
    SamplingParams(repetition_penalty=1e30),
]


def test_penalties_of_prompt_tokens_and_of_sampled_tokens(sampled):
    """Samples of each step equal the host's, and the last logits, bit for bit.

    Only the chips' counts record the tokens sampled since the start.
    """
    generator = torch.Generator().manual_seed(3)
    samplings, penalties = PENALTIES * 4, TtPenalties(sampled.mesh_device, sampled.config)

    def some(count: int) -> list[int]:
        return torch.randint(sampled.vocab_size, (count,), generator=generator).tolist()

    often = some(1) * (MOST_COUNTED + 40)  # more than bfloat16 can count
    token_counts = [
        TokenCounts(some(row * 9), some(row * 5) + (often if row % 8 == 4 else [])) for row in range(MAX_USERS)
    ]
    tables = TokenTables(penalties.columns)
    tables.update(dict(reversed([*enumerate(token_counts)])))
    for table, device in ((tables.seen, penalties.seen), (tables.counts, penalties.counts)):
        ttnn.copy_host_to_device_tensor(penalties.to_host(table), penalties.rows)
        penalties.load(device)
    controls = sampled.controls(samplings, noise_of(samplings))
    composer = ttnn.ConcatMeshToTensor(sampled.mesh_device, dim=3)
    base = 3 * torch.randn(MAX_USERS, sampled.vocab_size, generator=generator)
    for row, text in enumerate(token_counts):
        base[row, text.prompt[:40]] += 9.0  # prompt tokens are likely again
    changed = 0
    for step in range(4):
        logits = (base + 0.3 * torch.randn(base.shape, generator=generator)).bfloat16()
        logits[0] = torch.nan  # an inactive slot
        rows = list(zip(logits, samplings, token_counts))
        if step == 3:
            whole = shard(sampled.padded(logits.float()), sampled.mesh_device, 3)
            found = ttnn.to_torch(penalties.forward(whole, controls), mesh_composer=composer)[0, 0]
            expected = torch.stack([penalize(row.float(), s, text) for row, s, text in rows[1:]]).bfloat16()
            assert found[1:, : sampled.vocab_size].equal(expected)
            assert (expected != logits[1:]).sum() > 1000, "the penalties change too little to be tested"
        sampled.sampler.sample_penalized(
            sampled.shards_on_chips(logits.float()), controls, penalties, sampled.tokens, record=step < 2
        )
        got = sampled.of_all_chips(sampled.tokens)
        expected = [sample(row, s, s.seed or 0, POSITION, text) for row, s, text in rows]
        assert got[1:] == expected[1:], f"step {step}"
        changed += sum(token != plain for token, plain in zip(got, on_host([SamplingParams()] * MAX_USERS, logits)))
        if step < 2:
            token_counts = [TokenCounts(text.prompt, [*text.answer, token]) for text, token in zip(token_counts, got)]
    assert changed > MAX_USERS, "the penalties change nothing here"
