"""rotary_embedding, attention in single steps, heads of several models, and parts of a tensor."""

import math

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import EXACT, assert_near, assert_same, assert_values

GRID = ttnn.CoreCoord(8, 8)
APPROXIMATE_EXP = 0.03  # ttnn's default: within 3 % a value


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16().float()


def rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


@pytest.mark.parametrize("users, rows, table", ((1, 64, 64), (1, 40, 128), (2, 33, 96)))
def test_rotary_embedding_of_a_prompt(chips, users, rows, table):
    """The result has whole tiles of rows."""
    x, cos, sin = draw(users, 4, rows, 64), draw(1, 1, table, 64), draw(1, 1, table, 64)
    got = chips.get(ttnn.experimental.rotary_embedding(*map(chips.put, (x, cos, sin))))
    assert {g.shape[2] for g in got} == {-(-rows // 32) * 32}
    want = rotated(x, cos[:, :, :rows], sin[:, :, :rows])
    assert_near([g[:, :, :rows].double() for g in got], want, 5e-3)


@pytest.mark.parametrize("token", (0, 5, 127))
def test_rotary_embedding_of_one_position_of_all_users(chips, token):
    x, cos, sin = draw(1, 4, 20, 64), draw(1, 1, 128, 64), draw(1, 1, 128, 64)
    got = chips.get(ttnn.experimental.rotary_embedding(*map(chips.put, (x, cos, sin)), token))
    want = rotated(x, cos[:, :, token : token + 1], sin[:, :, token : token + 1])
    assert_near([g[:, :, :20].double() for g in got], want, 5e-3)


def test_rotate_half(chips):
    x = draw(1, 1, 64, 128)
    want = torch.cat((-x[..., 64:], x[..., :64]), -1)
    assert_same(ttnn.experimental.rotate_half(chips.put(x)), want)


@pytest.mark.parametrize("shape", ((1, 2, 32, 64), (1, 1, 128, 32), (1, -1, 32, 64)))
def test_reshape_on_device(chips, shape):
    x = draw(1, 1, 64, 64)
    assert_same(ttnn.reshape_on_device(chips.put(x), *shape), x.reshape(shape))


def attention_mask(users: int, width: int) -> torch.Tensor:
    """[users, 1, 1, width]: some keys hidden, others made less likely."""
    mask = draw(users, 1, 1, width)
    mask[..., 3:9] = -math.inf
    return mask


IN_PLACE = (False, True)


def softmax_of(chips, x, *args, in_place: bool, **options):
    given = chips.put(x)
    if in_place:
        ttnn.scale_mask_softmax_in_place(given, *args, **options)
        return chips.get(given)
    return chips.get(ttnn.scale_mask_softmax(given, *args, **options))


@pytest.mark.parametrize("in_place", IN_PLACE)
@pytest.mark.parametrize("scale", (None, 0.25))
def test_scale_mask_softmax(chips, in_place, scale):
    x, mask = draw(2, 4, 33, 96), attention_mask(2, 96)
    got = softmax_of(
        chips, x, scale, chips.put(mask), in_place=in_place, compute_kernel_config=EXACT
    )
    want = torch.softmax(x * (scale or 1) + mask, -1)
    assert_near(got, want, 5e-3)
    got = softmax_of(chips, x, in_place=in_place)
    assert_near(got, torch.softmax(x, -1), APPROXIMATE_EXP)


def test_scores_may_have_three_dimensions(chips):
    x, mask = draw(4, 32, 64), attention_mask(1, 64)
    got = softmax_of(chips, x, 0.25, chips.put(mask), in_place=False, compute_kernel_config=EXACT)
    want = torch.softmax(x * 0.25 + mask[0], -1)
    assert_near(got, want, 5e-3)


def test_the_scale_is_cut_to_bfloat16(chips):
    """1 / sqrt(80) is 0.4 % too small, which shows in the odds of two keys 64 apart."""
    x = torch.zeros(1, 1, 32, 32)
    x[..., 0] = 64
    scale = torch.tensor(80**-0.5).item()  # ttnn takes no number that float32 does not hold
    got = softmax_of(
        chips,
        x,
        scale,
        chips.put(torch.zeros(1, 1, 1, 32)),
        in_place=False,
        compute_kernel_config=EXACT,
    )
    odds = got[0][0, 0, 0, 0].float() / got[0][0, 0, 0, 1].float()
    assert math.log(odds) == pytest.approx(64 * 0.111328, abs=0.01)  # not 64 * 0.111803


def test_a_causal_mask_has_a_row_for_every_query(chips):
    x = draw(2, 4, 64, 64)
    mask = torch.full((64, 64), -math.inf).triu(1).expand(2, 1, 64, 64).contiguous()
    how = dict(in_place=True, compute_kernel_config=EXACT)
    got = softmax_of(chips, x, 0.5, chips.put(mask), is_causal_mask=True, **how)
    want = torch.softmax(x * 0.5 + mask, -1)
    assert_near(got, want, 5e-3)
    with pytest.raises(GoldenError, match="is_causal_mask=True"):
        softmax_of(chips, x, 0.5, chips.put(mask), **how)


@pytest.mark.parametrize("rows, columns", ((96, 64), (64, 96)), ids=("high", "wide"))
def test_a_causal_mask_need_not_be_square_where_no_core_has_two_rows_of_tiles(chips, rows, columns):
    x, mask = draw(2, 4, rows, columns), draw(2, 1, rows, columns)
    how = dict(in_place=True, compute_kernel_config=EXACT, is_causal_mask=True)
    got = softmax_of(chips, x, 0.5, chips.put(mask), **how)
    want = torch.softmax(x * 0.5 + mask, -1)
    assert_near(got, want, 5e-3)
    with pytest.raises(GoldenError, match="causal mask"):
        softmax_of(chips, draw(2, 32, rows, columns), 0.5, chips.put(mask), **how)


def test_without_the_stable_form_large_scores_overflow(chips):
    """In place that is ttnn's default."""
    x = torch.zeros(1, 1, 32, 32)
    x[..., 0] = 100
    assert not any(g.isfinite().all() for g in softmax_of(chips, x, in_place=True))
    for got in (
        softmax_of(chips, x, in_place=True, numeric_stable=True),
        softmax_of(chips, x, in_place=False),
        chips.get(ttnn.softmax(chips.put(x), dim=-1)),
    ):
        assert all(g.isfinite().all() for g in got)


@pytest.mark.parametrize("head_size", (None, 64))
def test_attention_softmax(chips, head_size):
    x, mask = draw(2, 4, 64, 96), attention_mask(2, 96)
    scale = 1 if head_size is None else 1 / math.sqrt(head_size)
    attention_softmax = ttnn.transformer.attention_softmax
    got = chips.get(
        attention_softmax(chips.put(x), head_size=head_size, attention_mask=chips.put(mask))
    )
    want = torch.softmax(x * scale + mask, -1)
    assert_near(got, want, APPROXIMATE_EXP)
    target = chips.put(x)
    ttnn.transformer.attention_softmax_(target, head_size=head_size, attention_mask=chips.put(mask))
    assert_near(target, want, APPROXIMATE_EXP)
    got = chips.get(attention_softmax(chips.put(x), head_size=head_size))
    assert_near(got, torch.softmax(x * scale, -1), APPROXIMATE_EXP)


def heads_of(x, count: int):
    """[B, S, count * dim] -> [B, count, S, dim]"""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


@pytest.mark.parametrize("transpose", (True, False))
@pytest.mark.parametrize("kv_heads", (None, 2))
@pytest.mark.parametrize("apart", (False, True), ids=("fused", "q-and-kv"))
def test_split_heads(chips, transpose, kv_heads, apart):
    count = kv_heads or 4
    q, k, v = draw(2, 50, 4 * 32), draw(2, 50, count * 32), draw(2, 50, count * 32)
    given = [torch.cat(x, -1) for x in (((q,), (k, v)) if apart else ((q, k, v),))]
    got = ttnn.transformer.split_query_key_value_and_split_heads(
        *map(chips.put, given), num_heads=4, num_kv_heads=kv_heads, transpose_key=transpose
    )
    key = heads_of(k, count)
    wanted = heads_of(q, 4), key.transpose(-1, -2) if transpose else key, heads_of(v, count)
    for tensor, want in zip(got, wanted, strict=True):
        assert_same(tensor, want)


def test_concatenate_heads(chips):
    x = draw(2, 4, 50, 32)
    got = chips.get(ttnn.transformer.concatenate_heads(chips.put(x)))
    assert_same(got, x.transpose(1, 2).reshape(2, 50, 128))


def test_heads_of_falcon_and_vit(chips):
    x = draw(1, 1, 64, 73 * 64)
    parts = heads_of(x[0, :, :, : 71 * 64], 71), x[..., 71 * 64 : 72 * 64], x[..., 72 * 64 :]
    for tensor, want in zip(
        ttnn.experimental.nlp_create_qkv_heads_falcon7b(chips.put(x)), parts, strict=True
    ):
        assert_same(tensor, want)
    x = draw(2, 1, 32, 3 * 768)
    parts = [heads_of(part[:, 0], 12) for part in x.chunk(3, -1)]
    for tensor, want in zip(
        ttnn.experimental.nlp_create_qkv_heads_vit(chips.put(x)), parts, strict=True
    ):
        assert_same(tensor, want)


def test_positions_of_a_cache(chips):
    x = draw(2, 4, 128, 64)
    got = ttnn.experimental.nlp_kv_cache_load_slice(chips.put(x), seq_len_start=32, seq_len_end=96)
    assert_same(got, x[:, :, 32:96])


def test_attention_products(chips):
    """Each user's row of a by the user's own matrix.

    Exact up to bfloat16 with a config that cuts nothing.
    """
    how = dict(compute_with_storage_grid_size=GRID, compute_kernel_config=EXACT)
    a, b, c = draw(1, 8, 32, 64), draw(32, 1, 64, 96), draw(32, 2, 64, 96)
    got = ttnn.experimental.attn_matmul(chips.put(a), chips.put(b), **how)
    want = torch.einsum("hbk,bkn->hbn", a[0].double(), b[:, 0].double())[None]
    assert_near(got, want, 3e-3)
    got = ttnn.experimental.group_attn_matmul(chips.put(a), chips.put(c), **how)
    want = torch.einsum("hbk,bhkn->hbn", a[0].double(), c.double().repeat_interleave(4, 1))[None]
    assert_near(got, want, 3e-3)


@pytest.mark.parametrize("transpose", (True, False))
def test_attention_product_from_a_cache_takes_whole_tiles_of_tokens(chips, transpose):
    a, cache = draw(1, 4, 32, 64), draw(32, 1, 128, 64)
    rows = cache[:, 0, :64].double()
    if transpose:
        want = torch.einsum("hbk,bnk->hbn", a[0].double(), rows)[None]
    else:
        want = torch.einsum("hbk,bkn->hbn", a[0].double(), rows)[None]
    got = ttnn.experimental.attn_matmul_from_cache(
        chips.put(a), chips.put(cache), num_tokens=40, transpose_hw=transpose, compute_with_storage_grid_size=GRID,
        compute_kernel_config=EXACT,
    )  # fmt: skip
    assert_near(got, want, 3e-3)


def part_of(chips, x, index: int, of: int, cores: int):
    shape = [x.shape[2] // of // cores, x.shape[3]]
    return ttnn.interleaved_to_sharded_partial(
        x, ttnn.CoreCoord(cores, 1), shape, of, index, ttnn.TensorMemoryLayout.HEIGHT_SHARDED,
        ttnn.ShardOrientation.ROW_MAJOR,
    )  # fmt: skip


def test_parts_of_a_tensor_go_to_shards_and_back(chips):
    x, cache = draw(1, 1, 192, 64), chips.put(torch.zeros(1, 1, 192, 64))
    copy, given = ttnn.clone(cache), chips.put(x)
    for index in (2, 0):
        part = part_of(chips, given, index, 3, 2)
        assert_same(part, x[:, :, 64 * index : 64 * index + 64])
        ttnn.sharded_to_interleaved_partial(
            part, cache, 3, index, memory_config=ttnn.DRAM_MEMORY_CONFIG
        )
    want = x.clone()
    want[:, :, 64:128] = 0
    assert_same(cache, want)
    assert_same(copy, torch.zeros(1, 1, 192, 64))


def test_a_part_of_another_dtype_than_the_cache_is_refused(chips):
    part = part_of(chips, chips.put(draw(1, 1, 128, 64)), 0, 2, 2)
    cache = chips.put(torch.zeros(1, 1, 128, 64), ttnn.float32)
    with pytest.raises(GoldenError, match="does not convert"):
        ttnn.sharded_to_interleaved_partial(
            part, cache, 2, 0, memory_config=ttnn.DRAM_MEMORY_CONFIG
        )


@pytest.mark.parametrize("name", ("tril", "triu"))
@pytest.mark.parametrize("diagonal", (0, -3, 40))
def test_triangles(chips, name, diagonal):
    x = draw(1, 2, 64, 96)
    x[0, 0, 0, 1] = x[0, 0, 1, 0] = math.inf  # elements that are left out become zero
    got = getattr(ttnn, name)(chips.put(x), diagonal=diagonal)
    row, column = torch.arange(64)[:, None], torch.arange(96)
    kept = column - row <= diagonal if name == "tril" else column - row >= diagonal
    assert_values(got, torch.where(kept, x, 0))


@pytest.mark.parametrize("name", ("index_fill", "index_fill_new"))
@pytest.mark.parametrize("dim", (0, 2, 3))
def test_index_fill(chips, dim, name):
    x, index = draw(3, 2, 32, 64), [0, 2]
    row_major = dict(layout=ttnn.ROW_MAJOR_LAYOUT)
    got = getattr(ttnn, name)(
        chips.put(x, **row_major),
        dim,
        chips.put(torch.tensor(index).int(), ttnn.uint32, **row_major),
        2.5,
    )
    want = x.movedim(dim, 0).clone()
    want[index] = 2.5
    assert_same(got, want.movedim(0, dim))
