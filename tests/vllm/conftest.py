"""The model class for vLLM, as the plugin starts it."""

import pytest


@pytest.fixture(scope="session")
def started(mesh_device, checkpoint, host_alone):
    """(model, caches, blocks) of the vLLM class as the plugin starts it.

    Its recipe gives Hugging Face's tokens exactly.
    """
    from tests.vllm.vllm_requests import BLOCK, MAX_LEN, SLOTS, start

    return start(mesh_device, checkpoint, host_alone, slots=SLOTS, max_len=MAX_LEN, block=BLOCK)


@pytest.fixture(scope="module")
def served(started):
    """Return `started`, and release its traces after the module.

    Later allocations would overlap the temporaries of the traces.
    """
    yield started
    started[0].replica.close()
