"""TtQwenAttention equals Hugging Face's Qwen2Attention in its result and in the paged cache.

K has the 7B's outliers. Users' blocks are scattered over the cache, and the rest of it is noise.
"""

import pytest

from models.demos.qwen25_7b.config import BF16, BFP8, PERFORMANCE
from models.demos.qwen25_7b.plans.grids import padded_rows
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from tests.pcc.bench import FEW_CORES, POSITIONS, UPDATE_GAIN, AttentionBench, assert_module, evened, mixed, newest

pytestmark = pytest.mark.attention
PCC = {BF16: 0.999, BFP8: 0.999, PERFORMANCE: 0.999}
CACHE_PCC = {BF16: 0.9999, BFP8: 0.998, PERFORMANCE: 0.998}


@pytest.fixture(scope="module")
def world_of(mesh_device, reference):
    """world_of(recipe, batch, cores): an AttentionBench."""
    return newest(AttentionBench, mesh_device, reference)


def prefilled(recipe):
    return dict(pcc=CACHE_PCC[recipe], to_the_end=True)


def decode(world, positions):
    """Run a decode step of every tested layer. Compare result and cache with Hugging Face's.

    Each user also counts as much as every other: a mean of many values is smaller than the one at position 0.
    """
    for i, attention in world.attention.items():
        case = world.reference.attention_step(i, positions)
        world.cache.fill(case.past)
        chips = world.run_decode(attention, case.x, positions)
        how = dict(pcc=PCC[world.recipe], gain=world.decode_gain)
        assert_module(chips, case.expected, in_format=case.in_format, **how)
        *chips, expected, in_format = (evened(x, case.expected, dim=1) for x in (*chips, case.expected, case.in_format))
        assert_module(chips, expected, in_format=in_format, **how)
        world.cache.assert_wrote(range(len(positions)), positions, case.written, pcc=CACHE_PCC[world.recipe])


def prefill(world, tokens, user=3):
    """Prefill a prompt in every tested layer. Compare result and cache with Hugging Face's."""
    for i, attention in world.attention.items():
        case = world.reference.attention_prompt(i, tokens)
        world.cache.fill([])
        (chips,) = world.run_prompts(attention, [case.x], [user])
        assert_module(
            chips, case.expected, in_format=case.in_format, pcc=PCC[world.recipe], gain=world.prefill_gain(world.recipe)
        )
        world.cache.assert_wrote([user], [0], case.written, **prefilled(world.recipe))


@pytest.mark.users(7, MAX_USERS)
@pytest.mark.parametrize("recipe", (BF16, BFP8, PERFORMANCE), ids=lambda recipe: recipe.name)
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


@pytest.mark.parametrize("tokens", (1, 33, 128, 256))
@pytest.mark.parametrize("recipe", (BF16, BFP8), ids=lambda recipe: recipe.name)
def test_prefill_of_a_prompt(world_of, recipe, tokens):
    prefill(world_of(recipe, 7), tokens)


@pytest.mark.parametrize("recipe", (BFP8, PERFORMANCE), ids=lambda recipe: recipe.name)
def test_prefill_of_prompts_side_by_side(world_of, recipe):
    """Each prompt gives the result of Hugging Face for that prompt alone."""
    world = world_of(recipe, 7)
    users, lengths = (4, 1, 6, 0), (31, 32, 70, 1)
    for i, attention in world.attention.items():
        cases = [world.reference.attention_prompt(i, tokens) for tokens in lengths]
        world.cache.fill([])
        chips = world.run_prompts(attention, [case.x for case in cases], users)
        for of_prompt, case in zip(chips, cases):
            assert_module(
                of_prompt, case.expected, in_format=case.in_format, pcc=PCC[recipe], gain=world.prefill_gain(recipe)
            )
        written = [case.written[0] for case in cases]
        world.cache.assert_wrote(users, [0] * len(users), written, **prefilled(recipe))


@pytest.mark.parametrize("start, tokens", ((32, 32), (128, 128), (384, 100), (896, 128)))
def test_chunked_prefill_continues_from_the_cache(world_of, start, tokens, user=2):
    world = world_of(BFP8, 7)
    for i, attention in world.attention.items():
        case = world.reference.attention_continued(i, start, tokens)
        world.fill(i, [user], [case])
        (chips,) = world.run_chunks(attention, [case.x], [user], start)
        # A chunk of 128 keys takes 2e-4 from a sum of weights. Values around a bias hide it.
        loss = 0 if world.config.qkv_bias else 2e-4 * start / 128
        gain = world.prefill_gain(BFP8) + loss
        assert_module(chips, case.expected, in_format=case.in_format, pcc=PCC[BFP8], gain=gain)
        world.cache.assert_wrote([user], [start], case.written, **prefilled(BFP8))


@pytest.mark.parametrize("recipe, start, lengths", ((BFP8, 64, (40, 64, 33)), (PERFORMANCE, 128, (1, 100))))
def test_chunks_of_several_users_continue_from_the_cache(world_of, recipe, start, lengths):
    """One start. Each result equals Hugging Face's and that of the chunk alone. A share of the rows may be padding."""
    world = world_of(recipe, 7)
    larger = UPDATE_GAIN if recipe.kv_cache == "bfloat8_b" else 0  # an 8-bit cache enlarges rows
    gain = world.prefill_gain(recipe) + larger
    users = (5, 0, 3)[: len(lengths)]
    for i, attention in world.attention.items():
        cases = [world.reference.attention_continued(i, start, tokens, user) for user, tokens in zip(users, lengths)]
        world.fill(i, users, cases)
        results = world.run_chunks(attention, [case.x for case in cases], users, start)
        for chips, case, user in zip(results, cases, users, strict=True):
            assert_module(chips, case.expected, in_format=case.in_format, pcc=PCC[recipe], gain=gain)
            # with as many keys at a time
            rows = padded_rows(max(lengths))
            (alone,) = world.run_chunks(attention, [case.x], [user], start, rows)
            assert_module(chips, alone[0], pcc=0.9999, gain=0.001)
        written = [case.written[0] for case in cases]
        starts = [start] * len(users)
        world.cache.assert_wrote(users, starts, written, **prefilled(recipe))


@pytest.mark.parametrize("block", (64, 128))
def test_blocks_of_64_and_128_tokens(mesh_device, reference, block):
    world = AttentionBench(mesh_device, reference, BFP8, batch=7, block=block)
    decode(world, mixed(7))
    prefill(world, 100)
    i, attention = next(iter(world.attention.items()))
    case = world.reference.attention_continued(i, 256, 70)
    world.fill(i, [1], [case])
    (chips,) = world.run_chunks(attention, [case.x], [1], 256)
    assert_module(chips, case.expected, in_format=case.in_format, pcc=PCC[BFP8])
    world.cache.assert_wrote([1], [256], case.written, **prefilled(BFP8))


@pytest.mark.parametrize("tokens", (33, 128, 256))  # not one token: 8 bits lose a pair that is small by chance
def test_prefill_with_an_8_bit_cache(world_of, tokens):
    prefill(world_of(PERFORMANCE, 7), tokens)
