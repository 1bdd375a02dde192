"""Tensors made on the device. The real op gives the shape. All chips get equal values.

A constant is one expanded value: an empty cache takes no host memory until a write.
"""

import torch
import ttnn

from golden_mesh.arithmetic import engine
from golden_mesh.registry import golden, golden_table


def constant(fill_value, out) -> torch.Tensor:
    """One expanded value, the nearest bfloat16 (ties to even). A block of 4-bit floats is packed from whole rows."""
    if out.dtype == ttnn.bfloat4_b:
        return torch.full(out.shape, float(fill_value))
    value = torch.tensor(fill_value)
    return (value.bfloat16() if out.dtype == ttnn.bfloat16 else value).expand(out.shape)


golden("ttnn.full", ignores="shape")(constant)


@golden("ttnn.full_like")
def full_like(tensor, fill_value, dtypes, tiled, out):
    """A kernel fills tiles of bfloat16, and cuts the value."""
    cut = tiled and dtypes["tensor"] == out.dtype == ttnn.bfloat16
    return constant(engine.cut_number(fill_value) if cut else fill_value, out)


golden("ttnn.zeros", "ttnn.zeros_like", ignores="shape tensor")(lambda out: constant(0.0, out))
golden("ttnn.ones", "ttnn.ones_like", ignores="shape tensor")(lambda out: constant(1.0, out))
golden("ttnn.arange")(lambda end, start=0, step=1: torch.arange(start, end, step))


_generator = torch.Generator()  # for calls without a seed
_generator.manual_seed(0)


def _seeded(seed: int | None) -> torch.Generator:
    return torch.Generator().manual_seed(seed) if seed else _generator


# Random numbers are torch's, equal on all chips: a chip's own cannot be computed.
_ROWS = {
    # 1 with the probability in the input, else 0
    "ttnn.bernoulli": lambda input, seed: (torch.rand(input.shape, generator=_seeded(seed)) < input.float()).float(),
    # zeros, else input * scale, cut to bfloat16
    "ttnn.experimental.dropout": lambda input_tensor, probability, scale, seed: (
        engine.keep(input_tensor.float() * scale, engine.BFLOAT16)
        * (torch.rand(input_tensor.shape, generator=_seeded(seed)) >= probability)
    ),
    # uniform in [low, high)
    "ttnn.rand": lambda low, high, seed, out: torch.rand(out.shape, generator=_seeded(seed)) * (high - low) + low,
    "ttnn.randn": lambda seed, out: torch.randn(out.shape, generator=_seeded(seed)),
}
golden_table(_ROWS, ignores="shape")
