"""vLLM's sampling parameters and prompts are converted for the model."""

from itertools import product
from math import inf, nan

import torch

from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.engine.sampling import TokenCounts, gumbel
from models.demos.qwen25_7b.tt.inputs import SamplingControls, penalty_factors
from models.demos.qwen25_7b.vllm.inputs import tokens_to_sample
from tests.generation import sample
from tests.vllm.vllm_requests import TTSamplingParams

EXTREMES = dict(
    temperature=(0.0, 1e-30, 0.01, 2.0, 1e300, inf, nan),
    top_k=(-1, 0, 1, 33, 1 << 40),
    top_p=(0.0, 1e-46, 1.0, nan),
    repetition_penalty=(5e-324, 1e-46, 1e-40, 1e-30, 1.0, 1e30, 1e300, inf, nan),
    presence_penalty=(-inf, -2.0, 0.0, 1e40, nan),
    frequency_penalty=(inf, 2.0, 0.0, -1e40, nan),
)


def columns(rows) -> TTSamplingParams:
    """The plugin's lists over all slots."""
    lists = {name: list(values) for name, values in zip(EXTREMES, zip(*rows))}
    seeds = [(None, -1, -7, (1 << 64) - 1)[i % 4] for i in range(len(rows))]
    return TTSamplingParams(**lists, seed=seeds, enable_log_probs=[False] * len(rows))


def test_any_number_becomes_parameters_that_the_chips_and_the_host_compute_with():
    """An exception would end the engine. A factor that is infinite in float32 gives NaN logits."""
    rows = list(product(*EXTREMES.values()))
    params = tokens_to_sample(columns(rows), [1] * len(rows), 64)
    assert len(params) == len(rows) == 31500
    assert [p.params.seed is None for p in params[:4]] == [True, True, False, False]
    factors = torch.tensor([penalty_factors(p.params) for p in params], dtype=torch.float32)
    assert factors.isfinite().all()
    assert SamplingControls.of([p.params for p in params[::4500]]).inverse_temperature.isfinite().all()
    shuffled = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    logits = torch.linspace(-30, 30, 64)[shuffled].bfloat16()
    counts = TokenCounts([3, 5], [7, 7, 9])
    for p in params[::50]:
        assert 0 <= sample(logits, p.params, p.key, 5, counts) < 64
    assert gumbel([p.key for p in params], [0] * len(params), 1).isfinite().all()


def test_ordinary_numbers_are_unchanged():
    (token,) = tokens_to_sample(columns([(0.7, 20, 0.8, 1.05, 0.5, -0.5)]), [1], 64)
    assert token.params == SamplingParams(
        temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05, presence_penalty=0.5,
        frequency_penalty=-0.5,
    )  # fmt: skip
