"""n-gram drafts of later plugins give Hugging Face's tokens. Calls as in docs/SPEC_DECODE_CONTRACT.md: no such plugin runs here."""

import sys
from collections import namedtuple
from types import ModuleType, SimpleNamespace

import pytest
import torch
from test_vllm_start import options
from vllm_requests import BLOCK, NEW_TOKENS, TTSamplingParams, greedy, start

from models.demos.qwen25_7b.vllm import generator_vllm
from models.demos.qwen25_7b.vllm.generator_vllm import QwenForCausalLM

MAX_LEN = 256
ROWS, DRAFTS, WIDTH = 4, 2, MAX_LEN // BLOCK  # 12 of a model's 16 slots
PLAN = (
    "effective_k lanes_per_request extra_bytes_per_seq extra_bytes_per_token accept_modes "
    "drafter_state supports_narrow_decode"
)


@pytest.fixture(scope="module", autouse=True)
def plugin():
    module = ModuleType("vllm_tt_plugin.spec_decode")
    module.SpecPlan = namedtuple("SpecPlan", PLAN)
    module.SpecReject = namedtuple("SpecReject", "reason")
    module.VerifyOutput = namedtuple("VerifyOutput", "spec_mode argmax_ids")
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "vllm_tt_plugin", ModuleType("vllm_tt_plugin"))
        patched.setitem(sys.modules, module.__name__, module)
        yield module


@pytest.mark.parametrize("sequences, requested, drafts", [(4, 3, 3), (4, 20, 7), (8, 5, 3), (16, 5, 1), (17, 1, None)])
def test_drafts_take_the_slots_of_a_step(plugin, sequences, requested, drafts):
    plan = QwenForCausalLM.spec_plan(None, sequences, requested)
    if drafts is None:
        assert "--max-num-seqs 16" in plan.reason
    else:
        assert (plan.effective_k, plan.lanes_per_request) == (drafts, 1 + drafts)
        assert plan.accept_modes == ("argmax_ids",)


@pytest.fixture(scope="module")
def model(mesh_device, checkpoint, host_alone):
    config = options()
    config.speculative_config = SimpleNamespace(num_speculative_tokens=DRAFTS)
    size = dict(slots=ROWS, max_len=MAX_LEN, block=BLOCK, compile_in=host_alone)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(generator_vllm, "current_vllm_config", lambda: config)
        model, _, _ = start(QwenForCausalLM, mesh_device, checkpoint, **size)
    yield model
    model.replica.close()


def tables(rows: int) -> torch.Tensor:
    """Blocks of each row; block 0 belongs to none."""
    return torch.arange(1, 1 + rows * WIDTH, dtype=torch.int32).view(rows, WIDTH)


def test_verified_drafts_and_plain_steps_give_hugging_faces_tokens(model, plugin, hf, prompts, monkeypatch):
    """Rows have all, some or wrong drafts, or none. Steps without drafts are ordinary decode calls."""
    close = lambda: pytest.fail("a program was compiled after the warm-up")  # noqa: E731
    monkeypatch.setattr(model.replica, "close", close)
    some = prompts[12:15]
    expected = [greedy(hf, prompt, {0}) for prompt in some]
    answers = prefill(model, some)
    steps = 0
    while min(map(len, answers)) < NEW_TOKENS:
        steps += 1
        tokens = torch.full((ROWS, 1 + DRAFTS), -1, dtype=torch.int32)
        positions, valid = tokens.clone(), torch.zeros(ROWS, dtype=torch.int32)
        tokens[:, 0] = 0  # of a row without a sequence
        for row, answer in enumerate(answers):
            count = 0 if steps % 4 == 0 else (steps - row) % (1 + DRAFTS)
            drafts = expected[row][len(answer) : len(answer) + count]
            if row == 1:  # the last draft is wrong
                drafts[-1:] = [(draft + 1) % 1000 for draft in drafts[-1:]]
            own = [answer[-1], *drafts]
            first = len(some[row]) + len(answer) - 1
            tokens[row, : len(own)] = torch.tensor(own)
            positions[row, : len(own)] = torch.arange(first, first + len(own))
            valid[row] = len(drafts)
        if valid.any():
            out = model.decode_forward(
                tokens=tokens, start_pos=positions, page_table=tables(ROWS), enable_trace=True,
                num_valid_drafts=valid, accepted_counts=torch.ones(ROWS), spec_mode="argmax_ids",
            )  # fmt: skip
            assert type(out) is plugin.VerifyOutput and out.spec_mode == "argmax_ids"
            choices = out.argmax_ids.tolist()
        else:
            out = model.decode_forward(
                tokens=tokens[:, :1], start_pos=positions[:, 0], page_table=tables(ROWS),
                enable_trace=True, sampling_params=TTSamplingParams(), reload_inputs=False,
                reload_page_table=False, reset_sampling_state=False,
            )  # fmt: skip
            choices = model.process_decode_output_host(out)[:, None].tolist()
        for row, answer in enumerate(answers):
            accepted = 0
            while accepted < valid[row] and choices[row][accepted] == tokens[row, accepted + 1]:
                accepted += 1
            answer += choices[row][: accepted + 1]
    assert [answer[:NEW_TOKENS] for answer in answers] == expected
    assert steps < NEW_TOKENS - 2


def prefill(model, prompts) -> list[list[int]]:
    ends = list(map(len, prompts))
    tokens = torch.zeros(len(prompts), max(ends), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    first = model.prefill_forward(
        tokens=tokens, page_table=tables(len(prompts)), prompt_lens=ends, start_pos=[0] * len(prompts),
        enable_trace=True, sampling_params=TTSamplingParams(),
    )  # fmt: skip
    return [[token] for token in first.tolist()]
