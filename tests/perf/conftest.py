"""A fixture for modules that count operations."""

import pytest

from models.common.mesh import host_alone


@pytest.fixture(scope="module")
def without_values(pytestconfig):
    """A golden mesh computes no values in the module: its tests look at operations only."""
    with host_alone(pytestconfig.backend):
        yield
