"""TtQwenAttention equals Hugging Face's Qwen2Attention in its result and in the paged cache.

K has the 7B's outliers. Users' blocks are scattered over the cache, and the rest of it is noise.
"""

import pytest

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE
from models.demos.qwen25_7b.plans.grids import padded_rows
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from tests.pcc.bench import FEW_CORES, POSITIONS, UPDATE_GAIN, AttentionBench, assert_module, evened, mixed, newest

pytestmark = pytest.mark.attention
PCC = 0.999
RECIPES = BF16, BFP8, PERFORMANCE


@pytest.fixture(scope="module")
def world_of(mesh_device, reference):
    """world_of(recipe, batch, cores): an AttentionBench."""
    return newest(AttentionBench, mesh_device, reference)


def decode(world, positions):
    """Compare a decode step of every tested layer with Hugging Face's.

    Each user also counts as much as every other: a mean of many values is smaller than the one at position 0.
    """
    for i in world.modules:
        case, chips = world.step(i, positions)
        how = dict(pcc=PCC, gain=world.decode_gain)
        assert_module(chips, case.expected, in_format=case.in_format, **how)
        *chips, expected, in_format = (evened(x, case.expected, dim=1) for x in (*chips, case.expected, case.in_format))
        assert_module(chips, expected, in_format=in_format, **how)


def prefill(world, users, lengths, start=0, more=0.0):
    """Compare a prefill batch of every tested layer with Hugging Face's. more: is added to the allowed gain.

    Returns each layer's results.
    """
    results = {i: world.prefill(i, users, lengths, start) for i in world.modules}
    for case, chips in (result for of_layer in results.values() for result in of_layer):
        gain = world.prefill_gain + more
        assert_module(chips, case.expected, in_format=case.in_format, pcc=PCC, gain=gain)
    return results


@pytest.mark.users(7, MAX_USERS)
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_decode_of_users_at_different_positions(world_of, recipe, users):
    decode(world_of(recipe, users), mixed(users))


@pytest.mark.every_slot
@pytest.mark.make_test_on("P150")
@pytest.mark.parametrize("batch", (5, 9, 12))
def test_decode_with_every_slot_taken(world_of, batch):
    """On 11 columns of cores 12 users take two rows, 22 slots. 32 users, which test_decode_of_users has, end within a
    row.
    """
    world = world_of(BFP8, batch)
    decode(world, mixed(world.decode.slots))


@pytest.mark.few_cores
def test_decode_of_32_users_on_few_cores(world_of):
    decode(world_of(BFP8, MAX_USERS, FEW_CORES), mixed(MAX_USERS))


@pytest.mark.parametrize("position", POSITIONS)
def test_decode_of_one_user(world_of, position):
    decode(world_of(BFP8, 1), (position,))


# Of one user, and side by side: each gives the result of Hugging Face for that prompt alone. Not one token alone in an
# 8-bit cache, which loses a pair that is small by chance.
PROMPTS = [(recipe, (3,), (n,)) for recipe in RECIPES for n in (1, 33, 128, 256) if n > 1 or recipe != PERFORMANCE]
PROMPTS += [(recipe, (4, 1, 6, 0), (31, 32, 70, 1)) for recipe in (BFP8, PERFORMANCE)]


@pytest.mark.parametrize("recipe, users, lengths", PROMPTS)
def test_prefill_of_prompts(world_of, recipe, users, lengths):
    prefill(world_of(recipe, 7), users, lengths)


@pytest.mark.parametrize("start, tokens", ((32, 32), (128, 128), (384, 100), (896, 128)))
def test_chunked_prefill_continues_from_the_cache(world_of, start, tokens):
    world = world_of(BFP8, 7)
    # A chunk of 128 keys takes 2e-4 from a sum of weights. Values around a bias hide it.
    prefill(world, [2], [tokens], start, more=0 if world.config.qkv_bias else 2e-4 * start / 128)


@pytest.mark.parametrize("recipe, start, lengths", ((BFP8, 64, (40, 64, 33)), (PERFORMANCE, 128, (1, 100))))
def test_chunks_of_several_users_continue_from_the_cache(world_of, recipe, start, lengths):
    """One start. Each result equals Hugging Face's and that of the chunk alone. A share of the rows may be padding."""
    world, users = world_of(recipe, 7), (5, 0, 3)[: len(lengths)]
    larger = UPDATE_GAIN if recipe.kv_cache == "bfloat8_b" else 0  # an 8-bit cache enlarges rows
    for i, together in prefill(world, users, lengths, start, larger).items():
        for user, tokens, (_, chips) in zip(users, lengths, together):
            # with as many keys at a time
            ((_, alone),) = world.run_prefill(i, [user], [tokens], start, padded_rows(max(lengths)))
            assert_module(chips, alone[0], pcc=0.9999, gain=0.001)


@pytest.mark.parametrize("block", (64, 128))
def test_blocks_of_64_and_128_tokens(mesh_device, reference, block):
    world = AttentionBench(mesh_device, reference, BFP8, batch=7, block=block)
    decode(world, mixed(7))
    prefill(world, [3], [100])
    prefill(world, [1], [70], 256)
