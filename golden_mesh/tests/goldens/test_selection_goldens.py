"""Elements selected by place, index or id; sorting and fills."""

import itertools
import math

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import ROW_MAJOR, TILE, Put, assert_same, bf16, examples, ints

TILES, TRIANGLE, SORTED, ROWS = (1, 1, 32, 64), (1, 2, 64, 96), (1, 2, 64, 64), (2, 10, 64)
IN_ROWS = dict(layout=ROW_MAJOR)


def with_infinities():
    x = bf16(*TRIANGLE)
    x[0, 0, 0, 1] = x[0, 0, 1, 0] = math.inf  # elements that are left out become zero
    return x


ABOVE = torch.arange(96) - torch.arange(64)[:, None]  # how far above the diagonal


def lower(x, diagonal: int):
    return torch.where(ABOVE <= diagonal, x, 0)


def upper(x, diagonal: int):
    return torch.where(ABOVE >= diagonal, x, 0)


def filled(x, dim: int):
    result = x.movedim(dim, 0).clone()
    result[[0, 2]] = 2.5
    return result.movedim(0, dim)


def scattered(x, index, source, add: bool):
    result = x.clone()
    for c, r in itertools.product(range(2), range(32)):
        old = result[0, c, r, index[0, c, r]] if add else 0
        result[0, c, r, index[0, c, r]] = old + source[0, c, r]
    return result


def numbers(limit: int, *shape: int):
    return lambda: torch.randint(limit, shape)


SPREAD, PLACES = (1, 2, 32, 64), numbers(20, *TILES)
GATHERED = Put(torch.full(TILES, 5), ttnn.uint32)
TESTED = torch.tensor([3, 7, 11]).reshape(1, 1, 1, 3)
DISTINCT = lambda: torch.rand(SPREAD).argsort(-1)[..., :20]
SOURCE, INDEX, INTO = (1, 2, 32, 20), torch.tensor([[3, 0, 9, 1], [5, 6, 2, 8]]), (2, 4, 64)
IN_TILES = {
    "ttnn.gather(x, -1, y)": (
        "torch.stack([row[i] for row, i in zip(x[0, 0], y[0, 0])])[None, None]",
        Put(numbers(1 << 20, 1, 1, 32, 96), ttnn.uint32),
        Put(numbers(96, 1, 1, 32, 32), ttnn.uint16),
    )
}
for diagonal in (0, -3, 40):
    IN_TILES[f"ttnn.tril(x, diagonal={diagonal})"] = f"lower(x, {diagonal})", with_infinities
    IN_TILES[f"ttnn.triu(x, diagonal={diagonal})"] = f"upper(x, {diagonal})", with_infinities
for how in itertools.product((-1, 2), (False, True)):
    IN_TILES[f"ttnn.sort(x, *{how})[:1]"] = f"x.sort(*{how})[:1]", SORTED
    call = f"ttnn.gather(x, {how[0]}, ttnn.typecast(ttnn.sort(x, *{how})[1], ttnn.uint32))"
    IN_TILES[call] = f"x.sort(*{how})[0]", SORTED
IN_TILES["ttnn.gather(y, 3, z, out=x)"] = "y.gather(3, z)", torch.zeros(TILES), TILES, GATHERED, {"in_place": True}
test_in_tiles = examples(IN_TILES, globals(), error=0)

