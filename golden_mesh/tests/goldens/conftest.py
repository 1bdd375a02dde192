"""Fixtures of the goldens' tests."""

import pytest
import torch

from goldens.support import Chips


def pytest_collection_modifyitems(config, items):
    """Deselect tests of collectives on a mesh of one chip."""
    alone = [item for item in items if "several_chips" in item.fixturenames]
    if alone and config.getoption("--golden").upper() == "N150":
        config.hook.pytest_deselected(items=alone)
        items[:] = [item for item in items if item not in alone]


@pytest.fixture
def several_chips(chips):
    """Mark a test that needs several chips."""


@pytest.fixture
def chips(mesh_device):
    torch.manual_seed(0)
    return Chips(mesh_device)
