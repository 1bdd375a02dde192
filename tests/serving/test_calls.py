"""What a generator and a model refuse, in one line that names it, before anything is launched or loaded."""

from dataclasses import replace

import pytest

from models.common.errors import UserError
from models.demos.qwen25_7b.config import BF16, QWEN25_7B, ParallelPlan
from models.demos.qwen25_7b.serving.generator import Generator
from models.demos.qwen25_7b.tt.transformer import TtTransformer

PROMPTS = [[5, 6, 7], [8, 9]]


@pytest.fixture(scope="module")
def generator(replica_of):
    generator = Generator([replica_of(2, 64)])
    yield generator
    generator.close()


@pytest.mark.parametrize("token", [-1, 1056, 1 << 40, 2.5, True, "7", None])
def test_a_token_that_the_model_does_not_have_is_refused_before_anything_is_launched(generator, token, monkeypatch):
    monkeypatch.setattr(generator.replicas[0], "prefill", lambda *_: pytest.fail("launched"))
    with pytest.raises(UserError, match=f"prompt 1: token 2 .*{token}"):
        generator.generate([[5], [3, 4, token]], 4)


@pytest.mark.parametrize("stop_ids", [None, 7, "7", [[7]]])
def test_stop_ids_that_are_none(generator, stop_ids):
    with pytest.raises(UserError, match="stop_ids"):
        generator.generate(PROMPTS, 4, stop_ids=stop_ids)


def test_a_flat_list_is_no_batch_of_prompts(generator):
    with pytest.raises(UserError, match="prompt 0 must be a list of token ids, got 5"):
        generator.generate([5, 6], 4)


def test_two_iterators_at_work_would_corrupt_each_other(generator):
    """The second is refused, whether it was made before or after the first began; closing the first frees the generator."""
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


def model_refusal(mesh_device, checkpoint, plan=None, batch=1, max_seq_len=64) -> str:
    class Unread:
        def __getattr__(self, name):
            pytest.fail(f"{name} was read")

    config = checkpoint.config
    plan = plan or ParallelPlan.make(config, mesh_device.shape[1])
    with pytest.raises(UserError) as caught:
        TtTransformer(mesh_device, Unread(), config, plan, BF16, batch=batch, max_seq_len=max_seq_len)
    return str(caught.value)


@pytest.mark.parametrize("batch", [0, -1, 33])
def test_a_batch_that_no_tile_row_holds(mesh_device, checkpoint, batch):
    assert f"batch must be 1 to 32 users, got {batch}" in model_refusal(mesh_device, checkpoint, batch=batch)


@pytest.mark.parametrize("max_seq_len", [0, -5, 4097])
def test_a_context_that_the_model_does_not_have(mesh_device, checkpoint, max_seq_len):
    said = model_refusal(mesh_device, checkpoint, max_seq_len=max_seq_len)
    assert "max_seq_len" in said and "4096" in said and f"{max_seq_len}" in said


def test_a_plan_that_is_not_the_meshs_or_not_the_models(mesh_device, checkpoint):
    tp = mesh_device.shape[1]
    other = ParallelPlan.make(checkpoint.config, 8 // tp if tp != 4 else 8)
    said = model_refusal(mesh_device, checkpoint, plan=other)
    assert f"{other.tp} chips" in said and f"the mesh has {tp}" in said
    others = ParallelPlan.make(replace(QWEN25_7B, num_hidden_layers=4), tp)
    assert "another model" in model_refusal(mesh_device, checkpoint, plan=others)
