"""Worker and scheduler mend what vLLM and the plugin do to rows and ended requests. Theirs are stand-ins."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest

from models.demos.qwen25_7b import vllm
from tests.vllm.stand_ins import BatchUpdateBuilder, InputBatch, TTScheduler, TTWorker

FOLDER = f"{vllm.__path__[0]}/extra_models/qwen25_7b"


@pytest.fixture
def load(monkeypatch):
    names = {
        "vllm.config": dict(set_current_vllm_config=None),
        "vllm.v1.sample.logits_processor": dict(BatchUpdateBuilder=BatchUpdateBuilder),
        # tests/server/check_grammars.py has its grammars
        "llguidance": dict(LLTokenizer=None),
        "vllm.v1": dict(structured_output=SimpleNamespace()),
        "vllm.v1.structured_output": dict(
            backend_guidance=SimpleNamespace(GuidanceGrammar=object, GuidanceBackend=object)
        ),
        "vllm_tt_plugin.config": dict(get_tt_config=None),
        "vllm_tt_plugin.input_batch": dict(InputBatch=InputBatch),
        "vllm_tt_plugin.worker": dict(TTWorker=TTWorker, close_mesh_device=None),
        "vllm_tt_plugin.scheduler": dict(TTScheduler=TTScheduler),
    }
    for path, contents in names.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            module = ModuleType(".".join(parts[:end]))
            monkeypatch.setitem(sys.modules, module.__name__, module)
        vars(module).update(contents)

    def module(name):
        spec = importlib.util.spec_from_file_location(name, f"{FOLDER}/{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return module


@pytest.fixture
def worker(load):
    return load("qwen25_7b_worker").MeshWorker()


@pytest.mark.parametrize("asked, blocks", [(None, 544), (171, 171), (600, 600)])
def test_num_gpu_blocks_override_is_kept(load, asked, blocks):
    """The class refuses more than the DRAM takes."""
    worker = load("qwen25_7b_worker").MeshWorker(asked)
    assert worker.determine_available_memory() == 10 * blocks
    assert worker.cache_config.num_gpu_blocks_override == blocks


def test_the_worker_hears_of_every_end(load):
    scheduler = load("qwen25_7b_scheduler").Scheduler()
    scheduler.finished_req_ids, scheduler.reset_preempted_req_ids = {"a"}, {"b"}
    output = scheduler.schedule()
    assert output.total_num_scheduled_tokens == 1, "a decode step in the place of a prefill without room"
    assert (output.finished_req_ids, output.preempted_req_ids) == ({"a"}, {"b"})
    scheduler.room, scheduler.finished_req_ids = 5, {"c"}
    assert scheduler.schedule().finished_req_ids == {"c"} and not scheduler.finished_req_ids


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


def test_the_model_knows_where_the_prompt_of_each_row_ends(worker):
    """A preempted sequence comes back with its answer in its prompt; penalties count the answer alone."""
    worker.initialize_from_config(None)
    runner = worker.model_runner
    assert runner.model.prompt_lengths is runner.input_batch.num_prompt_tokens


def test_bad_words_get_the_answer_so_far(worker):
    """The plugin hands it to vLLM's sampler where its batch has a penalty."""
    worker.initialize_from_config(None)
    batch = worker.model_runner.input_batch
    assert batch.no_penalties
    batch.sampling.bad_words_token_ids[3] = [[5, 6]]
    assert not batch.no_penalties
