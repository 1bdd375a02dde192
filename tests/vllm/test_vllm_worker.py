"""The worker mends what the plugin does to the rows of its batch. vLLM's classes are stand-ins."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest

from models.demos.qwen25_7b import vllm

FILE = f"{vllm.__path__[0]}/extra_models/qwen25_7b/qwen25_7b_worker.py"


class BatchUpdateBuilder:
    """vLLM's, as far as the plugin uses it."""

    def __init__(self):
        self._removed, self.added = [], []

    def get_and_reset(self, batch_size):
        update = SimpleNamespace(removed=self._removed, added=self.added)
        self._removed, self.added = [], []
        return update


class InputBatch:
    """The plugin's, without penalties."""

    no_penalties = True

    def __init__(self):
        builder = BatchUpdateBuilder()
        self.sampling = SimpleNamespace(batch_update_builder=builder, bad_words_token_ids={})


class TTWorker:
    """The plugin's, with one batch."""

    def initialize_from_config(self, _):
        self.model_runner = SimpleNamespace(input_batch=InputBatch())


@pytest.fixture
def worker(monkeypatch):
    names = {
        "vllm.v1.sample.logits_processor": dict(BatchUpdateBuilder=BatchUpdateBuilder),
        "vllm_tt_plugin.config": dict(get_tt_config=None),
        "vllm_tt_plugin.input_batch": dict(InputBatch=InputBatch),
        "vllm_tt_plugin.worker": dict(TTWorker=TTWorker, close_mesh_device=None),
    }
    for path, contents in names.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            module = ModuleType(".".join(parts[:end]))
            monkeypatch.setitem(sys.modules, module.__name__, module)
        vars(module).update(contents)
    spec = importlib.util.spec_from_file_location("qwen25_7b_worker", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MeshWorker()


def apply(update, options: dict) -> None:
    """Change a logits processor's options by row, in vLLM's order."""
    for row, option in update.added:
        options[row] = option
    for row in update.removed:
        options.pop(row, None)


def test_a_request_in_a_row_that_was_just_freed_keeps_its_options(worker):
    """A prefill takes the rows of all decoding requests, and they come back in the next step."""
    worker.initialize_from_config(None)
    builder = worker.model_runner.input_batch.sampling.batch_update_builder
    options = {0: "bias of the request that leaves", 1: "of another one"}
    builder._removed += [0, 1]
    builder.added.append((0, "bias of the new request"))
    apply(builder.get_and_reset(1), options)
    assert options == {0: "bias of the new request"}


def test_bad_words_get_the_answer_so_far(worker):
    """The plugin hands it to vLLM's sampler where its batch has a penalty."""
    worker.initialize_from_config(None)
    batch = worker.model_runner.input_batch
    assert batch.no_penalties
    batch.sampling.bad_words_token_ids[3] = [[5, 6]]
    assert not batch.no_penalties
