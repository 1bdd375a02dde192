"""TtTransformer's logits equal those of Hugging Face's Qwen2ForCausalLM.

Prompts of many lengths are followed by steps of all users.
Size "tiny" is the whole small checkpoint.
Size "7b" has two layers of the 7B's dims, the first with its K bias.
"""

import torch

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.engine.prefill_batch import Prompt, pack_prompts, prefill_inputs
from models.demos.qwen25_7b.plans.blocks import BLOCK, INACTIVE, attention_tables, blocks_for, table_width
from models.demos.qwen25_7b.tt.attention import allocate_caches
from models.demos.qwen25_7b.tt.inputs import DecodeInputs
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from tests.pcc.bench import Bench, assert_module

PCC = 0.998
GAIN = 0.02  # sum of the layers' errors in a logit
PROMPTS = (1, 31, 32, 33, 100, 127)  # tokens of each user's prompt
STEPS = 3
CONTEXT = 160  # of a user: holds a prompt and the steps, no power of two


class Talk(Bench):
    """A model and its users. Each user has a prompt, and a token for each step after it."""

    def __init__(self, mesh_device, reference, recipe=BFP8):
        super().__init__(mesh_device, reference, batch=len(PROMPTS))
        config = self.model_config(recipe, CONTEXT)
        self.model = TtTransformer(mesh_device, self.build, config)
        blocks, self.width = (blocks_for(self.decode.slots, CONTEXT, BLOCK), table_width(CONTEXT, BLOCK))
        self.caches = allocate_caches(mesh_device, config, blocks, BLOCK)
        generator = torch.Generator().manual_seed(0)
        self.owned = torch.randperm(blocks, generator=generator).view(self.decode.slots, -1).tolist()
        self.sequences = [torch.randint(self.config.vocab_size, (n + STEPS,), generator=generator) for n in PROMPTS]

    def prompts(self) -> torch.Tensor:
        """Prefill all prompts. Return the logits [users, vocab_size] of their last tokens."""
        logits = [None] * len(PROMPTS)
        sequences = [
            Prompt(user, self.sequences[user][:size].tolist(), 0, self.owned[user]) for user, size in enumerate(PROMPTS)
        ]
        for batch in pack_prompts(sequences, self.model.max_prefill_rows, BLOCK):
            values = prefill_inputs(batch, BLOCK, self.model.model_config)
            inputs = values.to_host(self.mesh_device).to_device(self.mesh_device)
            of_rows = self.model.read_logits(self.model.forward_prefill(inputs, self.caches)).float()
            for user in batch.sampled_slots:
                logits[user] = of_rows[user]
        return torch.stack(logits)

    def step(self, step: int) -> torch.Tensor:
        """Run a decode step `step` tokens after the prompts. Return logits [users, vocab_size]."""
        positions = [prompt + step for prompt in PROMPTS]
        tokens = [int(text[p]) for text, p in zip(self.sequences, positions)]
        inactive = [INACTIVE] * (self.decode.slots - len(PROMPTS))
        tables = attention_tables(self.owned, self.width)
        values = DecodeInputs.of(tokens, positions + inactive, tables, self.model.model_config)
        inputs = values.to_host(self.mesh_device).to_device(self.mesh_device)
        return self.model.read_logits(self.model.forward_decode(inputs, self.caches)).float()[: len(PROMPTS)]

    def expected(self) -> torch.Tensor:
        """Hugging Face's logits [1 + STEPS, users, vocab_size] from each prompt's last token on."""
        logits = [self.reference.model(text[None]).logits[0, -1 - STEPS :] for text in self.sequences]
        return torch.stack(logits, dim=1)


def assert_hugging_faces_logits(mesh_device, reference, recipe=BFP8, steps=STEPS) -> None:
    """Compare each user's logits after the prompts and after each step, without their mean.

    A constant does not matter to logits, and a trained model's mean is far from zero.
    """
    talk = Talk(mesh_device, reference, recipe)
    ours = [talk.prompts(), *map(talk.step, range(steps))]
    for logits, expected in zip(ours, talk.expected()):
        for user, its in zip(logits, expected, strict=True):
            assert_module([user - user.mean()], its - its.mean(), pcc=PCC, gain=GAIN)


def test_prompts_and_steps_after_them(mesh_device, reference):
    assert_hugging_faces_logits(mesh_device, reference)
