"""TtSampler chooses what the host chooses from the same logits: users with options of their own, ties, padding."""

from dataclasses import replace

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.config import BFP8, QWEN25_7B, ParallelPlan
from models.demos.qwen25_7b.config.sampling import CANDIDATES, Sampling
from models.demos.qwen25_7b.plans.decode_plan import MAX_USERS
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.plans.lm_head_plan import pieces_of
from models.demos.qwen25_7b.serving.noise import gumbel
from models.demos.qwen25_7b.serving.sampling import choose
from models.demos.qwen25_7b.tt.lm_head import PADDING_LOGIT
from models.demos.qwen25_7b.tt.placement import replicate, shard
from models.demos.qwen25_7b.tt.sampler import SamplingControls, TtSampler, host_controls, host_noise

VOCABULARIES = {"tiny": 1056, "7b": QWEN25_7B.vocab_size}
OPTIONS = [
    Sampling(),
    Sampling(1.0, seed=1),
    Sampling(0.7, top_k=20, top_p=0.8, seed=2),  # what Qwen2.5's generation_config.json asks for
    Sampling(3.0, top_k=5, seed=3),
    Sampling(2.0, top_p=0.5, seed=4),
    Sampling(1.0, top_k=1, seed=5),
    Sampling(0.001, seed=6),
    Sampling(50.0, top_p=0.95, seed=7),
]


class Sampled:
    """A sampler for one size of vocabulary, fed with logits as TtLMHead gives them."""

    def __init__(self, mesh_device, vocab_size: int):
        self.mesh_device, self.vocab_size = mesh_device, vocab_size
        self.plan = ParallelPlan.make(
            replace(QWEN25_7B, vocab_size=vocab_size, eos_token_ids=(), bos_token_id=0), mesh_device.shape[1]
        )
        self.pieces = pieces_of(self.plan.vocab // TILE, BFP8.lm_head.format)
        self.sampler = TtSampler(mesh_device, self.plan, self.pieces)
        self.tokens = replicate(torch.zeros(1, 1, 1, MAX_USERS).int(), mesh_device, ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT)

    def choose(self, logits: torch.Tensor, samplings: list[Sampling], noise: torch.Tensor) -> list[int]:
        """logits [32, vocab_size] -> each row's token."""
        padded = torch.full((1, 1, MAX_USERS, self.plan.tp * self.plan.vocab), PADDING_LOGIT)
        padded[..., : self.vocab_size] = logits
        of_chips = padded.unflatten(3, (self.plan.tp, self.pieces, -1))
        pieces = [shard(of_chips[..., i, :].flatten(3), self.mesh_device, 3) for i in range(self.pieces)]
        controls = SamplingControls(
            *(ttnn.to_device(t, self.mesh_device, memory_config=ttnn.DRAM_MEMORY_CONFIG)
              for t in (*host_controls(self.mesh_device, samplings), host_noise(self.mesh_device, noise)))
        )  # fmt: skip
        self.sampler.forward(pieces, controls, self.tokens)
        of_all_chips = ttnn.to_torch(self.tokens, mesh_composer=ttnn.ConcatMeshToTensor(self.mesh_device, dim=0))
        assert (of_all_chips == of_all_chips[:1]).all(), "the chips do not agree"
        return of_all_chips[0].flatten().tolist()


@pytest.fixture(scope="module")
def sampled(mesh_device, size) -> Sampled:
    return Sampled(mesh_device, VOCABULARIES[size])


POSITION = 17  # of every token that is drawn here


def drawn(samplings: list[Sampling]) -> torch.Tensor:
    """Noise as the generator places it: none for greedy rows."""
    noise = torch.zeros(MAX_USERS, CANDIDATES)
    rows = [row for row, sampling in enumerate(samplings) if not sampling.greedy]
    noise[rows] = gumbel([samplings[row].seed for row in rows], [POSITION] * len(rows), CANDIDATES)
    return noise


def on_host(samplings: list[Sampling], logits: torch.Tensor) -> list[int]:
    return [choose(row, sampling, sampling.seed or 0, POSITION) for sampling, row in zip(samplings, logits)]


def test_32_users_with_options_of_their_own(sampled):
    logits = (3 * torch.randn(MAX_USERS, sampled.vocab_size, generator=torch.Generator().manual_seed(0))).bfloat16()
    samplings = OPTIONS * 4
    got = sampled.choose(logits.float(), samplings, drawn(samplings))
    assert got == on_host(samplings, logits)
    assert got != logits.argmax(-1).tolist(), "nobody's draw was anything but the likeliest"


def test_of_equal_logits_the_lowest_token_comes_first(sampled):
    """Equal ones in one piece, in different pieces and on different chips; more of them than there are candidates."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.zeros(MAX_USERS, sampled.vocab_size)
    first = []
    for row in logits:
        tied = torch.randperm(sampled.vocab_size, generator=generator)[
            : 2 + int(torch.randint(60, (), generator=generator))
        ]
        row[tied] = 5.0
        first.append(int(tied.min()))
    assert sampled.choose(logits, [Sampling()] * MAX_USERS, torch.zeros(MAX_USERS, CANDIDATES)) == first
    samplings = [Sampling(1.0, top_k=3, seed=user) for user in range(MAX_USERS)]
    got = sampled.choose(logits, samplings, drawn(samplings))
    assert got == on_host(samplings, logits)


@pytest.mark.parametrize("level", [-1e4, 0.0, 1e4])
def test_every_column_can_win_and_no_padding_ever_does(sampled, level):
    """Winners at the first and last columns of pieces and chips, among logits that are all low, zero or high."""
    columns = sampled.plan.vocab // sampled.pieces
    starts = [i * columns for i in range(sampled.plan.tp * sampled.pieces) if i * columns < sampled.vocab_size]
    winners = sorted({0, sampled.vocab_size - 1, *starts, *(start - 1 for start in starts[1:])})
    winners = (winners * MAX_USERS)[:MAX_USERS]
    logits = torch.full((MAX_USERS, sampled.vocab_size), level)
    logits[range(MAX_USERS), winners] = level + 100
    assert sampled.choose(logits, [Sampling()] * MAX_USERS, torch.zeros(MAX_USERS, CANDIDATES)) == winners
