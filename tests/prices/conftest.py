"""Values on the chips, and programs in a folder of their own."""

import os

import pytest
from programs import run_python
from values import Golden


@pytest.fixture
def golden(mesh_device):
    return Golden(mesh_device)


@pytest.fixture
def python(tmp_path):
    """python(*words): run Python in tmp_path, with nothing that this process's golden mesh has set."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TT_", "LOGURU", "PYTEST"))}
    return lambda *words, cwd=tmp_path: run_python(*words, cwd=cwd, env=clean)
