"""Compare tests/vllm's stand-ins with what they stand for: .venv-vllm/bin/python tests/server/check_stand_ins.py.

Needs no server. A stand-in may have no name that the real class lacks. What MeshWorker mends in rows is done in the
plugin's own batch with vLLM's own logits processors. With faults the exit status is 1.
"""

import ast
import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
sys.path += [f"{ROOT}", f"{ROOT}/golden_mesh/src", f"{ROOT}/models/demos/qwen25_7b/vllm/extra_models/qwen25_7b"]

import golden_mesh  # noqa: E402

golden_mesh.activate("N300")

import torch  # noqa: E402
from llguidance import LLMatcher  # noqa: E402
from qwen25_7b_worker import Rows, RowUpdates  # noqa: E402
from vllm import SamplingParams, envs  # noqa: E402
from vllm.entrypoints.openai.engine.protocol import GenerationError  # noqa: E402
from vllm.entrypoints.serve.utils.server_utils import AuthenticationMiddleware  # noqa: E402
from vllm.v1.core.sched.output import SchedulerOutput  # noqa: E402
from vllm.v1.engine import core  # noqa: E402
from vllm.v1.sample.logits_processor import BatchUpdateBuilder, LogitsProcessors  # noqa: E402
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor  # noqa: E402
from vllm.v1.structured_output.backend_guidance import GuidanceBackend, GuidanceGrammar  # noqa: E402
from vllm_tt_plugin import async_decode, input_batch, model_input, model_runner  # noqa: E402

from models.demos.qwen25_7b.vllm.process import ENGINE_TITLE  # noqa: E402
from tests.vllm import stand_ins, vllm_engine, vllm_requests  # noqa: E402

ROW = dict(mm_features=[], generator=None, block_ids=([1],), num_computed_tokens=0)
SIZES = dict(max_num_reqs=4, max_model_len=64, max_num_batched_tokens=64, vocab_size=99)


def names(kind: type) -> set[str]:
    """The names of a class's methods and of what its methods assign."""
    found = set()
    for base in kind.__mro__[:-1]:
        if base.__module__ != "builtins":
            found |= {*vars(base), *getattr(base, "__annotations__", ())}
            found |= {*re.findall(r"\bself\.(\w+)(?=,? .*= |: .*= )", inspect.getsource(base))}
    return {name for name in found if not name.startswith("__")}


def words(module: ModuleType, everywhere: bool = False) -> set[str]:
    """The keywords of the calls of a model class in a module's code; everywhere: all keywords and texts."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and (everywhere or getattr(node.func, "attr", "").endswith("_forward")):
            found |= {keyword.arg for keyword in node.keywords if keyword.arg}
        if isinstance(node, ast.Constant) and everywhere:
            found.add(node.value)
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "extra":
            found.add(node.slice.value)
    return found


def batch(kind: type) -> "input_batch.InputBatch":
    """The plugin's batch, whose row 0 was a request with min_tokens and is another one's in the same step."""
    processor = MinTokensLogitsProcessor(None, torch.device("cpu"), False)
    made = input_batch.InputBatch(
        **SIZES, block_sizes=[32], kernel_block_sizes=[32], logitsprocs=LogitsProcessors([processor])
    )
    made.__class__ = kind
    made.sampling.batch_update_builder = RowUpdates() if kind is Rows else BatchUpdateBuilder()
    params = SamplingParams(min_tokens=5, max_tokens=9)
    params._all_stop_token_ids = {7, SIZES["vocab_size"]}
    for name, answer in (("first", []), ("second", [8, 9])):
        state = dict(req_id=name, prompt_token_ids=[4, 5, 6], output_token_ids=answer, sampling_params=params)
        made.add_request(input_batch.CachedRequestState(**state, **ROW), 0)
        made.refresh_logitsprocs()
        if name == "first":
            made.remove_request(name)
    made.min_tokens = processor.min_toks
    return made


def checks() -> dict[str, object]:
    """What is checked, and whether it holds."""
    plugin = words(model_runner, everywhere=True) | words(async_decode, everywhere=True)
    plugins = input_batch.SamplingInputBatch.DEFAULTS
    defaults = {field.name: field.default for field in fields(vllm_requests.TTSamplingParams)}
    sampled = vars(stand_ins.sampling())
    ours, theirs = batch(Rows), batch(input_batch.InputBatch)
    return {
        "Keys": names(stand_ins.Keys) <= names(AuthenticationMiddleware) | {"_inner", "_key"},
        "SamplingInputBatch.bad_words_token_ids": "bad_words_token_ids" in names(input_batch.SamplingInputBatch),
        "SchedulerOutput": {"total_num_scheduled_tokens", "finished_req_ids", "preempted_req_ids"}
        <= {field.name for field in fields(SchedulerOutput)},
        "SamplingParams": all(getattr(SamplingParams(), name) in (value, []) for name, value in sampled.items()),
        "TTSamplingParams": defaults.keys() == {field.name for field in fields(model_input.TTSamplingParams)},
        "TTSamplingParams of inactive slots": plugins | {"seed": None, "enable_log_probs": False} == defaults,
        "Backend": {"compile_grammar", "allocate_token_bitmask"} <= names(GuidanceBackend),
        "its grammar": {"fill_bitmask", "accept_tokens", "ll_matcher"} <= names(GuidanceGrammar),
        "its matcher": {"get_error", "is_stopped"} <= {*dir(LLMatcher)},
        "Busy": GenerationError("x").status_code,
        ENGINE_TITLE: ENGINE_TITLE == f"{envs.VLLM_PROCESS_NAME_PREFIX}::EngineCore"
        and '"EngineCore"' in inspect.getsource(core),
        f"the calls of Engine: {words(vllm_engine) - plugin or ''}": words(vllm_engine) <= plugin,
        "min_tokens of a row that was just freed": 0 in ours.min_tokens,
        "an end token beyond the vocabulary": ours.min_tokens[0][2] == {7},
        "RowUpdates is needed": 0 not in theirs.min_tokens,
        "the prompt of a preempted request": ours.num_prompt_tokens[0] == 3 and ours.num_tokens[0] == 5,
        "Rows is needed": theirs.no_penalties and "no_penalties" in vars(Rows),
    }


def main() -> int:
    held = checks()
    for name, right in held.items():
        print(f"{'' if right else 'FAULT: '}{name}")
    faults = sum(not right for right in held.values())
    print(f"{len(held)} stand-ins and mends: {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
