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
PCC = 0.999
# A core's sum of weights loses about 2e-4 of itself with each chunk of keys. In prefill a core takes all
# chunks of 256 keys. In decode the cores of a KV head share the chunks.
LOSS_OF_A_CHUNK = 2e-4
GAIN = 0.003 + -(-(START + TOKENS) // MAX_K_CHUNK) * LOSS_OF_A_CHUNK


def test_a_prefill_and_a_step_beyond_32768_tokens(mesh_device, reference):
    world = AttentionBench(mesh_device, stretched(reference, YARN), BFP8, batch=1, context=CONTEXT)
    i = next(iter(world.modules))
    ((case, chips),) = world.prefill(i, [0], [TOKENS], START, ROWS)
    assert_module(chips, case.expected, in_format=case.in_format, pcc=PCC, gain=GAIN)
    case, chips = world.step(i, (START,))
    chunks_of_a_core = -(-START // (world.decode.k_chunk(CONTEXT) * CORES_PER_KV_HEAD))
    gain = world.decode_gain + chunks_of_a_core * LOSS_OF_A_CHUNK
    assert_module(chips, case.expected, in_format=case.in_format, pcc=PCC, gain=gain)
