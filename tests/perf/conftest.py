"""A decode step without values, for modules that count operations."""

import pytest

from models.demos.qwen25_7b.config import BFP8, DecoderConfig
from tests.families import cut

USERS = 32


@pytest.fixture(scope="module")
def without_values(host_alone):
    """A golden mesh computes no values in the module: its tests look at operations only."""
    with host_alone():
        yield


@pytest.fixture(scope="session")
def config(size, checkpoint) -> DecoderConfig:
    return checkpoint.config if size == "tiny" else cut("7B")


@pytest.fixture(scope="session")
def step(mesh_device, config, host_alone):
    """A greedy decode step of bfp8: a Step."""
    from qwen25_7b_lab.perf.capture import capture_step

    with host_alone():
        return capture_step(mesh_device, config, BFP8, USERS)
