"""TtRotary: rotary position embedding, x * cos + (x @ T) * sin, over adjacent pairs.

HF rotates the pairs (j, j + head_dim / 2). The weight transforms reorder the rows of Wq and Wk, so here a pair is
(2j, 2j + 1). The product with the 32x32 matrix T turns a pair (a, b) into (-b, a).
"""

from dataclasses import dataclass
from typing import Iterator

import torch
import ttnn
from torch.nn.functional import pad

from ..config import DecoderConfig
from ..config.rope import inverse_frequencies
from ..plans.grids import TILE
from .layouts import memory_config
from .linear import compute_config
from .model_config import TtModelConfig
from .placement import free, replicate


@dataclass(frozen=True)
class Rotation:
    """The factors of one decode step or prefill batch, shared by all layers.

    Decode: [1, rotary_users, 32, head_dim] height-sharded, 32 equal rows. Prefill: [1, 1, S, head_dim] in L1.
    """

    cos: ttnn.Tensor
    sin: ttnn.Tensor

    def deallocate(self) -> None:
        free(self.cos, self.sin)


class TtRotary:
    """Tables of cos and sin for positions 0 to max_seq_len - 1, looked up on the device by position."""

    def __init__(self, mesh_device: ttnn.MeshDevice, model_config: TtModelConfig):
        self.decode = model_config.decode
        self.head_dim = model_config.config.head_width
        self.kernel = compute_config()
        cos, sin = rotary_tables(model_config.config, model_config.max_seq_len)
        self.cos = replicate(cos, mesh_device, layout=ttnn.ROW_MAJOR_LAYOUT)
        self.sin = replicate(sin, mesh_device, layout=ttnn.ROW_MAJOR_LAYOUT)
        matrix = transformation_matrix()
        self.trans_mat_prefill = replicate(matrix, mesh_device)
        self.trans_mat_decode = replicate(
            matrix.repeat(1, 1, self.decode.rotary_users, 1),
            mesh_device,
            memory_config=memory_config(self.decode.rotary_memory(TILE)),
        )

    def rotation_decode(self, positions: ttnn.Tensor) -> Rotation:
        """positions: [1, 32 * rotary_users] uint32 (inputs.expand_rotary_positions)."""
        memory = memory_config(self.decode.rotary_memory(self.head_dim))  # a slot's tile row on its core
        shape = (1, self.decode.rotary_users, TILE, self.head_dim)
        return Rotation(*(ttnn.reshape(rows, shape) for rows in self._look_up(positions, memory)))

    def rotation_prefill(self, positions: ttnn.Tensor) -> Rotation:
        """positions: [1, S] uint32."""
        return Rotation(*map(ttnn.unsqueeze_to_4D, self._look_up(positions, ttnn.L1_MEMORY_CONFIG)))

    def _look_up(self, positions: ttnn.Tensor, memory: ttnn.MemoryConfig) -> Iterator[ttnn.Tensor]:
        """cos and sin of positions [1, n], [1, n, head_dim] each."""
        for table in (self.cos, self.sin):
            yield ttnn.embedding(positions, table, layout=ttnn.TILE_LAYOUT, memory_config=memory)

    def forward_decode(self, q: ttnn.Tensor, k: ttnn.Tensor, rotation: Rotation) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """q and k [1, slots, heads, head_dim], height-sharded, one slot a core -> q and k rotated, in the same cores.

        One op rotates both where q and k lie on different cores; else one op each.
        """
        if self.decode.fused_qk:
            return ttnn.experimental.rotary_embedding_llama_fused_qk(
                q, k, rotation.cos, rotation.sin, self.trans_mat_decode, compute_kernel_config=self.kernel
            )
        return tuple(
            ttnn.experimental.rotary_embedding_llama(
                x,
                rotation.cos,
                rotation.sin,
                self.trans_mat_decode,
                is_decode_mode=True,
                compute_kernel_config=self.kernel,
            )
            for x in (q, k)
        )

    def forward_prefill(self, q: ttnn.Tensor, k: ttnn.Tensor, rotation: Rotation) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """q and k [B, heads, S, head_dim], interleaved in L1 -> q and k rotated, interleaved in L1. Frees q and k.

        All B sequences take the S positions of `rotation`.
        """
        return self._rotate(q, rotation), self._rotate(k, rotation)

    def _rotate(self, x: ttnn.Tensor, rotation: Rotation) -> ttnn.Tensor:
        y = ttnn.experimental.rotary_embedding_llama(
            x,
            rotation.cos,
            rotation.sin,
            self.trans_mat_prefill,
            is_decode_mode=False,
            memory_config=ttnn.L1_MEMORY_CONFIG,
            compute_kernel_config=self.kernel,
        )
        ttnn.deallocate(x)
        return y


def rotary_tables(config: DecoderConfig, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin, [1, 1, positions, head_dim] float32.

    Each frequency stands twice, once for each element of a pair. The arithmetic is float32, as in Hugging Face's tables
    and in the model's training.
    """
    angles = rotary_angles(config, positions)
    size = config.rope_scaling.attention_factor if config.rope_scaling else 1.0
    return tuple((f(angles) * size).repeat_interleave(2, dim=-1)[None, None] for f in (torch.cos, torch.sin))


def rotary_angles(config: DecoderConfig, positions: int) -> torch.Tensor:
    """[positions, head_width / 2] float32, in radians: position times the pair's frequency; 0 for pairs of zeros."""
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    frequencies = pad(frequencies, (0, config.head_width // 2 - len(frequencies)))
    return torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)


def transformation_matrix() -> torch.Tensor:
    """T [1, 1, 32, 32]: (x @ T)[2j] = -x[2j + 1], (x @ T)[2j + 1] = x[2j]."""
    matrix = torch.zeros(1, 1, TILE, TILE)
    even = torch.arange(0, TILE, 2)
    matrix[..., even, even + 1] = 1
    matrix[..., even + 1, even] = -1
    return matrix
