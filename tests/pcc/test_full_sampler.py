"""TtFullSampler samples every token of the vocabulary as often as softmax says, on all chips the same."""

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.config import QWEN25_7B
from models.demos.qwen25_7b.config.sampling import CANDIDATES
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.tt.full_sampler import TtFullSampler, levels_of
from models.demos.qwen25_7b.tt.inputs import UNIFORMS
from models.demos.qwen25_7b.tt.placement import replicate, shard
from tests.pcc.test_sampler import Sampled


class FullSampler(Sampled):
    def __init__(self, mesh_device, vocab_size: int):
        super().__init__(mesh_device, vocab_size)
        self.sampler = TtFullSampler(mesh_device, self.config)

    def sample(self, logits: torch.Tensor, temperature: list[float], uniform: torch.Tensor) -> list[int]:
        """logits: [32, vocab_size] bfloat16 values. uniform: [32, UNIFORMS]."""
        noise = torch.nn.functional.pad(uniform, (0, CANDIDATES - UNIFORMS))[None, None]
        heat = (1 / torch.tensor(temperature))[None, None, :, None]
        largest = logits.amax(-1)[None, None, :, None]
        wide = dict(dtype=ttnn.float32)
        ids = self.sampler.forward(
            shard(self.padded(logits), self.mesh_device, 3),
            replicate(largest, self.mesh_device),
            replicate(heat, self.mesh_device, **wide),
            replicate(noise, self.mesh_device, **wide),
        )
        return self.of_all_chips(ids)


def chi_square(sampled: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Chi-square of counts against expected counts, over its degrees of freedom.

    Tokens with fewer than 10 expected counts are counted in eight groups.
    """
    expected = probabilities * len(sampled)
    group = torch.arange(len(expected))
    group = torch.where(expected < 10, len(expected) + group % 8, group)
    expected = torch.zeros(len(group) + 8).double().index_add(0, group, expected)
    counts = group[sampled].bincount(minlength=len(expected)).double()
    used = expected > 0
    return float(((counts - expected)[used] ** 2 / expected[used]).sum() / (used.sum() - 1))


VOCAB = 1056


@pytest.fixture(scope="module")
def small(mesh_device) -> FullSampler:
    return FullSampler(mesh_device, VOCAB)


def uniforms(seed: int) -> torch.Tensor:
    return torch.rand(MAX_USERS, UNIFORMS, generator=torch.Generator().manual_seed(seed))


NORMAL = 3 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(0))
TOKENS = torch.arange(VOCAB)
ROWS = {
    "normal": (NORMAL, 1.0),
    "hot": (NORMAL, 4.0),
    "masked": (torch.where(TOKENS % 7 == 3, NORMAL, -torch.inf), 1.3),
    "one far above a flat rest": (torch.where(TOKENS == 500, 7.0, 0.0), 1.0),
}


def test_frequencies_follow_the_softmax(small):
    """Chi-square over its degrees of freedom has mean 1. The bound is passed by chance once in 1,000 seeds."""
    heat = [temperature for _, temperature in ROWS.values()] * 8
    logits = torch.stack([row.bfloat16().float() for row, _ in ROWS.values()] * 8)
    steps = [small.sample(logits, heat, uniforms(seed)) for seed in range(80)]
    samples = torch.tensor(steps).T.reshape(8, len(ROWS), -1).transpose(0, 1).flatten(1)
    for name, of_row, row, temperature in zip(ROWS, samples, logits, heat):
        probabilities = (row.double() / temperature).softmax(-1)
        assert (probabilities[of_row] > 0).all(), f"{name}: a masked token was sampled"
        assert chi_square(of_row, probabilities) < 2.5, name


def test_every_token_of_the_vocabulary_can_be_sampled(small):
    """Whatever the uniform numbers are: the other tokens have no probability."""
    for first in range(0, VOCAB, MAX_USERS):
        tokens = list(range(first, first + MAX_USERS))
        logits = torch.full((MAX_USERS, VOCAB), -torch.inf)
        logits[range(MAX_USERS), tokens] = -5.0
        assert small.sample(logits, [0.7] * MAX_USERS, uniforms(first)) == tokens


@pytest.mark.parametrize("number", [2.0**-24, 1 - 2.0**-24])
def test_the_smallest_and_largest_uniform_numbers(small, number):
    """They sample a token with a probability, not one beside it."""
    logits = torch.where(torch.rand(MAX_USERS, VOCAB) < 0.02, 0.0, -torch.inf)
    logits[:, 100] = 0.0
    ids = small.sample(logits, [1.0] * MAX_USERS, torch.full((MAX_USERS, UNIFORMS), number))
    assert logits[range(MAX_USERS), ids].isfinite().all()


def test_cold_rows_sample_the_largest_logit(small):
    logits = 3 * torch.randn(MAX_USERS, VOCAB, generator=torch.Generator().manual_seed(4))
    logits[range(MAX_USERS), range(0, VOCAB, 33)] += 1e4
    logits = logits.bfloat16().float()
    assert small.sample(logits, [1e-3] * MAX_USERS, uniforms(1)) == logits.argmax(-1).tolist()


@pytest.mark.seven_b
def test_the_7bs_vocabulary(mesh_device):
    """Tokens at the edges of chips and pieces; then tokens of nine groups as often as their probability says."""
    full = FullSampler(mesh_device, QWEN25_7B.vocab_size)
    width, vocab = full.sampler.levels[0].width, full.vocab_size
    edges = sorted({*range(0, vocab, width), *range(width - 1, vocab, width)})
    for first in range(0, len(edges), 4 * MAX_USERS):
        tokens = (edges[first : first + MAX_USERS] * MAX_USERS)[:MAX_USERS]
        logits = torch.full((MAX_USERS, vocab), -torch.inf)
        logits[range(MAX_USERS), tokens] = 3.0
        assert full.sample(logits, [1.0] * MAX_USERS, uniforms(first)) == tokens
    logits = 3 * torch.randn(vocab, generator=torch.Generator().manual_seed(2))
    logits = logits.bfloat16().float()
    samples = []
    for seed in range(4):
        samples += full.sample(logits.expand(MAX_USERS, vocab), [1.0] * MAX_USERS, uniforms(seed))
    groups = torch.arange(vocab) % 9
    of_groups = torch.zeros(9).double().index_add(0, groups, logits.double().softmax(-1))
    assert chi_square(groups[samples], of_groups) < 3.3  # 8 degrees of freedom: 0.1 %


@pytest.mark.parametrize("columns", [32, 544, 1056, 19008, 37984, 76032, 152064, 32 * 1187, 32 * 4751])
def test_levels_hold_all_columns(columns):
    width = columns
    for level in levels_of(columns):
        assert level.pieces * level.width == width + level.missing
        assert level.width % TILE == 0 and level.missing < level.width
        width = level.width
    assert width == TILE and len(levels_of(columns)) < UNIFORMS
