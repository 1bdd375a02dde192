"""With YaRN, attention equals Hugging Face's beyond the trained context of 32768 tokens.

Tested: a decode step, and a chunked prefill with a cached prefix.
"""

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.plans.blocks import MAX_K_CHUNK
from models.demos.qwen25_7b.tt.attention import CORES_PER_KV_HEAD
from tests.families import YARN
from tests.pcc.bench import AttentionBench, assert_module
from tests.pcc.reference import stretched

START, TOKENS, CONTEXT = 33792, 100, 34048
ROWS = 256  # so far from the beginning a batch has no fewer (engine/prefill_batch.py)
PCC, CACHE_PCC = 0.999, 0.998
# A core's sum of weights loses about 2e-4 of itself with each chunk of keys. In prefill a core takes all
# chunks of 256 keys. In decode the cores of a KV head share the chunks.
LOSS_OF_A_CHUNK = 2e-4
GAIN = 0.003 + -(-(START + TOKENS) // MAX_K_CHUNK) * LOSS_OF_A_CHUNK


def test_a_prefill_and_a_step_beyond_32768_tokens(mesh_device, reference):
    world = AttentionBench(mesh_device, stretched(reference, YARN), BFP8, batch=1, context=CONTEXT)
    i, attention = next(iter(world.attention.items()))
    case = world.reference.attention_continued(i, START, TOKENS)
    world.cache.fill(case.past)
    (chips,) = world.run_chunks(attention, [case.x], [0], START, ROWS)
    assert_module(chips, case.expected, in_format=case.in_format, pcc=PCC, gain=GAIN)
    world.cache.assert_wrote([0], [START], case.written, pcc=CACHE_PCC, to_the_end=True)
    step = world.reference.attention_step(i, (START,))
    world.cache.fill(step.past)
    chips = world.run_decode(attention, step.x, (START,))
    chunks_of_a_core = -(-START // (world.decode.k_chunk(CONTEXT) * CORES_PER_KV_HEAD))
    gain = world.decode_gain + chunks_of_a_core * LOSS_OF_A_CHUNK
    assert_module(chips, step.expected, in_format=step.in_format, pcc=PCC, gain=gain)
    world.cache.assert_wrote([0], [START], step.written, pcc=CACHE_PCC)
