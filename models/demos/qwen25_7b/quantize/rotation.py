"""An orthogonal matrix for the channels of the residual stream, folded into the weights.

Norm weights move into the matmuls behind them. The norms that are left compute x / rms(x), which does not change the
direction of x and commutes with every orthogonal matrix. The embedding and each projection that writes the
stream are then multiplied by the matrix, and each projection that reads the stream undoes it. The model computes the same function, with the
same operations.

The matrix sorts the channels by their norm weights. Then it mixes each block of neighbors by a Hadamard matrix with random signs.
"""

import math
from dataclasses import dataclass
from typing import Callable, Mapping

import torch
from golden_mesh.rounding import BLOCK

from models.common.errors import UserError
from models.demos.qwen25_7b.config import QwenConfig
from models.demos.qwen25_7b.weights.checkpoint import EMBEDDING, LM_HEAD

MOST_MIXED = 64  # channels that a Hadamard matrix mixes (docs/decisions.md compares sizes)
LEAST_WEIGHT = (
    1e-3  # a norm weight counts as this at least: one zero would outweigh all other layers
)
SEED = 0  # of the signs
ROWS = 16384  # of the embedding at a time: bounds the memory of its float64 copy
FINAL_NORM = "model.norm.weight"
INPUT_NORM, MLP_NORM = "input_layernorm.weight", "post_attention_layernorm.weight"
READERS = {  # the norm before each projection that reads the stream
    "self_attn.q_proj.weight": INPUT_NORM,
    "self_attn.k_proj.weight": INPUT_NORM,
    "self_attn.v_proj.weight": INPUT_NORM,
    "mlp.gate_proj.weight": MLP_NORM,
    "mlp.up_proj.weight": MLP_NORM,
}
WRITERS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")

Tensors = Mapping[str, torch.Tensor]
ReadTensor = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class Rotation:
    """An orthogonal matrix Q [hidden, hidden]: a permutation, then signs, then a Hadamard matrix for each block."""

    order: torch.Tensor  # [hidden], the old number of each new channel
    signs: torch.Tensor  # [hidden] of 1 and -1 in float64
    block: int  # channels of a Hadamard matrix, a power of two

    @classmethod
    def sorting(cls, config: QwenConfig, tensor: ReadTensor) -> "Rotation":
        """The rotation for a model. Channels are sorted by the geometric mean of their norm weights in all layers.

        tensor: gives the model's tensors by name. UserError: hidden_size has no such block, or all
        norm weights are 1, as in a rotated model.
        """
        block = mixed_channels(config.hidden_size)
        weights = torch.stack([tensor(name).double() for name in norm_names(config)])
        if (weights == 1).all():
            raise UserError(
                "all norm weights are 1: the checkpoint is rotated already, or has nothing to sort its channels by; "
                "give the original checkpoint"
            )
        in_layers = weights[:-1].abs().clamp_min(LEAST_WEIGHT)
        order = in_layers.log().mean(0).argsort(stable=True)
        bits = torch.randint(0, 2, (len(order),), generator=torch.Generator().manual_seed(SEED))
        return cls(order, 1 - 2 * bits.double(), block)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., hidden] -> x @ Q in float64."""
        blocks = (x[..., self.order].double() * self.signs).unflatten(-1, (-1, self.block))
        return (blocks @ hadamard(self.block)).flatten(-2)

    def turned_layer(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """A layer's tensors by their names in the layer, rotated, in float64."""
        result = {name: tensor.double() for name, tensor in tensors.items()}
        for name, norm in READERS.items():
            result[name] = self.turned(result[name] * result[norm])
        for name in WRITERS:
            result[name] = self.turned(result[name].t()).t()
        for norm in (INPUT_NORM, MLP_NORM):
            result[norm] = torch.ones_like(result[norm])
        return result

    def turned_embedding(self, tensor: ReadTensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """tensor: gives the model's tensors by name."""
        return {EMBEDDING: self._turned_table(tensor(EMBEDDING), 1, dtype)}

    def turned_head(self, tensor: ReadTensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The LM head, and the final norm. A tied head is the embedding: tensor(LM_HEAD) gives it."""
        norm = tensor(FINAL_NORM).double()
        head = self._turned_table(tensor(LM_HEAD), norm, dtype)
        return {LM_HEAD: head, FINAL_NORM: torch.ones_like(norm, dtype=dtype)}

    def _turned_table(
        self, table: torch.Tensor, factors: torch.Tensor | int, dtype: torch.dtype
    ) -> torch.Tensor:
        """table [vocab, hidden] * factors, rotated, in `dtype`."""
        result = torch.empty(table.shape, dtype=dtype)
        for rows, place in zip(table.split(ROWS), result.split(ROWS)):
            place.copy_(self.turned(rows.double() * factors))
        return result


def norm_names(config: QwenConfig) -> list[str]:
    """The final norm comes last."""
    layers = range(config.num_hidden_layers)
    return [f"model.layers.{i}.{norm}" for i in layers for norm in (INPUT_NORM, MLP_NORM)] + [
        FINAL_NORM
    ]


def mixed_channels(hidden_size: int) -> int:
    """The largest power of two that divides hidden_size, up to MOST_MIXED. UserError: it is below a block of block floats."""
    block = math.gcd(hidden_size, MOST_MIXED)
    if block < BLOCK:
        raise UserError(
            f"hidden_size must be a multiple of {BLOCK}, for blocks of channels to be mixed; got {hidden_size}"
        )
    return block


def hadamard(size: int) -> torch.Tensor:
    """[size, size] in float64, symmetric and orthogonal. size: a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(size)
