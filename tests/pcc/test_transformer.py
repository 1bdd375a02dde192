"""TtTransformer's logits equal Hugging Face's Qwen2ForCausalLM's: prompts of many lengths, then steps of all users.

"tiny" is the small checkpoint, whole; "7b" two layers of the 7B's dims, the first with its K bias.
"""

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.plans.blocks import BLOCK, attention_tables, blocks_for, table_width
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.serving.passes import PassValues, Prompt, plan_passes
from models.demos.qwen25_7b.tt.inputs import DecodeInputs, PromptInputs
from models.demos.qwen25_7b.tt.kv_cache import allocate_caches
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from tests.pcc.bench import Bench, assert_module

PCC = 0.998
GAIN = 0.02  # what layers add up to in a logit
PROMPTS = (1, 31, 32, 33, 100, 127)  # tokens of each user's prompt
STEPS = 3
CONTEXT = 160  # of a user: more than a prompt and the steps, and no power of two


class Talk(Bench):
    """A model with a user for each prompt, and what they say: a prompt, and a token for each step after it."""

    def __init__(self, mesh_device, reference, recipe=BFP8):
        super().__init__(mesh_device, reference, batch=len(PROMPTS))
        self.model = TtTransformer(
            mesh_device, self.weights, self.config, self.plan, recipe, batch=len(PROMPTS), max_seq_len=CONTEXT
        )
        blocks, self.width = blocks_for(self.decode.batch, CONTEXT, BLOCK), table_width(CONTEXT, BLOCK)
        self.caches = allocate_caches(mesh_device, self.config, self.plan, recipe, blocks, BLOCK)
        generator = torch.Generator().manual_seed(0)
        self.owned = torch.randperm(blocks, generator=generator).view(self.decode.batch, -1).tolist()
        self.texts = [torch.randint(self.config.vocab_size, (n + STEPS,), generator=generator) for n in PROMPTS]

    def prompts(self) -> torch.Tensor:
        """Logits [users, vocab_size] of the last tokens of the users' prompts."""
        logits = [None] * len(PROMPTS)
        texts = [
            Prompt(user, self.texts[user][:size].tolist(), 0, self.owned[user]) for user, size in enumerate(PROMPTS)
        ]
        for work in plan_passes(texts, self.model.longest_pass, BLOCK):
            values = PassValues.of(work, BLOCK, self.width)
            inputs = PromptInputs(
                tokens=self.put_ints(values.tokens, ttnn.uint32),
                positions=self.put_ints(values.positions, ttnn.uint32),
                fill_table=self.put_ints(values.fill_table, ttnn.int32),
                rows=self.put_ints(values.rows, ttnn.uint32),
                windows=self.put_ints(values.where[0], ttnn.int32),
            )
            of_rows = self.model.read_logits(self.model.forward_prefill(inputs, self.caches)).float()
            for user in work.answered:
                logits[user] = of_rows[user]
        return torch.stack(logits)

    def step(self, step: int) -> torch.Tensor:
        """Logits [users, vocab_size] of the users' tokens `step` steps after their prompts."""
        positions = torch.tensor(PROMPTS) + step
        tokens = torch.zeros(1, 1, 1, TILE)
        tokens[..., : len(PROMPTS)] = torch.stack([text[p] for text, p in zip(self.texts, positions)])
        tables = attention_tables(self.owned, self.width)
        inputs = DecodeInputs(
            tokens=self.put_ints(tokens, ttnn.uint32),
            positions=self.put_ints(positions, ttnn.int32),
            rotary_positions=self.put_ints(self.rotary_positions(positions), ttnn.uint32),
            page_table=self.put_ints(tables, ttnn.int32),
        )
        return self.model.read_logits(self.model.forward_decode(inputs, self.caches)).float()[: len(PROMPTS)]


@pytest.fixture(scope="module")
def talk(mesh_device, reference):
    return Talk(mesh_device, reference)


@pytest.fixture(scope="module")
def prompted(talk):
    """Every prompt is in the caches: the users' logits [users, vocab_size]."""
    return talk.prompts()


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
