"""Generators and models refuse bad calls in one line, before anything is launched or loaded."""

from dataclasses import replace

import pytest

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.config import BF16, QWEN25_7B
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan
from models.demos.qwen25_7b.serving.generator import Generator
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from models.demos.qwen25_7b.tt.transformer import TtTransformer
from models.demos.qwen25_7b.weights.model_weights import ModelWeights

PROMPTS = [[5, 6, 7], [8, 9]]


@pytest.fixture(scope="module")
def generator(replica_of):
    generator = Generator([replica_of(2, 64)])
    yield generator
    generator.close()


@pytest.mark.parametrize("token", [-1, 1056, 1 << 40])
def test_a_token_that_the_model_does_not_have_is_refused_before_anything_is_launched(
    generator, token, monkeypatch
):
    monkeypatch.setattr(generator.replicas[0], "prefill", lambda *_: pytest.fail("launched"))
    with pytest.raises(UserError, match=f"prompt 1 has token ids .*{token}.*0 to 1055"):
        generator.generate([[5], [3, 4, token]], 4)


def test_a_second_iterator_is_refused(generator):
    """The second iterator is refused, whether made before or after the first began.

    Closing the first iterator frees the generator.
    """
    alone = list(generator.generate(PROMPTS, 6))
    first, second = generator.generate(PROMPTS, 6), generator.generate(PROMPTS[::-1], 6)
    begun = [next(first)]
    with pytest.raises(UserError, match="middle of another call"):
        next(second)
    with pytest.raises(UserError, match="middle of another call"):
        generator.generate(PROMPTS, 6)
    assert begun + list(first) == alone
    cut = generator.generate(PROMPTS, 6)
    next(cut)
    cut.close()
    assert list(generator.generate(PROMPTS, 6)) == alone


def config_refusal(mesh_device, checkpoint, batch=1, max_seq_len=64) -> str:
    with pytest.raises(UserError) as caught:
        TtModelConfig.make(
            mesh_device, checkpoint.config, BF16, batch=batch, max_seq_len=max_seq_len
        )
    return str(caught.value)


@pytest.mark.parametrize("batch", [0, -1, 33])
def test_a_batch_that_no_tile_row_holds(mesh_device, checkpoint, batch):
    message = config_refusal(mesh_device, checkpoint, batch=batch)
    assert f"batch must be 1 to 32 users, got {batch}" in message


@pytest.mark.parametrize("max_seq_len", [0, -5, 4097])
def test_a_context_beyond_the_models_positions(mesh_device, checkpoint, max_seq_len):
    message = config_refusal(mesh_device, checkpoint, max_seq_len=max_seq_len)
    assert "max_seq_len" in message and "4096" in message and f"{max_seq_len}" in message


def test_weights_of_another_mesh_or_model_are_refused(mesh_device, checkpoint):
    def unread(shard):
        pytest.fail(f"{shard} was built")

    config = TtModelConfig.make(mesh_device, checkpoint.config, BF16, batch=1, max_seq_len=64)

    def refusal(plan: ParallelPlan) -> str:
        weights = ModelWeights({}, checkpoint.config, plan, unread)
        with pytest.raises(UserError) as caught:
            TtTransformer(mesh_device, weights, config)
        return str(caught.value)

    tp = mesh_device.shape[1]
    other = ParallelPlan.make(checkpoint.config, 8 // tp if tp != 4 else 8)
    message = refusal(other)
    assert f"{other.tp} chips" in message and f"the mesh has {tp}" in message
    others = ParallelPlan.make(replace(QWEN25_7B, num_hidden_layers=4), tp)
    assert "another model" in refusal(others)
