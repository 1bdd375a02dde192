"""Past the trained context, by YaRN: attention equals Hugging Face's in a step and in a pass at positions beyond 32768."""

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.config.rope import yarn_of
from tests.pcc.attention_world import AttentionWorld
from tests.pcc.bench import assert_module
from tests.pcc.reference import stretched

CARD = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
START, TOKENS, CONTEXT = 33792, 100, 34048
PCC, CACHE_PCC = 0.999, 0.998


def test_a_pass_and_a_step_beyond_32768_tokens(mesh_device, reference):
    world = AttentionWorld(
        mesh_device, stretched(reference, yarn_of({"rope_scaling": CARD})), BFP8, batch=1, context=CONTEXT
    )
    i, attention = next(iter(world.attention.items()))
    case = world.reference.attention_continued(i, START, TOKENS)
    world.cache.fill(case.past)
    assert_module(world.run_continued(attention, case.x, 0, START), case.expected, pcc=PCC)
    world.cache.assert_wrote([0], [START], case.written, pcc=CACHE_PCC, to_the_end=True)
    step = world.reference.attention_step(i, (START,))
    world.cache.fill(step.past)
    assert_module(world.run_decode(attention, step.x, (START,)), step.expected, pcc=PCC)
    world.cache.assert_wrote([0], [START], step.written, pcc=CACHE_PCC)
