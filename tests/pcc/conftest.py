"""Fixtures of the module tests: the reference of each size and a bench on each mesh."""

import pytest
import torch

from models.demos.qwen25_7b.config import QWEN25_7B
from tests.pcc.reference import BUILDS, Reference
from tests.pcc.reference import reference as reference_of


def pytest_generate_tests(metafunc):
    if "family" in metafunc.fixturenames:
        metafunc.parametrize("family", metafunc.config.getoption("--family") or ["qwen2"], scope="session")
    if users := metafunc.definition.get_closest_marker("users"):
        metafunc.parametrize("users", metafunc.config.getoption("--users") or users.args)


@pytest.fixture(scope="session")
def reference(size, family) -> Reference:
    return reference_of(size, family)


@pytest.fixture(scope="module")
def bench(mesh_device, reference):
    """A bench for modules that do not depend on the number of users."""
    from tests.pcc.bench import Bench

    return Bench(mesh_device, reference)


@pytest.fixture(scope="session")
def vocabulary(size) -> torch.Tensor:
    """Table [vocab_size, hidden] bfloat16 of the real vocabulary, for embedding and LM head. No two rows are alike."""
    if size == "tiny":
        return reference_of(size).weights["lm_head.weight"]
    rows, hidden = (4096, QWEN25_7B.hidden_size)  # random numbers for all rows would take ten times as long
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(rows, hidden, generator=generator).mul_(hidden**-0.5).bfloat16()
    blocks = -(-QWEN25_7B.vocab_size // rows)
    return torch.cat([block.roll(i, dims=1) for i in range(blocks)])[: QWEN25_7B.vocab_size]


@pytest.fixture(scope="module", autouse=True)
def programs(mesh_device):
    """Clear the program cache and the packed weights after each file.

    A compiled reduce-scatter keeps semaphores, and L1 has room for those of one model.
    """
    yield
    mesh_device.clear_program_cache()
    for build in BUILDS:
        build.cache_clear()
