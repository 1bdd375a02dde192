"""TtSampler chooses what the host chooses from the same logits: users with options of their own, ties, padding."""

from dataclasses import replace

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.config import BFP8, MAX_USERS, QWEN25_7B, ParallelPlan
from models.demos.qwen25_7b.config.sampling import CANDIDATES, MOST_COUNTED, Sampling, Seen
from models.demos.qwen25_7b.plans.lm_head_plan import column_pieces
from models.demos.qwen25_7b.serving.noise import gumbel
from models.demos.qwen25_7b.serving.sampling import choose
from models.demos.qwen25_7b.tt.lm_head import PADDING_LOGIT
from models.demos.qwen25_7b.tt.penalties import TtPenalties
from models.demos.qwen25_7b.tt.placement import replicate, shard
from models.demos.qwen25_7b.tt.sampler import SamplingControls, TtSampler, host_controls, host_noise
from tests.perf.test_decode_ops import device_operations

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
        self.pieces = column_pieces(self.plan.vocab, BFP8.lm_head.format)
        self.sampler = TtSampler(mesh_device, self.plan, self.pieces, vocab_size)
        self.tokens = replicate(torch.zeros(1, 1, 1, MAX_USERS).int(), mesh_device, ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT)

    def choose(self, logits: torch.Tensor, samplings: list[Sampling], noise: torch.Tensor, padding={}) -> list[int]:
        """logits [32, vocab_size] -> each row's token. padding: as in pieces_on_chips."""
        pieces, controls = self.pieces_on_chips(logits, padding), self.controls(samplings, noise)
        self.sampler.drawn(pieces, controls, self.tokens)
        tokens = self.of_all_chips()
        if all(sampling.greedy for sampling in samplings):
            self.sampler.likeliest(pieces, self.tokens)
            assert self.of_all_chips() == tokens, "greedy rows that are drawn are not the likeliest"
        return tokens

    def pieces_on_chips(self, logits: torch.Tensor, padding={}) -> list[ttnn.Tensor]:
        """padding: of rows where it is not what TtLMHead gives."""
        padded = torch.full((1, 1, MAX_USERS, self.plan.tp * self.plan.vocab), PADDING_LOGIT)
        padded[..., : self.vocab_size] = logits
        for row, value in padding.items():
            padded[..., row, self.vocab_size :] = value
        of_chips = padded.unflatten(3, (self.plan.tp, -1))
        return [shard(of_chips.narrow(4, *piece).flatten(3), self.mesh_device, 3) for piece in self.pieces]

    def controls(self, samplings: list[Sampling], noise: torch.Tensor) -> SamplingControls:
        host = *host_controls(self.mesh_device, samplings), host_noise(self.mesh_device, noise)
        return SamplingControls(
            *(ttnn.to_device(t, self.mesh_device, memory_config=ttnn.DRAM_MEMORY_CONFIG) for t in host)
        )

    def of_all_chips(self) -> list[int]:
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
    starts = [chip * sampled.plan.vocab + first for chip in range(sampled.plan.tp) for first, _ in sampled.pieces]
    starts = [start for start in starts if start < sampled.vocab_size]
    winners = sorted({0, sampled.vocab_size - 1, *starts, *(start - 1 for start in starts[1:])})
    winners = (winners * MAX_USERS)[:MAX_USERS]
    logits = torch.full((MAX_USERS, sampled.vocab_size), level)
    logits[range(MAX_USERS), winners] = level + 100
    assert sampled.choose(logits, [Sampling()] * MAX_USERS, torch.zeros(MAX_USERS, CANDIDATES)) == winners


def test_a_row_of_garbage_disturbs_nobody_and_names_a_token_that_there_is(sampled):
    """What an idle row holds on a chip is left over from something else, and may be NaN."""
    logits = (3 * torch.randn(MAX_USERS, sampled.vocab_size, generator=torch.Generator().manual_seed(2))).bfloat16()
    samplings = [OPTIONS[user % 3] for user in range(MAX_USERS)]
    wanted = sampled.choose(logits.float(), samplings, drawn(samplings))
    garbage = {0: torch.nan, 7: torch.inf, 8: torch.nan, 31: -torch.inf}
    for row, value in garbage.items():
        logits[row] = value
    padding = torch.nan if sampled.plan.tp * sampled.plan.vocab > sampled.vocab_size else PADDING_LOGIT
    got = sampled.choose(logits.float(), samplings, drawn(samplings), padding={0: padding, 31: padding})
    assert [got[row] for row in range(MAX_USERS) if row not in garbage] == [
        wanted[row] for row in range(MAX_USERS) if row not in garbage
    ]
    assert all(0 <= token < sampled.vocab_size for token in got), "an embedding has no row for that"


