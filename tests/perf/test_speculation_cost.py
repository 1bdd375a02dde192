"""What verified tokens cost, as captured and modelled, and how many steps they take off a text that is known."""

from argparse import Namespace
from dataclasses import replace

from models.demos.qwen25_7b.config import BFP8, PERFORMANCE
from models.demos.qwen25_7b.perf.bounds import work_of
from models.demos.qwen25_7b.perf.capture import capture_step
from models.demos.qwen25_7b.perf.commands.speculate import modelled_step
from models.demos.qwen25_7b.perf.replayed import Replay, replay
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights import Checkpoint

WORDS = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]


def test_a_quote_takes_a_plain_step_until_it_is_known_and_then_as_few_as_can_be():
    """Ten tokens behind the first of the answer, which its prompt's pass gave: one until two in a row are known, then 4,
    4, and a last one that is alone."""
    assert replay([1, *WORDS, 2], WORDS + [3], 4) == Replay(tokens=10, plain=2, verifying=2, guessed=6)
    assert replay([1, *WORDS, 2], WORDS + [3], 1).steps == 10


def test_what_was_never_said_takes_plain_steps():
    assert replay([1, 2], WORDS, 8) == Replay(tokens=9, plain=9)


def test_wrong_guesses_cost_a_verifying_step_each():
    """The 3 behind "1 2" is guessed, and 4 comes."""
    total = replay([1, 2, 3, 1], [2, 4, 5], 2)
    assert total == Replay(tokens=2, plain=1, verifying=1, guessed=1) and total.right == 0
    assert total.seconds(plain=1.0, verifying=2.0) == 1.5


def test_each_token_more_is_an_update_of_the_cache_more_in_every_layer(mesh_device):
    config = replace(Checkpoint.open(SMALL_CHECKPOINT).config, num_hidden_layers=1)
    plain, verifying = (capture_step(mesh_device, config, BFP8, 2, tokens) for tokens in (1, 3))
    updates = [sum("UpdateCache" in op.name for op in step.layer) for step in (plain, verifying)]
    assert updates[1] == 3 * updates[0] and len(verifying.layer) - len(plain.layer) == updates[1] - updates[0]
    assert len(verifying.after) == len(plain.after) - 2, "the chips' own positions do not advance"
    attention = next(op for op in verifying.layer if "Sdpa" in op.name)
    here = dict(chips=1, grid_cores=64, users=2, position=100)
    one, three = (work_of(attention, **here, tokens=tokens).scattered for tokens in (1, 3))
    assert three == 3 * one > 0


def test_a_step_of_the_7b_that_verifies_costs_more_than_a_plain_one_and_less_than_as_many(mesh_device, host_alone):
    args = Namespace(recipe=PERFORMANCE, tp=mesh_device.shape[1], batch=1, position=1024)
    with host_alone():
        plain, verifying = (modelled_step(args, mesh_device, tokens) for tokens in (1, 4))
    assert plain < verifying < 2 * plain
