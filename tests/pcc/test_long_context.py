"""Past the trained context, by YaRN: attention equals Hugging Face's in a step and in a pass at positions beyond 32768."""

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.config.rope import yarn_of
from tests.pcc.attention_world import AttentionWorld
from tests.pcc.bench import assert_module
from tests.pcc.reference import stretched

CARD = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
START, TOKENS, CONTEXT = 33792, 100, 34048
PCC, CACHE_PCC = 0.999, 0.998
GAIN = 0.015  # a chip's sum of weights loses some 2e-4 of itself with each of the 67 chunks of keys (prefill_plan.py)


def test_a_pass_and_a_step_beyond_32768_tokens(mesh_device, reference):
    world = AttentionWorld(
        mesh_device, stretched(reference, yarn_of({"rope_scaling": CARD})), BFP8, batch=1, context=CONTEXT
    )
    i, attention = next(iter(world.attention.items()))
    case = world.reference.attention_continued(i, START, TOKENS)
    world.cache.fill(case.past)
    chips = world.run_continued(attention, case.x, 0, START)
    assert_module(chips, case.expected, in_format=case.in_format, pcc=PCC, gain=GAIN)
    world.cache.assert_wrote([0], [START], case.written, pcc=CACHE_PCC, to_the_end=True)
    step = world.reference.attention_step(i, (START,))
    world.cache.fill(step.past)
    chips = world.run_decode(attention, step.x, (START,))
    assert_module(chips, step.expected, in_format=step.in_format, pcc=PCC, gain=world.decode_gain)
    world.cache.assert_wrote([0], [START], step.written, pcc=CACHE_PCC)