TABLE, MORE, IDS = (1, 1, 200, 128), (4, 1, 32, 64), numbers(200, 1, 32)
IN_ROWS_EXAMPLES = {
    "ttnn.scatter(x, -1, y, z)": ("scattered(x, y, z, False)", SPREAD, DISTINCT, SOURCE),
    "ttnn.scatter_add(x, -1, y, z)": ("scattered(x, y, z, True)", SPREAD, DISTINCT, SOURCE, {"error": None}),
    "ttnn.tosa_gather(x, y)": ("torch.stack([x[n, y[n]] for n in range(2)])", ROWS, ints(INDEX, ttnn.uint32)),
    "ttnn.tosa_scatter(x, y, z)": ("x.scatter(1, y[..., None].expand(z.shape), z)", ROWS, INDEX, INTO),
    "ttnn.indexed_fill(x, y, z)": (
        "torch.stack((y[0], z[1], y[2], z[0]))", ints([[[[3, 1]]]], ttnn.uint32), MORE,
        (2, 1, 32, 64),
    ),
    "ttnn.experimental.isin(x, y, invert=False)": ("torch.isin(x, y).long() * 0xFFFFFFFF", PLACES, TESTED),
    "ttnn.experimental.isin(x, y, invert=True)": ("(~torch.isin(x, y)).long() * 0xFFFFFFFF", PLACES, TESTED),
    "ttnn.fill_rm(1, 2, 32, 64, 20, 30, x, 2.0, 0.5)":
        ("F.pad(torch.full((1, 2, 20, 30), 2.0), (0, 34, 0, 12), value=0.5)", TILES),
    "ttnn.fill_ones_rm(1, 2, 32, 64, 20, 30, x)": ("F.pad(torch.ones(1, 2, 20, 30), (0, 34, 0, 12))", TILES),
    "ttnn.embedding(y, x, embeddings_type=ttnn.EmbeddingsType.GENERIC)":
        ("x[y]", (64, 64), ints(numbers(64, 2, 32), ttnn.uint32)),
    "ttnn.embedding(y, x, embeddings_type=ttnn.EmbeddingsType.PADDED, padding_idx=3)":
        ("x[y]", (64, 64), ints(numbers(64, 2, 32), ttnn.uint32)),
    "ttnn.embedding(y, x, embeddings_type=ttnn.EmbeddingsType.BINARY)":
        ("x[y]", (2, 64), ints(numbers(2, 2, 32), ttnn.uint32)),
    # Straight into shards.
    "ttnn.embedding(y, x, layout=TILE, memory_config=sharded('WIDTH', (32, 32), 4))":
        ("x[0, 0][y]", TABLE, ints(IDS, ttnn.uint32)),
}  # fmt: skip
for name in ("index_fill", "index_fill_new"):
    for dim in (0, 2, 3):
        inputs = (3, 2, 32, 64), ints([0, 2], ttnn.uint32)
        IN_ROWS_EXAMPLES[f"ttnn.{name}(x, {dim}, y, 2.5)"] = f"filled(x, {dim})", *inputs
for shape in ((1, 1, 1, 32), (1, 32), (2, 64)):
    for layout in ("TILE", "ROW_MAJOR"):
        call = f"ttnn.reshape(ttnn.embedding(y, x, layout={layout}), ({math.prod(shape)}, 128))"
        ids = ints(numbers(200, *shape), ttnn.uint32)
        IN_ROWS_EXAMPLES[f"{call}  # {shape}"] = "x[0, 0][y.flatten()]", TABLE, ids
test_in_rows = examples(IN_ROWS_EXAMPLES, globals(), layout=ROW_MAJOR, error=0)


def test_an_id_outside_of_the_table_is_refused(chips):
    table, ids = chips.put(bf16(*TABLE), **IN_ROWS), ints(torch.full((1, 32), 200), ttnn.uint32)
    with pytest.raises(GoldenError, match="ttnn.embedding .*out of bounds"):
        ttnn.embedding(chips.put_input(ids), table)


@pytest.mark.parametrize("layout", (TILE, ROW_MAJOR), ids=str)
def test_nonzero_counts_and_names_the_places(chips, layout):
    x = bf16(2, 1, 5, 40).masked_fill(torch.rand(2, 1, 5, 40) < 0.7, -0.0)
    count, places = ttnn.nonzero(chips.put(x, layout=layout))
    want = torch.tensor([at for at in itertools.product(*map(range, x.shape)) if x[at] != 0])
    assert_same([c[..., 0] for c in chips.get(count)], torch.tensor([[[len(want)]]]))
    assert_same([p.flatten()[: want.numel()].view(-1, 4) for p in chips.get(places)], want)


@pytest.mark.parametrize("triangle, place", ((ttnn.tril, (0, 1)), (ttnn.triu, (1, 0))))
@pytest.mark.parametrize("bad", (math.nan, math.inf))
def test_infinity_outside_a_triangle_is_nan_in_float32_and_0_in_bfloat16(chips, triangle, place, bad):
    """The library multiplies by ones and zeros. A simulated N150 and P150 give these values."""
    x = torch.ones(32, 32)
    x[place] = bad
    (wide, *_), (narrow, *_) = (chips.get(triangle(chips.put(x, dtype))) for dtype in (ttnn.float32, ttnn.bfloat16))
    assert wide[place].isnan() and wide.isnan().sum() == 1
    assert narrow[place] == 0 and narrow.isfinite().all()
