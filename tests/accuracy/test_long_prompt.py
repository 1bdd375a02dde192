"""A prompt of 32768 tokens, the 7B's trained context, gives the logits of Hugging Face's float32.

The model has two layers of the small checkpoint, and one attention head of 28.
One head takes torch 10 s for 32768 tokens in a chip's arithmetic.
The test runs on one chip, because more chips need as many heads.
"""

from dataclasses import replace

import pytest
import torch
from qwen25_7b_lab.evaluation.teacher_forcing import prefill_logits

from models.demos.qwen25_7b.config import BF16
from models.demos.qwen25_7b.engine.prefill_batch import Prompt
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint, tensor_shapes
from tests.families import hf_model
from tests.metrics import assert_close

TOKENS = 32768
ASKED = 32  # number of compared last tokens
# Each of the 128 chunks of 256 keys takes on average 2e-4 from a chip's sum of weights (plans/prefill_plan.py,
# MAX_K_CHUNKS). Attention's output at the end is then about 2 % too large, in each of two layers.
PCC, RELATIVE_ERROR = 0.9995, 0.012  # measured: 0.99998, 0.006


@pytest.fixture(scope="module")
def narrow():
    """(config, weights) of the small checkpoint with two layers and one attention head."""
    checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
    config = replace(
        checkpoint.config,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=TOKENS,
    )
    shapes = tensor_shapes(config)
    return config, {
        name: checkpoint.tensor(name)[tuple(slice(n) for n in shape)].contiguous() for name, shape in shapes.items()
    }


@pytest.mark.chips(1)
@torch.no_grad()
def test_32768_tokens_through_two_layers(mesh_device, narrow):
    config, weights = narrow
    ids = torch.randint(1000, (TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    replica = Replica.load(mesh_device, weights, config, BF16, users=1, max_seq_len=TOKENS, traced=False)
    *beginning, last = replica.batches([Prompt(0, ids, 0, range(replica.blocks))])
    for batch in beginning:
        replica.prefill(batch)
    requested = replace(last, sampled_rows=tuple(range(last.rows - ASKED, last.rows)))
    logits = prefill_logits(replica, requested).float()
    replica.close()
    assert len(beginning) == TOKENS // replica.model.max_prefill_rows - 1
    expected = hf_model(config, weights)(torch.tensor([ids]), logits_to_keep=ASKED).logits[0]
    assert_close(logits, expected, pcc=PCC, most=RELATIVE_ERROR)
