"""Token embedding."""

import ttnn

from models.common.golden_mesh.registry import golden


@golden("ttnn.embedding")
def embedding(
    input_tensor, weight, *, padding_idx=None, layout=None, dtype=None, embeddings_type=ttnn.EmbeddingsType.GENERIC, out
):
    """Rows of weight [..., V, H] for the ids [...]: one row an id, in the shape that the op gives them.

    The types say what a core keeps at hand (the padding's row, or both of two rows), and not what a row holds: but with
    two rows every id other than 0 is the second's.
    """
    ids = input_tensor.reshape(-1).long()
    if embeddings_type == ttnn.EmbeddingsType.BINARY:
        ids = (ids != 0).long()
    rows = weight.reshape(weight.shape[-2:])[ids]
    return rows.reshape(out.shape)