def test_what_a_choice_launches(sampled):
    """Of equal pieces' candidates nothing is merged twice, and greedy rows alone pay for nothing that drawing takes."""
    pieces, tp = len(sampled.pieces), sampled.plan.tp
    filled = sum(columns & (columns - 1) != 0 for _, columns in sampled.pieces)
    joined, exchanged, held = 2 * (pieces > 1), 2 * (tp > 1), sampled.sampler.last is not None
    candidates = filled + pieces + joined + 2 + exchanged  # topk, side by side, their ids, all chips'
    logits, greedy = torch.zeros(MAX_USERS, sampled.vocab_size), [Sampling()] * MAX_USERS
    on_chips = sampled.pieces_on_chips(logits)
    controls = sampled.controls(greedy, torch.zeros(MAX_USERS, CANDIDATES))
    likeliest = device_operations(lambda: sampled.sampler.likeliest(on_chips, sampled.tokens))
    merged = 2 * (pieces * tp > 1)  # topk and gather
    assert len(likeliest) == candidates + merged + held + 3, likeliest  # one row of ids
    drawn_ops = device_operations(lambda: sampled.sampler.drawn(on_chips, controls, sampled.tokens))
    assert len(drawn_ops) == len(likeliest) + 14, drawn_ops


PENALTIES = [
    Sampling(),
    Sampling(repetition_penalty=1.05),  # Qwen2.5-7B-Instruct's own
    Sampling(0.7, top_k=20, top_p=0.8, repetition_penalty=1.05, seed=1),
    Sampling(1.0, repetition_penalty=0.7, presence_penalty=1.5, frequency_penalty=-0.3, seed=2),
    Sampling(frequency_penalty=0.37),
    Sampling(presence_penalty=-2.0, frequency_penalty=2.0),
    Sampling(2.0, presence_penalty=0.9, seed=3),
    Sampling(repetition_penalty=1e30),
]


def test_penalties_of_what_was_seen_and_of_what_is_chosen(sampled):
    """Step after step as on the host, bit for bit, though only the chips' record says what was chosen since the start."""
    generator = torch.Generator().manual_seed(3)
    samplings, penalties = PENALTIES * 4, TtPenalties(sampled.mesh_device, sampled.plan)

    def some(count: int) -> list[int]:
        return torch.randint(sampled.vocab_size, (count,), generator=generator).tolist()

    often = some(1) * (MOST_COUNTED + 40)  # more than bfloat16 counts
    texts = [Seen(some(row * 9), some(row * 5) + (often if row % 8 == 4 else [])) for row in range(MAX_USERS)]
    written = penalties.host_seen(dict(enumerate(texts)))
    for host, device in zip(written, (penalties.seen, penalties.counts)):
        ttnn.copy_host_to_device_tensor(host, device)
    controls = sampled.controls(samplings, drawn(samplings))
    base = 3 * torch.randn(MAX_USERS, sampled.vocab_size, generator=generator)
    for row, text in enumerate(texts):
        base[row, text.prompt[:40]] += 9.0  # what was seen is likely again
    changed = 0
    for step in range(4):
        logits = (base + 0.3 * torch.randn(base.shape, generator=generator)).bfloat16()
        logits[0] = torch.nan  # an idle row's
        sampled.sampler.penalised(
            sampled.pieces_on_chips(logits.float()), controls, penalties, sampled.tokens, record=step < 2
        )
        got = sampled.of_all_chips()
        expected = [
            choose(logits[row], s, s.seed or 0, POSITION, text) for row, (s, text) in enumerate(zip(samplings, texts))
        ]
        assert got[1:] == expected[1:], f"step {step}"
        changed += sum(token != plain for token, plain in zip(got, on_host([Sampling()] * MAX_USERS, logits)))
        if step < 2:
            texts = [Seen(text.prompt, [*text.answer, token]) for text, token in zip(texts, got)]
    assert changed > MAX_USERS, "the penalties change nothing here"


def test_what_penalties_launch(sampled):
    penalties, pieces = TtPenalties(sampled.mesh_device, sampled.plan), len(sampled.pieces)
    controls = sampled.controls(PENALTIES, torch.zeros(MAX_USERS, CANDIDATES))
    on_chips = sampled.pieces_on_chips(torch.zeros(MAX_USERS, sampled.vocab_size))
    plain = device_operations(lambda: sampled.sampler.drawn(on_chips, controls, sampled.tokens))
    more = device_operations(
        lambda: sampled.sampler.penalised(on_chips, controls, penalties, sampled.tokens, record=True)
    )
    assert len(more) - len(plain) == 9 + 5 + (1 + pieces) * (pieces > 1), more
