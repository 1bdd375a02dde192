"""A fixture for modules that count operations."""

import pytest


@pytest.fixture(scope="module")
def without_values(host_alone):
    """A golden mesh computes no values in the module: its tests look at operations only."""
    with host_alone():
        yield
