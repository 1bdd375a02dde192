"""Embedding: the table's row of each id. Each chip holds different columns."""

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from goldens.support import assert_same, sharded

VOCABULARY, WIDTH = 200, 128


@pytest.mark.parametrize("shape", ((1, 1, 1, 32), (1, 32), (2, 64)), ids=str)
@pytest.mark.parametrize("layout", (ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT), ids=str)
def test_rows_of_the_ids(chips, shape, layout):
    table = chips.draw(1, 1, VOCABULARY, WIDTH)
    ids = torch.randint(0, VOCABULARY, shape)
    placed = chips.put(ids.int(), ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT)
    got = ttnn.embedding(placed, chips.put(table, layout=ttnn.ROW_MAJOR_LAYOUT), layout=layout)
    want = [t[0, 0][ids.flatten()] for t in table]
    assert_same([g.reshape(-1, WIDTH) for g in chips.get(got)], want)


@pytest.mark.parametrize(
    "kind, rows, options",
    (("GENERIC", 64, {}), ("PADDED", 64, {"padding_idx": 3}), ("BINARY", 2, {})),
)
def test_other_embedding_types_give_the_same_rows(chips, kind, rows, options):
    ids, table = torch.randint(0, rows, (2, 32)), chips.draw(rows, 64)
    got = ttnn.embedding(
        chips.put(ids, ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT),
        chips.put(table, layout=ttnn.ROW_MAJOR_LAYOUT),
        embeddings_type=getattr(ttnn.EmbeddingsType, kind),
        **options,
    )
    assert_same(got, [t.reshape(-1, rows, 64)[0][ids] for t in table])


def test_straight_into_shards(chips):
    table, ids = chips.draw(1, 1, VOCABULARY, WIDTH), torch.randint(0, VOCABULARY, (1, 1, 1, 32))
    got = ttnn.embedding(
        chips.put(ids.int(), ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT),
        chips.put(table, layout=ttnn.ROW_MAJOR_LAYOUT),
        layout=ttnn.TILE_LAYOUT,
        memory_config=sharded("WIDTH", (32, 32), 4),
    )
    assert_same(
        [g.reshape(-1, WIDTH) for g in chips.get(got)], [t[0, 0][ids.flatten()] for t in table]
    )


def test_an_id_outside_of_the_table_is_refused(chips):
    ids = chips.put(torch.full((1, 32), VOCABULARY).int(), ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT)
    with pytest.raises(GoldenError, match="ttnn.embedding .*out of bounds"):
        ttnn.embedding(
            ids, chips.put(chips.draw(1, 1, VOCABULARY, WIDTH), layout=ttnn.ROW_MAJOR_LAYOUT)
        )
