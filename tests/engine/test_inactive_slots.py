"""An inactive slot keeps the position INACTIVE, and no block of any cache changes for it."""

import pytest
import torch
import ttnn

from models.demos.qwen25_7b.plans.blocks import BLOCK, INACTIVE, attention_tables, equal_shares
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.tt.inputs import decode_key_rows
from tests.caches import read_caches
from tests.metrics import assert_equal

BATCH, CONTEXT, STEPS = 4, 64, 5


@pytest.fixture(scope="module")
def replica(replica_of):
    return replica_of(BATCH, CONTEXT)


def caches(replica) -> torch.Tensor:
    """[caches, blocks, tokens of a block, heads and values]"""
    return read_caches(replica).transpose(2, 3).flatten(3)


def test_inactive_slots_write_nothing_and_stay_inactive(replica):
    positions = [INACTIVE, 30, INACTIVE, 0]
    tables = attention_tables(equal_shares(replica.blocks, BATCH), replica.width)
    before = caches(replica)
    replica.inputs.write_slots([1, 2, 3, 4], positions, tables)
    for _ in range(STEPS):
        replica.launch_decode()
        replica.read_tokens()
    written = torch.zeros(replica.blocks, BLOCK, dtype=torch.bool)
    for user, start in ((1, 30), (3, 0)):
        for position in range(start, start + STEPS):
            written[tables[user, position // BLOCK], position % BLOCK] = True
    after = caches(replica)
    assert_equal(after[:, ~written], before[:, ~written])
    assert (after[:, written] != before[:, written]).any(-1).all(), "a user's token was not written"
    composer = ttnn.ConcatMeshToTensor(replica.mesh_device, dim=0)
    of_chips = ttnn.to_torch(replica.inputs.decode.positions, mesh_composer=composer)
    of_chips = of_chips.view(-1, BATCH)
    assert (of_chips == torch.tensor([INACTIVE, 30 + STEPS, INACTIVE, STEPS])).all()
    key_rows = ttnn.to_torch(replica.inputs.decode.key_rows, mesh_composer=composer).long().view(-1, BATCH, TILE)
    next_rows = decode_key_rows(torch.tensor([30 + STEPS, STEPS]), replica.model.model_config)
    assert (key_rows[:, [1, 3]] == next_rows.view(2, TILE)).all(), "of tokens that the next step writes"


def test_a_step_of_inactive_slots_alone_is_possible(replica):
    """The warm-up of a server runs such a step."""
    before = caches(replica)
    inactive = attention_tables([[]] * BATCH, replica.width)
    replica.inputs.write_slots([0] * BATCH, [INACTIVE] * BATCH, inactive)
    replica.launch_decode()
    replica.read_tokens()
    assert_equal(caches(replica), before)
