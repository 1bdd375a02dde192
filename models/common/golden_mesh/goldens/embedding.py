"""Token embedding."""

from models.common.golden_mesh.registry import golden


@golden("ttnn.embedding")
def embedding(input_tensor, weight, *, layout=None, dtype=None, out):
    """Rows of weight [..., V, H] for the ids [...]: one row an id, in the shape that the op gives them."""
    rows = weight.reshape(weight.shape[-2:])[input_tensor.reshape(-1).long()]
    return rows.reshape(out.shape)
