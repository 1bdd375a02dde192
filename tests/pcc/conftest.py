"""Fixtures of the module tests: the reference of each size and a bench on each mesh."""

import pytest
import torch

from models.demos.qwen25_7b.config import QWEN25_7B
from tests.pcc.reference import Reference
from tests.pcc.reference import reference as reference_of


@pytest.fixture(scope="session")
def reference(size) -> Reference:
    return reference_of(size)


@pytest.fixture(scope="module")
def bench(mesh_device, reference):
    """A bench for the modules that do not care how many users there are."""
    from tests.pcc.bench import Bench

    return Bench(mesh_device, reference)


@pytest.fixture(scope="session")
def vocabulary(size) -> torch.Tensor:
    """A table with a row for each token of the real vocabulary, [vocab_size, hidden] bfloat16, for both its ends."""
    if size == "tiny":
        return reference_of(size).weights["lm_head.weight"]
    shape = QWEN25_7B.vocab_size, QWEN25_7B.hidden_size
    generator = torch.Generator().manual_seed(0)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(std=QWEN25_7B.hidden_size**-0.5, generator=generator)


@pytest.fixture(scope="module", autouse=True)
def programs(mesh_device):
    """A compiled reduce-scatter keeps semaphores, for which there is as much room as one model needs. So each file starts
    without programs, as a process with one model does."""
    yield
    mesh_device.clear_program_cache()
