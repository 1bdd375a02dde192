"""A row without a user stays idle: its position stays NOWHERE, and no block of any cache changes for it."""

import pytest
import torch
import ttnn

from models.common.metrics import assert_equal
from models.demos.qwen25_7b.plans.blocks import BLOCK, NOWHERE, attention_tables, equal_shares

BATCH, CONTEXT, STEPS = 4, 64, 5


@pytest.fixture(scope="module")
def replica(replica_of):
    replica = replica_of(BATCH, CONTEXT)
    yield replica
    replica.close()


def read(replica, tensor, dim) -> torch.Tensor:
    return ttnn.to_torch(tensor, mesh_composer=ttnn.ConcatMeshToTensor(replica.mesh_device, dim=dim))


def caches(replica) -> torch.Tensor:
    """[caches, blocks, tokens of a block, heads and values]"""
    pairs = [(cache.keys, cache.values) for cache in replica.caches]
    return torch.stack([read(replica, t, 1).transpose(1, 2).flatten(2) for pair in pairs for t in pair])


def test_idle_rows_write_nothing_and_stay_idle(replica):
    positions = [NOWHERE, 30, NOWHERE, 0]
    tables = attention_tables(equal_shares(replica.blocks, BATCH), replica.width)
    before = caches(replica)
    replica.place([1, 2, 3, 4], positions, tables)
    for _ in range(STEPS):
        replica.launch()
        replica.read()
    written = torch.zeros(replica.blocks, BLOCK, dtype=torch.bool)
    for user, start in ((1, 30), (3, 0)):
        for position in range(start, start + STEPS):
            written[tables[user, position // BLOCK], position % BLOCK] = True
    after = caches(replica)
    assert_equal(after[:, ~written], before[:, ~written])
    assert (after[:, written] != before[:, written]).any(-1).all(), "a user's token was not written"
    of_chips = read(replica, replica.inputs.positions, 0).view(-1, BATCH)
    assert (of_chips == torch.tensor([NOWHERE, 30 + STEPS, NOWHERE, STEPS])).all()


def test_a_step_of_idle_rows_alone_is_possible(replica):
    """What a server's warm-up runs."""
    before = caches(replica)
    idle = attention_tables([[]] * BATCH, replica.width)
    replica.place([0] * BATCH, [NOWHERE] * BATCH, idle)
    replica.launch()
    replica.read()
    assert_equal(caches(replica), before)
