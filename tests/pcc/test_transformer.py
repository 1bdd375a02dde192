"""TtTransformer's logits equal Hugging Face's Qwen2ForCausalLM's: prompts of many lengths, then steps of all users.

"tiny" is the small checkpoint, whole; "7b" two layers of the 7B's dims, the first with its K bias.
"""

import pytest
import torch
import ttnn
from models.demos.qwen25_7b.plans.page_plan import prefill_table

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.plans.grids import TILE, padded_prompt
from models.demos.qwen25_7b.tt.transformer import DecodeInputs, PrefillInputs, TtTransformer
from tests.pcc.bench import Bench, assert_module

PCC = 0.998
GAIN = 0.02  # what layers add up to in a logit
PROMPTS = (1, 31, 32, 33, 100, 127)  # tokens of each user's prompt
STEPS = 3
CONTEXT = 160  # of a user: more than a prompt and the steps, and no power of two


class Talk(Bench):
    """A model with a user for each prompt, and what they say: a prompt, and a token for each step after it."""

    def __init__(self, mesh_device, reference):
        super().__init__(mesh_device, reference, batch=len(PROMPTS))
        self.model = TtTransformer(
            mesh_device, self.weights, self.config, self.plan, BFP8, batch=len(PROMPTS), max_seq_len=CONTEXT
        )
        generator = torch.Generator().manual_seed(0)
        pages = self.model.pages
        owned = torch.randperm(pages.users * pages.blocks_per_user, generator=generator).view(pages.users, -1)
        self.page_table = torch.stack([pages.decode_table(blocks) for blocks in owned.tolist()])
        self.texts = [torch.randint(self.config.vocab_size, (n + STEPS,), generator=generator) for n in PROMPTS]

    def prompt(self, user: int) -> torch.Tensor:
        """Logits [vocab_size] of the last token of a user's prompt."""
        rows, last = padded_prompt(PROMPTS[user]), PROMPTS[user] - 1
        tokens = torch.zeros(1, 1, 1, rows)
        tokens[..., : last + 1] = self.texts[user][: last + 1]
        inputs = PrefillInputs(
            tokens=self.put_ints(tokens, ttnn.uint32),
            positions=self.put_ints(torch.arange(rows)[None], ttnn.uint32),
            page_table=self.put_ints(prefill_table(self.page_table[user].tolist(), rows)[None], ttnn.int32),
            rows=self.put_ints(torch.full((1, TILE), last), ttnn.uint32),
        )
        logits = self.model.read_logits(self.model.forward_prefill(inputs)).float()
        assert (logits == logits[0]).all(), "every row was to be the last token's"
        return logits[0]

    def step(self, step: int) -> torch.Tensor:
        """Logits [users, vocab_size] of the users' tokens `step` steps after their prompts."""
        positions = torch.tensor(PROMPTS) + step
        tokens = torch.zeros(1, 1, 1, TILE)
        tokens[..., : len(PROMPTS)] = torch.stack([text[p] for text, p in zip(self.texts, positions)])
        inputs = DecodeInputs(
            tokens=self.put_ints(tokens, ttnn.uint32),
            positions=self.put_ints(positions, ttnn.int32),
            rotary_positions=self.put_ints(self.rotary_positions(positions), ttnn.uint32),
            page_table=self.put_ints(self.page_table, ttnn.int32),
        )
        return self.model.read_logits(self.model.forward_decode(inputs)).float()[: len(PROMPTS)]


@pytest.fixture(scope="module")
def talk(mesh_device, reference):
    return Talk(mesh_device, reference)


@pytest.fixture(scope="module")
def prompted(talk):
    """Every prompt is in the caches: the users' logits [users, vocab_size]."""
    return torch.stack([talk.prompt(user) for user in range(len(PROMPTS))])


@pytest.fixture(scope="module")
def expected(talk, reference):
    """[1 + STEPS, users, vocab_size]: Hugging Face's logits of each prompt's last token and of those after it."""
    logits = [reference.model(text[None]).logits[0, -1 - STEPS :] for text in talk.texts]
    return torch.stack(logits, dim=1)


def assert_logits(ours, theirs):
    """Of every user by itself. Logits matter up to a constant: a trained model's lie around one far from zero."""
    for user, its in zip(ours, theirs, strict=True):
        assert_module([user - user.mean()], its - its.mean(), pcc=PCC, gain=GAIN)


def test_logits_after_prompts(prompted, expected):
    assert_logits(prompted, expected[0])


def test_logits_of_steps_after_prompts(talk, prompted, expected):
    for step, theirs in enumerate(expected[1:]):
        assert_logits(talk.step(step), theirs)
